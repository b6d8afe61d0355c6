import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fredholm import IntegralOperator, kernels
from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import Dense, Integral
from fredholm.kernels import Kernel
from fredholm.operators import collect_auxiliary_losses
from fredholm.quadrature.anchors import Anchors
from fredholm.quadrature.monte_carlo import Draw, MonteCarlo, curve_order, invert, levels
from fredholm.quadrature.neighbourhood import Neighbourhood
from fredholm.quadrature.nodes import NodesPerQuery, SharedNodes
from fredholm.quadrature.pairs import cross_entropy
from fredholm.quadrature.proposal import KeyProposal, PairProposal
from fredholm.quadrature.quadrature import Full, Quadrature
from tests.contracts.routes import randomise
from tests.quadrature.build import literal_sum, mlp, plain, scattered, signal

MASK = torch.tensor([True] * 4 + [False, True, True, False, True, True, False])
WEIGHTS = torch.tensor([0.0, 1.0, 0.2, 3.0, 0.5, 0.5, 0.1, 2.0, 1.0, 0.0, 0.7], dtype=torch.float64)
N = 11


def proposals(heads: int = 2, dims: int = 2) -> dict[str, dict[str, Any]]:
    """Settings for every kind of draw; learned distributions are far from their initialisation."""
    key, pair = KeyProposal(6, dims, heads).double(), PairProposal(6, dims).double()
    for proposal in (key, pair):
        with torch.no_grad():
            for parameter in proposal.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return {
        "shared": {},
        "shared, stratified": {"draw": "stratified"},
        "shared, quasi-random": {"draw": "quasi_random"},
        "shared, learned": {"proposal": key},
        "shared, learned, stratified": {"proposal": key, "draw": "stratified"},
        "per query": {"per_query": True},
        "per query, stratified": {"per_query": True, "draw": "stratified"},
        "per query, learned": {"proposal": pair},
        "per query, learned, quasi-random": {"proposal": pair, "draw": "quasi_random"},
    }


def places() -> dict[str, tuple[Domain, Domain | None]]:
    """Domains of a signal, some with other queries."""
    return {
        "points": (scattered(N), None),
        "points of each entry": (scattered(N, batch=2), None),
        "masked": (scattered(N, mask=MASK), None),
        "masked apart": (scattered(N, mask=torch.stack([MASK, ~MASK])), None),
        "weighted": (scattered(N, weights=WEIGHTS), None),
        "grid and token": (Union(scattered(2), Grid(3, 3)), None),
        "torus": (Points(torch.rand(N, 2, generator=torch.Generator().manual_seed(2)), periodic=True), None),
        "other queries": (scattered(N), scattered(3, seed=4)),
        "other queries of each entry": (scattered(N, batch=2), scattered(3, batch=2, seed=4)),
    }


def case(name: str) -> tuple[Tensor, Domain, Tensor | None, Domain | None]:
    domain, query_domain = places()[name]
    u = signal(N)
    u = u if domain.mask is None else torch.where(domain.mask[..., None], u, 0.0)
    return u, domain, None if query_domain is None else signal(query_domain.num_points, seed=9), query_domain


def existing(out: Tensor, query_domain: Domain) -> Tensor:
    """The result, 0 at queries that do not exist."""
    return out if query_domain.mask is None else torch.where(query_domain.mask[..., None], out, 0.0)


@pytest.mark.parametrize("kind", proposals())
@pytest.mark.parametrize("where", places())
def test_the_sum_over_the_nodes_equals_the_literal_sum(kind: str, where: str) -> None:
    kernel, (u, domain, query, query_domain) = mlp(), case(where)
    quadrature = MonteCarlo(5, **proposals()[kind])
    torch.manual_seed(3)
    nodes = quadrature.nodes(Integral(kernel, u, domain, query, query_domain))
    assert isinstance(nodes, SharedNodes | NodesPerQuery)
    torch.manual_seed(3)
    got = plain(kernel, quadrature)(u, domain, query=query, query_domain=query_domain)
    expected = existing(literal_sum(kernel, nodes, u, domain, query, query_domain), query_domain or domain)
    # positions of a grid are in float32, and with them the phases of displacements in the literal sum
    tolerance = 1e-5 if where == "torus" else None
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", proposals())
@pytest.mark.parametrize("where", ["points of each entry", "masked apart", "weighted", "other queries"])
def test_gradients_treat_nodes_and_weights_as_constants(kind: str, where: str) -> None:
    kernel, (u, domain, query, query_domain) = mlp(), case(where)
    quadrature = MonteCarlo(5, **proposals()[kind])
    leaves = [u.requires_grad_(), domain.pos.requires_grad_(), *(p for p in kernel.parameters() if p.numel())]
    leaves += [] if query is None else [query.requires_grad_()]
    leaves += [] if query_domain is None else [query_domain.pos.requires_grad_()]
    cotangent = signal(N if query_domain is None else 3, seed=7)
    torch.manual_seed(3)
    got = torch.autograd.grad(
        plain(kernel, quadrature)(u, domain, query=query, query_domain=query_domain), leaves, cotangent
    )
    torch.manual_seed(3)
    nodes = quadrature.nodes(Integral(kernel, u, domain, query, query_domain))
    assert isinstance(nodes, SharedNodes | NodesPerQuery)
    assert not nodes.weights.requires_grad
    out = existing(literal_sum(kernel, nodes, u, domain, query, query_domain), query_domain or domain)
    expected = torch.autograd.grad(out, leaves, cotangent)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-9)


def assert_unbiased(op: IntegralOperator, u: Tensor, domain: Domain, **queries: Any) -> None:
    """Asserts that the mean of 10⁴ draws is within 3 standard errors of the exact value, along a fixed direction."""
    copies = u.expand(10_000, -1, -1)
    queries |= {"query": queries["query"].expand(10_000, -1, -1)} if "query" in queries else {}
    with torch.no_grad(), warnings.catch_warnings(action="error"):
        draws = op(copies, domain, **queries)
        exact = op.with_quadrature(None)(
            copies[:1], domain, **{k: v[:1] if k == "query" else v for k, v in queries.items()}
        )
    direction = torch.randn(exact.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    along = ((draws - exact) * direction).sum((1, 2))
    assert along.std() > 1e-2
    assert along.mean().abs() < 3 * along.std() / 100
    spread = draws.std(0)
    assert (
        (draws.mean(0) - exact[0]).abs() <= 4.5 * spread / 100 + 1e-12
    ).all()  # a wider limit, since there are dozens of entries


@pytest.mark.parametrize("kind", proposals())
@pytest.mark.parametrize("measure", [{"mask": MASK}, {"weights": WEIGHTS}], ids=["masked", "weighted"])
def test_the_mean_of_ten_thousand_draws_is_within_three_standard_errors(kind: str, measure: dict[str, Any]) -> None:
    op = plain(mlp(), MonteCarlo(4, **proposals()[kind]))
    assert_unbiased(op, signal(N, 1), scattered(N, **measure), query=signal(3, 1, 9), query_domain=scattered(3, seed=4))


@pytest.mark.parametrize("kind", ["shared", "per query", "shared, learned", "per query, learned", "shared, stratified"])
@pytest.mark.parametrize("times", [False, True], ids=["indices", "times"])
def test_causal_sums_are_unbiased_and_do_not_see_later_points(kind: str, times: bool) -> None:
    kernel = mlp(1, is_causal=True)
    domain = Sequence(times=torch.linspace(0, 1, 5, dtype=torch.float64).sqrt()) if times else Sequence(5)
    op, u = plain(kernel, MonteCarlo(3, **proposals(dims=1)[kind])), signal(5, 1)
    assert_unbiased(op, u, domain)
    leaf = u.clone().requires_grad_()
    (grad,) = torch.autograd.grad(op(leaf, domain)[:, 2].sum(), leaf)
    assert (grad[:, 3:] == 0).all()


@pytest.mark.parametrize("kind", proposals())
def test_causal_sums_over_points_in_the_plane_keep_the_order_of_indices(kind: str) -> None:
    kernel, u, domain = mlp(is_causal=True), signal(N).requires_grad_(), scattered(N)
    out = plain(kernel, MonteCarlo(6, **proposals()[kind]))(u, domain)
    for i in (0, 4, 9):
        (grad,) = torch.autograd.grad(out[:, i].sum(), u, retain_graph=True)
        assert (grad[:, i + 1 :] == 0).all()
    (grad,) = torch.autograd.grad(out[:, -1].sum(), u)
    assert (grad != 0).any()


@pytest.mark.parametrize("kind", proposals())
def test_queries_before_every_point_get_zero(kind: str) -> None:
    kernel, u = mlp(1, is_causal=True), signal(N)
    times = torch.linspace(0, 1, N, dtype=torch.float64)
    early = Sequence(times=torch.tensor([-2.0, -1.0, 0.5], dtype=torch.float64))
    op = plain(kernel, MonteCarlo(4, **proposals(dims=1)[kind]))
    out = op(u, Sequence(times=times), query=signal(3), query_domain=early)
    assert (out[:, :2] == 0).all()
    assert out.isfinite().all()


def test_the_loss_is_minimal_at_the_target_and_the_papers_loss_is_not() -> None:
    target = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    logits = target.log().requires_grad_()
    drawn = torch.multinomial(target, 400_000, replacement=True).view(4000, 100)
    (grad,) = torch.autograd.grad(cross_entropy(target[drawn], logits.log_softmax(0)[drawn]), logits)
    assert grad.abs().max() < 3e-3
    (collapsing,) = torch.autograd.grad(
        -(target[drawn] / target[drawn].sum(-1, keepdim=True) * logits.log_softmax(0)[drawn]).sum(-1).mean(), logits
    )
    assert collapsing.argmin() == 3  # minimising it makes the most likely point even more likely
    assert collapsing.abs().max() > 0.1


class Bump(Kernel):
    """κ = exp(-‖x - y‖² / 2ℓ²) I, times a factor that is large near one position."""

    pos_dim, is_causal, reads_query = 2, False, False

    def __init__(self, length: float, place: float | None = None) -> None:
        super().__init__()
        self.in_dim = self.out_dim = 2
        self.length, self.place = length, place

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        queries = domain if query_domain is None else query_domain
        scale = torch.exp(-domain.displacement(queries.pos).square().sum(-1) / (2 * self.length**2))
        if self.place is not None:
            scale = scale * torch.exp(-(domain.pos - self.place).square().sum(-1) / 0.01)[..., None, :]
        scale = scale if scale.ndim == 3 else scale[None]
        return scale.to(u.dtype)[..., None, None] * torch.eye(2, dtype=u.dtype)


def variance(kernel: Kernel, quadrature: Quadrature, u: Tensor, domain: Domain, repeats: int = 250) -> float:
    """Variance of the sum, added over all queries and channels."""
    op = plain(kernel, quadrature)
    with torch.no_grad():
        draws = op(u.expand(repeats, -1, -1), domain)
        return float((draws - op.with_quadrature(None)(u, domain)).square().sum() / repeats)


@pytest.mark.parametrize("per_query", [False, True])
def test_the_variance_equals_its_formula_and_falls_as_one_over_m(per_query: bool) -> None:
    kernel, domain = Bump(0.3), scattered(20, weights=torch.rand(20, dtype=torch.float64) / 20)
    u = signal(20, 1, channels=2)
    values = torch.einsum("bqkoi,bki->bqko", kernel.matrix(u, domain), u)
    total = domain.weights.sum()
    second = (domain.weights[:, None] * total * values.square()).sum(2)
    single = (second - plain(kernel)(u, domain).square()).sum()  # eq. 208 with ω in it, for p ∝ ω
    for samples in (4, 8, 16):
        found = variance(kernel, MonteCarlo(samples, per_query=per_query), u, domain, repeats=3000)
        assert found == pytest.approx(float(single) / samples, rel=0.1)


@pytest.mark.parametrize("per_query", [False, True])
def test_stratified_draws_of_a_smooth_integrand_vary_less(per_query: bool) -> None:
    kernel, domain = Bump(0.4), Grid(12, 12)
    u = torch.ones(1, 144, 2, dtype=torch.float64)
    free, strata, lattice = (
        variance(kernel, MonteCarlo(16, per_query=per_query, draw=draw), u, domain)
        for draw in ("independent", "stratified", "quasi_random")
    )
    assert strata < 0.5 * free
    assert lattice < 0.5 * free


def trained(quadrature: MonteCarlo, kernel: Kernel, u: Tensor, domain: Domain, steps: int = 150) -> MonteCarlo:
    """The quadrature after training its proposal on the collected loss."""
    op = plain(kernel, quadrature)
    optimizer = torch.optim.Adam(quadrature.parameters(), lr=4e-2)
    for _ in range(steps):
        with collect_auxiliary_losses() as losses:
            op(u, domain)
        optimizer.zero_grad()
        sum(losses, torch.zeros(())).backward()
        optimizer.step()
    return quadrature


def test_a_learned_proposal_of_each_query_halves_the_variance_of_a_local_kernel() -> None:
    kernel, domain = Bump(0.08), Grid(10, 10)
    u = signal(100, 1, channels=2).abs()
    uniform = variance(kernel, MonteCarlo(8, per_query=True), u, domain)
    learned = trained(MonteCarlo(8, PairProposal(2, 2).double(), num_targets=32), kernel, u, domain)
    assert variance(kernel, learned, u, domain) < 0.5 * uniform


def test_a_learned_shared_proposal_halves_the_variance_of_a_kernel_concentrated_at_one_position() -> None:
    kernel, domain = Bump(0.5, place=0.3), Grid(10, 10)
    u = signal(100, 1, channels=2).abs()
    uniform = variance(kernel, MonteCarlo(8), u, domain)
    learned = trained(MonteCarlo(8, KeyProposal(2, 2).double(), num_targets=32), kernel, u, domain)
    assert variance(kernel, learned, u, domain) < 0.5 * uniform


@pytest.mark.parametrize("kind", ["shared, learned", "per query, learned"])
def test_the_auxiliary_loss_has_gradients_only_for_the_proposal(kind: str) -> None:
    kernel, u, domain = mlp(), signal(N).requires_grad_(), scattered(N)
    quadrature = MonteCarlo(5, **proposals()[kind])
    op = plain(kernel, quadrature)
    with collect_auxiliary_losses() as losses:
        op(u, domain)
    assert len(losses) == 1
    of_proposal, others = list(quadrature.parameters()), [u, *kernel.parameters()]
    assert all(g is None for g in torch.autograd.grad(losses[0], others, allow_unused=True, retain_graph=True))
    assert any(
        g.abs().max() > 0 for g in torch.autograd.grad(losses[0], of_proposal, allow_unused=True) if g is not None
    )
    task = op(u, domain).square().sum()
    assert all(g is None for g in torch.autograd.grad(task, of_proposal, allow_unused=True))


@pytest.mark.parametrize("kind", ["shared, learned", "per query, learned"])
def test_collecting_losses_does_not_change_the_gradient_of_the_task(kind: str) -> None:
    kernel, u, domain = mlp(), signal(N), scattered(N)
    op = plain(kernel, MonteCarlo(5, **proposals()[kind]))
    found = []
    for collects in (False, True):
        torch.manual_seed(4)
        op.zero_grad()
        if collects:
            with collect_auxiliary_losses() as losses:
                task = op(u, domain).square().sum()
            (task + 10 * sum(losses, torch.zeros(()))).backward()
        else:
            op(u, domain).square().sum().backward()
        found.append([p.grad.clone() for p in kernel.parameters() if p.grad is not None])
    assert found[0]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_there_is_no_auxiliary_loss_in_eval_mode_or_without_a_proposal() -> None:
    kernel, u, domain = mlp(), signal(N), scattered(N)
    with collect_auxiliary_losses() as losses:
        plain(kernel, MonteCarlo(5))(u, domain)
        for evaluation in ("anchors", "draws"):
            learned = MonteCarlo(5, **proposals()["shared, learned"], at_evaluation=evaluation)
            plain(kernel, learned).eval()(u, domain)
    assert losses == []


@pytest.mark.parametrize("samples", [N, 5 * N])
def test_as_many_samples_as_points_fall_back_to_the_exact_sum_with_a_warning(samples: int) -> None:
    kernel, u, domain = mlp(), signal(N), scattered(N)
    op = plain(kernel, MonteCarlo(samples))
    with pytest.warns(UserWarning, match=f"{samples} samples of a domain of {N} points"):
        torch.testing.assert_close(op(u, domain), plain(kernel)(u, domain))
    assert "no fewer" in op.explain(u, domain)


def test_eval_mode_sums_at_anchors_by_default() -> None:
    kernel, u, domain = mlp(), signal(N), scattered(N)

    def in_eval(**options: Any) -> Tensor:
        torch.manual_seed(0)
        return plain(kernel, MonteCarlo(5, **options)).eval()(u, domain)

    assert torch.equal(in_eval(), plain(kernel, Anchors(5))(u, domain))
    torch.testing.assert_close(in_eval(at_evaluation=Full()), plain(kernel)(u, domain))
    near = Neighbourhood(num_neighbours=3)
    assert torch.equal(in_eval(at_evaluation=near), plain(kernel, near)(u, domain))
    drawn = in_eval(at_evaluation="draws")
    torch.manual_seed(0)
    assert torch.equal(drawn, plain(kernel, MonteCarlo(5))(u, domain))
    causal, line = mlp(1, is_causal=True), Sequence(N)
    torch.testing.assert_close(plain(causal, MonteCarlo(5)).eval()(u, line), plain(causal)(u, line))


@pytest.mark.parametrize("size", [1e4, -1e4, 1e30])
@pytest.mark.parametrize("kind", ["shared, learned", "per query, learned"])
def test_logits_that_underflow_leave_every_number_finite(size: float, kind: str) -> None:
    kernel, u, domain = mlp(), signal(N), scattered(N, mask=MASK)
    quadrature = MonteCarlo(5, **proposals()[kind])
    with torch.no_grad():
        for parameter in quadrature.parameters():
            parameter.mul_(size)
    op = plain(kernel, quadrature)
    with collect_auxiliary_losses() as losses:
        out = op(u, domain)
    (out.sum() + losses[0]).backward()
    assert out.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in op.parameters())


@pytest.mark.parametrize("kind", proposals())
def test_one_seed_gives_one_result(kind: str) -> None:
    kernel, u, domain = mlp(), signal(N), scattered(N)
    op = plain(kernel, MonteCarlo(5, **proposals()[kind]))
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        found.append(op(u, domain))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("kind", proposals())
def test_nothing_to_integrate_gives_zero_with_zero_gradient(kind: str) -> None:
    kernel, u = mlp(), signal(N).requires_grad_()
    op = plain(kernel, MonteCarlo(5, **proposals()[kind]))
    out = op(u, scattered(N, mask=torch.zeros(2, N, dtype=torch.bool)))
    assert (out == 0).all()
    out.sum().backward()
    assert all((p.grad == 0).all() for p in (u, *kernel.parameters()) if p.grad is not None)


@pytest.mark.parametrize("kind", proposals())
def test_no_queries(kind: str) -> None:
    kernel, u, domain = mlp(), signal(N), scattered(N)
    op = plain(kernel, MonteCarlo(5, **proposals()[kind]))
    with collect_auxiliary_losses() as losses:
        assert op(u, domain, query=u[:, :0], query_domain=scattered(0)).shape == (2, 0, 6)
    assert losses == []


@pytest.mark.parametrize("kind", ["shared, learned", "per query, learned", "per query"])
def test_single_precision_and_autocast(kind: str) -> None:
    settings = proposals()[kind]
    if "proposal" in settings:
        settings["proposal"] = settings["proposal"].float()
    kernel, u, domain = mlp().float(), signal(N).float(), scattered(N)
    op = plain(kernel, MonteCarlo(5, **settings))
    torch.manual_seed(0)
    full = op(u, domain)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = op(u, domain)
    assert low.isfinite().all()
    if "proposal" not in settings:  # otherwise rounded probabilities lead to other points
        assert (low.float() - full).norm() < 2e-2 * full.norm()


def test_attention_and_sums_of_kernels_are_summed_at_nodes() -> None:
    u, domain = signal(N), scattered(N)
    attention = randomise(kernels.Attention(6, 2).double())
    for kernel in (attention, attention + mlp(), kernels.Scaled(mlp(), 0.5).double()):
        op = plain(kernel, MonteCarlo(N - 1, per_query=True))
        with torch.no_grad():
            draws = torch.stack([op(u, domain) for _ in range(100)])
        exact = plain(kernel)(u, domain)
        assert (
            draws.mean(0) - exact
        ).norm() < 0.4 * exact.norm()  # consistent but biased: a quotient has a bias of order 1 / M


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match="num_samples must be at least 1; got 0"):
        MonteCarlo(0)
    with pytest.raises(TypeError, match="num_samples must be a whole number; got '8'"):
        MonteCarlo("8")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="loss_weight must be a number; got None"):
        MonteCarlo(4, loss_weight=None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="draw is 'independent', 'stratified' or 'quasi_random'; got 'sobol'"):
        MonteCarlo(4, draw="sobol")  # pyright: ignore[reportArgumentType]
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match=r"uniform_share must be in \(0, 1\)"):
            MonteCarlo(4, KeyProposal(2, 2), uniform_share=share)
    with pytest.raises(ValueError, match="loss_weight must be >= 0"):
        MonteCarlo(4, loss_weight=-1.0)
    with pytest.raises(ValueError, match="num_targets must be at least 1"):
        MonteCarlo(4, num_targets=0)
    with pytest.raises(ValueError, match="per_query=True needs a PairProposal; got a KeyProposal"):
        MonteCarlo(4, KeyProposal(6, 2), per_query=True)
    with pytest.raises(ValueError, match="per_query=False needs a KeyProposal; got a PairProposal"):
        MonteCarlo(4, PairProposal(6, 2), per_query=False)
    with pytest.raises(TypeError, match="proposal is a KeyProposal, a PairProposal or None"):
        MonteCarlo(4, torch.nn.Linear(2, 2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="at_evaluation is a quadrature"):
        MonteCarlo(4, at_evaluation="full")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="the proposal has 3 heads but the nodes of this kernel can differ between 2"):
        plain(mlp(), MonteCarlo(4, KeyProposal(6, 2, 3).double()))(signal(N), scattered(N))
    low_rank = kernels.LowRankMLP(6, 2, 2, rank=2, width=4).double()
    with pytest.raises(ValueError, match="of this kernel are the same for all heads; build it with num_heads=1"):
        plain(low_rank, MonteCarlo(4, KeyProposal(6, 2, 2).double()))(signal(N), scattered(N))
    for proposal in (KeyProposal(5, 2), PairProposal(6, 3), PairProposal(6, 2, query_dim=4)):
        with pytest.raises(ValueError, match=r"the proposal was built for . channels at positions with . coordinates"):
            plain(mlp(), MonteCarlo(4, proposal.double()))(signal(N), scattered(N))
    with pytest.raises(ValueError, match="rank must be at least 1; got 0"):
        PairProposal(6, 2, rank=0)


def test_recomputed_nodes_use_the_parameters_of_functional_call() -> None:
    """Chunks are recomputed in the backward pass, after `functional_call` has restored the module's parameters."""
    op, u, domain = plain(mlp(), Neighbourhood(num_neighbours=3)), signal(9), scattered(9)
    state = {name: 1.5 * value.detach() for name, value in op.named_parameters()}
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    out = torch.func.functional_call(op, leaves, (u, domain)).square().sum()
    got = torch.autograd.grad(out, list(leaves.values()), allow_unused=True, materialize_grads=True)
    op.load_state_dict(state, strict=False)
    expected = torch.autograd.grad(
        op(u, domain).square().sum(), list(op.parameters()), allow_unused=True, materialize_grads=True
    )
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


DRAWS: tuple[Draw, ...] = ("independent", "stratified", "quasi_random")


@pytest.mark.parametrize("draw", DRAWS)
def test_levels_are_ascending_and_have_uniform_density(draw: Draw) -> None:
    level = levels(4000, 3, num_samples=5, draw=draw, device=torch.device("cpu"))
    assert level.shape == (4000, 3, 5)
    assert (level >= 0).all()
    assert (level < 1).all()
    assert (level.diff(dim=-1) >= 0).all()
    counts = torch.histc(level, bins=10, min=0, max=1) / level.numel()
    torch.testing.assert_close(counts, torch.full_like(counts, 0.1), atol=4e-3, rtol=0)


def test_each_stratum_has_one_level() -> None:
    level = levels(100, num_samples=7, draw="stratified", device=torch.device("cpu"))
    torch.testing.assert_close((level * 7).floor(), torch.arange(7.0, dtype=torch.float64).expand(100, -1))
    lattice = levels(100, num_samples=7, draw="quasi_random", device=torch.device("cpu"))
    torch.testing.assert_close(lattice.diff(dim=-1), torch.full((100, 6), 1 / 7, dtype=torch.float64))
    assert lattice[:, 0].std() > 0.03


@pytest.mark.parametrize("draw", DRAWS)
def test_points_are_drawn_in_proportion_to_their_mass(draw: Draw) -> None:
    mass = torch.tensor([0.0, 0.5, 0.0, 2.0, 1.0, 0.0, 0.25, 0.0], dtype=torch.float64)
    running = mass.cumsum(0).expand(20000, -1)
    level = levels(20000, num_samples=3, draw=draw, device=torch.device("cpu"))
    index = invert(running, level, running[..., -1:])
    counts = torch.bincount(index.flatten(), minlength=8).double() / index.numel()
    torch.testing.assert_close(counts, mass / mass.sum(), atol=6e-3, rtol=0)
    assert (counts[mass == 0] == 0).all()


@given(st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 1.0, 1e9]), min_size=1, max_size=9), st.integers(0, 2**32))
def test_points_without_mass_are_never_drawn(masses: list[float], seed: int) -> None:
    mass = torch.tensor(masses, dtype=torch.float64)
    if mass.sum() == 0:
        return
    generator = torch.Generator().manual_seed(seed)
    level = torch.cat([torch.rand(50, generator=generator, dtype=torch.float64), torch.tensor([0.0, 1 - 2**-53])])
    running = mass.cumsum(0)
    assert (mass[invert(running, level, running[-1:])] > 0).all()


def test_a_smaller_total_excludes_later_points() -> None:
    mass = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    running = mass.cumsum(0)[None]
    level = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)[None, None].expand(1, 2, 3)
    total = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
    assert invert(running, level, total).tolist() == [[[0, 0, 0], [0, 2, 2]]]


def test_the_curve_keeps_neighbours_together() -> None:
    side = torch.arange(8, dtype=torch.float64)
    pos = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).view(1, 64, 2)
    order = curve_order(pos)
    assert sorted(order[0].tolist()) == list(range(64))
    quarters = pos[0, order[0]].view(4, 16, 2)  # a Morton curve visits the quarters of the square one after another
    assert (quarters.amax(1) - quarters.amin(1) == 3).all()


@pytest.mark.parametrize("dims", [1, 3, 7, 70])
def test_the_curve_orders_any_dimension_and_coinciding_points(dims: int) -> None:
    pos = torch.rand(2, 11, dims, dtype=torch.float64)
    pos[1] = 0.25
    order = curve_order(pos)
    assert sorted(order[0].tolist()) == list(range(11))
    assert order[1].tolist() == list(range(11))
    if dims == 1:
        assert order[0].tolist() == pos[0, :, 0].argsort().tolist()


@pytest.mark.parametrize(
    "quadrature",
    [
        Neighbourhood(num_neighbours=2),
        Neighbourhood(radius=0.3, normalise=True),
        MonteCarlo(3, per_query=True, at_evaluation="draws"),
        MonteCarlo(3, PairProposal(6, 1).double(), draw="stratified", at_evaluation="draws"),
    ],
    ids=["nearest", "local mean", "drawn", "drawn, learned"],
)
def test_the_past_of_a_filter_is_decided_by_positions(quadrature: Quadrature) -> None:
    """Points may have any order, for example in a union, and queries may lie between existing points."""
    kernel = randomise(kernels.ContinuousConvolution(6, 3, width=5, is_causal=True).double())
    pos, order = torch.rand(N, 1, dtype=torch.float64), torch.randperm(N)
    pos, u, queries = pos.sort(0).values, signal(N), scattered(4, dims=1)
    found = []
    for index in (torch.arange(N), order):
        domain = Points(pos[index], weights=WEIGHTS[index], mask=MASK[index])
        torch.manual_seed(2)
        found.append(plain(kernel, quadrature)(u[:, index], domain, query=signal(4), query_domain=queries))
    torch.testing.assert_close(found[0], found[1])
    at_points = plain(kernel, Neighbourhood(radius=2.0))(u[:, order], Points(pos[order]))
    torch.testing.assert_close(at_points, plain(kernel)(u[:, order], Points(pos[order])))


@pytest.mark.parametrize("per_query", [False, True])
def test_nodes_of_a_sequence_keep_their_indices(per_query: bool) -> None:
    kernel = randomise(kernels.Attention(6, 1, rotary=kernels.Rotary(10.0)).double())
    quadrature, u = MonteCarlo(4, per_query=per_query), signal(N)
    nodes = quadrature.nodes(integral := Integral(kernel, u, Sequence(N)))
    assert isinstance(nodes, SharedNodes | NodesPerQuery)
    shape = (2, N, nodes.index.shape[-1])
    density = torch.zeros(2, N, N, dtype=torch.float64)
    density.scatter_add_(2, nodes.index.expand(shape), nodes.weights.double().expand(shape))
    weighed = Sequence(N).weigh_pairs(density.log()[:, None])
    torch.testing.assert_close(nodes.integrate(Dense(), integral), Dense().integrate(Integral(kernel, u, weighed)))
    operator = plain(kernel, quadrature).eval()
    torch.testing.assert_close(operator(u), plain(kernel)(u))
