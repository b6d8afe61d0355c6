import copy
import threading

import pytest
import torch

from fredholm import IntegralOperator, kernels
from fredholm.domains import Grid, Points, Sequence
from fredholm.evaluation import Dense, Toeplitz
from fredholm.operators import collect_auxiliary_losses
from fredholm.quadrature.anchors import Anchors
from fredholm.quadrature.monte_carlo import MonteCarlo
from fredholm.quadrature.neighbourhood import Neighbourhood
from fredholm.quadrature.proposal import KeyProposal, PairProposal
from fredholm.quadrature.quadrature import Full, Quadrature
from tests.operators.build import gradients, operator, signal

pytestmark = pytest.mark.usefixtures("fresh_compiler")
GRID = Grid(3, 4)


def sampled() -> dict[str, Quadrature]:
    return {
        "shared": MonteCarlo(5),
        "shared, learned": MonteCarlo(5, KeyProposal(6, 2, 2).double(), draw="stratified"),
        "per query": MonteCarlo(5, per_query=True),
        "per query, learned": MonteCarlo(5, PairProposal(6, 2).double()),
        "anchors": Anchors(5),
        "nearest": Neighbourhood(num_neighbours=5),
    }


def test_both_operators_share_one_set_of_weights() -> None:
    op = operator()
    other = op.with_quadrature(Neighbourhood(num_neighbours=12))
    assert all(a is b for a, b in zip(op.parameters(), other.parameters(), strict=True))
    assert op.quadrature is None
    u = signal(12)
    torch.testing.assert_close(other(u, GRID), op(u, GRID))
    other(u, GRID).sum().backward()
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    torch.testing.assert_close(other(u, GRID), op(u, GRID))
    back = other.with_quadrature(None)
    assert back.quadrature is None
    assert other.quadrature is not None


def test_later_changes_of_one_operator_do_not_affect_the_other() -> None:
    op, u, calls = operator(), signal(12), []
    other = op.with_quadrature(Full())
    other.register_forward_hook(lambda *_: calls.append("other"))
    other.register_parameter("bias", None)
    other.eval()
    op(u, GRID)
    assert calls == []
    assert op.bias is not None
    assert op.training
    assert op.quadrature is None


def test_the_quadrature_is_a_submodule_of_the_operator() -> None:
    op = operator().with_quadrature(sampled()["shared, learned"])
    assert any(name.startswith("quadrature.proposal.") for name, _ in op.named_parameters())
    assert any(name.startswith("quadrature.proposal.") for name in op.state_dict())
    assert not op.eval().quadrature.training  # pyright: ignore[reportOptionalMemberAccess]
    twin = copy.deepcopy(op)
    assert twin.quadrature is not op.quadrature
    built = IntegralOperator(op.kernel, quadrature=Full())
    assert isinstance(built.quadrature, Full)


def test_explain_names_the_nodes_and_the_route_and_draws_nothing() -> None:
    u = signal(12)
    for name, quadrature in sampled().items():
        op = operator().with_quadrature(quadrature)
        state = torch.get_rng_state()
        text = op.explain(u, GRID)
        assert torch.equal(state, torch.get_rng_state()), name
        first, second, *_ = text.split("\n")
        assert first.startswith(f"{quadrature.name}: ")
        assert "5" in first
        assert "12 points" in first
        assert second.startswith(("Tiled: ", "ListedPerceptron: "))
    assert "all 12 points" in operator().with_quadrature(Full()).explain(u, GRID)


def test_a_chosen_route_must_fit_the_nodes() -> None:
    op, u = operator(evaluation=Toeplitz()), signal(12)
    op(u, GRID)
    with pytest.raises(ValueError, match="Toeplitz refuses this integral: queries and keys do not hold the same"):
        op.with_quadrature(MonteCarlo(5))(u, GRID)
    torch.manual_seed(0)
    tiled = operator().with_quadrature(MonteCarlo(5))(u, GRID)
    torch.manual_seed(0)
    torch.testing.assert_close(operator(evaluation=Dense()).with_quadrature(MonteCarlo(5))(u, GRID), tiled)


def test_integrals_that_cannot_be_sampled_are_refused() -> None:
    for kernel in (kernels.Convolution(6, 6, 3, 1, padding=1), kernels.LinearRNN(6, 4), kernels.Pointwise(6, 6)):
        with pytest.raises(ValueError, match=f"{type(kernel).__name__} is not a function of two points alone"):
            IntegralOperator(kernel, quadrature=MonteCarlo(5))
        with pytest.raises(ValueError, match="is not a function of two points alone"):
            IntegralOperator(kernel + kernels.Pointwise(6, 6)).with_quadrature(MonteCarlo(5))
    with pytest.raises(TypeError, match="quadrature must be a Quadrature or None; got int"):
        operator().with_quadrature(128)  # pyright: ignore[reportArgumentType]
    u = signal(12)
    pairs = GRID.weigh_pairs(torch.zeros(12, 12, dtype=torch.float64))
    with pytest.raises(ValueError, match="a quadrature samples one measure for all queries"):
        operator().with_quadrature(MonteCarlo(5))(u, pairs)
    line = IntegralOperator(kernels.LinearAttention(6, 2, is_causal=True).double(), quadrature=MonteCarlo(5))
    with pytest.raises(ValueError, match="scan goes through every point of a sequence"):
        line.scan(u, Sequence(12))


@pytest.mark.parametrize("name", ["anchors", "nearest", "within"])
def test_fixed_nodes_in_lower_precision(name: str) -> None:
    chosen = (sampled() | {"within": Neighbourhood(radius=0.4)})[name]
    pos = torch.rand(
        12, 2, generator=torch.Generator().manual_seed(0)
    )  # random, so that no two distances tie as on a grid
    exact = operator().with_quadrature(chosen)(signal(12), Points(pos.double()))
    single, cloud = operator(dtype=torch.float32).with_quadrature(chosen), Points(pos)
    got = single(signal(12).float(), cloud)
    assert (got - exact).norm() < 1e-5 * exact.norm()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = single(signal(12).float(), cloud)
    assert (low.double() - exact).norm() < 2e-2 * exact.norm()


def test_signals_that_are_views_of_others() -> None:
    u = torch.randn(2, 6, 24, dtype=torch.float64).mT[:, ::2]
    assert not u.is_contiguous()
    for quadrature in sampled().values():
        op = operator().with_quadrature(quadrature)
        found = []
        for each in (u, u.contiguous()):
            torch.manual_seed(0)
            found.append(op(each, GRID))
        torch.testing.assert_close(*found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "per query, learned" else pytest.mark.long) for name in sampled()],
)
def test_compiles_in_one_graph_with_the_same_results_and_losses(name: str) -> None:
    nodes = sampled() | {"shared, learned": MonteCarlo(5, KeyProposal(6, 2).double(), draw="stratified")}
    attention = IntegralOperator(kernels.Attention(6, 2)).double()  # has one measure for all heads
    op, u = attention.with_quadrature(nodes[name]), signal(12)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    found = []
    for call in (op, compiled):
        op.zero_grad()
        leaf = u.clone().requires_grad_()
        torch.manual_seed(0)
        with collect_auxiliary_losses() as losses:
            out = call(leaf, GRID)
        out.square().sum().backward()
        assert bool(losses) == ("learned" in name)
        grads = {key: grad.clone() for key, grad in gradients(op, leaf).items()}
        found.append({"out": out.detach(), "loss": sum(losses), **grads})
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, msg=lambda text, key=key: f"{key}: {text}")


def test_the_innermost_collector_collects() -> None:
    op, u = operator().with_quadrature(sampled()["shared, learned"]), signal(12)
    with collect_auxiliary_losses() as outer:
        op(u, GRID)
        with collect_auxiliary_losses() as inner:
            op(u, GRID)
            op(u, GRID)
    op(u, GRID)
    assert (len(outer), len(inner)) == (1, 2)


def test_each_thread_collects_its_own() -> None:
    op, u = operator().with_quadrature(sampled()["shared, learned"]), signal(12)
    begun, counts = threading.Barrier(3), {}

    def work(name: str, calls: int) -> None:
        with collect_auxiliary_losses() as own:
            begun.wait(timeout=60)
            for _ in range(calls):
                op(u, GRID)
            begun.wait(timeout=60)
        counts[name] = len(own)

    threads = [threading.Thread(target=work, args=(str(calls), calls)) for calls in (1, 3)]
    for thread in threads:
        thread.start()
    begun.wait(timeout=60)
    op(u, GRID)  # outside of any collector
    begun.wait(timeout=60)
    for thread in threads:
        thread.join()
    assert counts == {"1": 1, "3": 3}
