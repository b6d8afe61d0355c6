"""The tiled sum over Yat scores equals the dense oracle under all masks, weights and normalisers."""

import copy
import dataclasses

import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Domain, Points, Sequence
from fredholm.evaluation import AUTO, Dense, Integral, ScoreTiled, StepLoop, Weighted
from fredholm.kernels import (
    Kernel,
    Rotary,
    Softermax,
    Softmax,
    SoftSigmoid,
    SoftTanh,
    Unnormalised,
    Yat,
    YatAttention,
)
from fredholm.kernels.attention.scored import Elementwise
from tests.contracts.routes import (
    TOLERANCE,
    changed,
    check_autocast,
    check_chunks,
    check_route,
    compare,
    randomise,
    results,
)
from tests.contracts.weighed_domains import DOMAINS, PAIRS, domain, uniform
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
SMALL = ScoreTiled(tile_elements=6)
OPTIONS = {
    "self": {},
    "causal": {"is_causal": True},
    "bias": {"bias": True},
    "grouped queries": {"num_kv_heads": 2, "learn_epsilon": True},
    "causal, one key head": {"num_kv_heads": 1, "is_causal": True, "epsilon": 1.0},
    "softermax, causal": {"normaliser": Softermax(2.0, 1e-2), "is_causal": True},
    "softermax of power 1": {"normaliser": Softermax()},
    "soft-sigmoid": {"normaliser": SoftSigmoid(1.5)},
    "soft-tanh, causal": {"normaliser": SoftTanh(), "is_causal": True},
    "no normaliser": {"normaliser": Unnormalised()},
}
NORMALISERS = [Softmax(), Softermax(), Softermax(2.0), SoftSigmoid(1.5), SoftTanh(), Unnormalised()]


def problem(options: dict, where: Domain, dtype: torch.dtype = torch.float64, embed_dim: int = 8) -> Integral:
    torch.manual_seed(1)
    kernel = randomise(YatAttention(embed_dim, embed_dim // 2, **options).to(dtype))
    u = torch.randn(2, where.num_points, embed_dim, dtype=dtype)
    return Integral(kernel, u if where.mask is None else torch.where(where.mask[..., None], u, 0.0), where)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of three queries, and of 3 x 2 pairs with `SMALL`, so that small problems fill many tiles."""
    monkeypatch.setattr("fredholm.evaluation.pair_tiles.PairTiles.ROWS", 3)


@pytest.mark.sampled
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", DOMAINS + PAIRS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_tiles_equal_dense(options, name):
    check_route(SMALL, problem(options, domain(name)))


@pytest.mark.parametrize("name", ["sequence", "masked", "pairs weighed per head"])
def test_one_tile_equals_dense(name):
    check_route(ScoreTiled(), problem({"is_causal": True}, domain(name)))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", ["sequence", "masked", "pairs weighed per head"])
def test_tiles_of_several_heads_equal_dense(name):
    check_route(ScoreTiled(tile_elements=50), problem({"is_causal": True}, domain(name)))


@pytest.mark.pairs
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", ["sequence", "masked", "pairs weighed per head"])
@pytest.mark.parametrize("normaliser", [Softmax(), Softermax(), Softermax(2.0, 1e-2)], ids=str)
@pytest.mark.parametrize("largest", [0.0, 9.0])
def test_rows_of_large_sums_are_computed_relative_to_a_reference(monkeypatch, largest, normaliser, name):
    monkeypatch.setattr("fredholm.evaluation.attention.score_tiled.LARGEST", largest)
    check_route(SMALL, problem({"normaliser": normaliser, "is_causal": True}, domain(name)))


@pytest.mark.usefixtures("small_tiles")
def test_rows_of_tiny_scores_keep_their_weights():
    made = problem({"normaliser": Softermax(4.0, 1e-37), "epsilon": 1.0}, Sequence(5), torch.float32)
    made = changed(made, u=1e-3 * torch.randn(2, 5, 8))  # fourth powers of these scores underflow in float32
    found, expected = (route.integrate(made) for route in (SMALL, Dense()))
    torch.testing.assert_close(found, expected, atol=0.0, rtol=1e-4)
    assert bool((expected != 0).any())


@pytest.mark.parametrize("route", [ScoreTiled(), ScoreTiled(tile_elements=66)], ids=["one tile", "many"])
@pytest.mark.parametrize("where", ["self", "causal", "masked"])
def test_gradients_are_as_precise_as_those_of_dense_where_one_key_dominates(where, route):
    # slopes of scores are 10⁶ here, and g·v - δ is 0
    there = Sequence(33, mask=torch.arange(33) % 3 > 0 if where == "masked" else None)
    kernel = YatAttention(2, is_causal=where == "causal")
    for seed in range(3):
        u = 30 * torch.randn(2, 33, 2, generator=torch.Generator().manual_seed(seed))
        right = results(Dense(), Integral(copy.deepcopy(kernel).double(), u.double(), there))
        dense, tiled = (results(each, Integral(kernel, u.clone(), there)) for each in (Dense(), route))
        for name, exact in right.items():
            allowed = (dense[name] - exact).norm() + 1e-5 * exact.norm() + 1e-6
            assert (tiled[name] - exact).norm() < 20 * allowed, name


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("is_causal", [False, True])
def test_queries_elsewhere(is_causal):
    made = problem({"is_causal": is_causal}, Sequence(times=uniform(6).sort().values))
    made = changed(
        made, query=torch.randn(2, 3, 8, dtype=torch.float64), query_domain=Sequence(times=uniform(2, 3).sort().values)
    )
    check_route(SMALL, made)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", ["sequence", "times", "masked"])
def test_rotary_positions(name):
    made = problem({"rotary": Rotary(100.0), "is_causal": True}, domain(name))
    check_route(SMALL, made)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("normaliser", [None, Softmax(), Softermax(2.0)], ids=str)
@pytest.mark.parametrize("options", [{}, {"reads_bias": True}, {"num_units": 7, "learn_epsilon": True}], ids=str)
def test_prototypes(options, normaliser):
    torch.manual_seed(2)
    kernel = Yat(5, 3, normaliser=normaliser, **options).double()
    prototypes = Points(torch.randn(7, 1, dtype=torch.float64), weights=torch.rand(7, dtype=torch.float64))
    u = torch.randn(2, 7, kernel.in_dim, dtype=torch.float64)
    query = torch.randn(2, 4, 5, dtype=torch.float64)
    check_route(SMALL, Integral(kernel, u, prototypes, query, Sequence(4)))


def test_gradients_of_pair_weights():
    made = problem({"is_causal": True}, Sequence(5))
    for heads in (1, 4):
        bias = torch.randn(2, heads, 5, 5, dtype=torch.float64)
        grads = []
        for route in (Dense(), SMALL):
            leaf = bias.clone().requires_grad_()
            out = route.integrate(Integral(made.kernel, made.u, Sequence(5).weigh_pairs(leaf)))
            grads.append(torch.autograd.grad(out.sin().sum(), leaf)[0])
        torch.testing.assert_close(*grads)
        assert grads[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["masked", "weights"])
def test_low_precision(dtype, name):
    exact, rough = (problem({"is_causal": True}, domain(name), kind) for kind in (torch.float64, dtype))
    rough.kernel.load_state_dict(exact.kernel.state_dict())
    exact.kernel.load_state_dict(rough.kernel.state_dict())
    exact = changed(exact, u=rough.u.double())
    got, expected = results(SMALL, rough), results(Dense(), exact)
    compare({"integral": got["integral"]}, {"integral": expected["integral"]}, 2 * TOLERANCE[dtype])


def test_autocast_computes_scores_in_float32():
    check_autocast(SMALL, randomise(YatAttention(8, 4)))


@pytest.mark.parametrize("options", [{}, {"rotary": Rotary(50.0)}, {"normaliser": Softermax(2.0)}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_and_chunks_equal_the_whole_sequence(options, dtype):
    kernel = randomise(YatAttention(8, 4, num_kv_heads=2, is_causal=True, **options).to(dtype))
    u = torch.randn(2, 7, 8, dtype=dtype)
    check_chunks(SMALL, kernel, u, 2e-6 if dtype == torch.float32 else 1e-12)


def test_chunks_at_their_times_equal_the_whole_sequence():
    kernel = randomise(YatAttention(8, 2, rotary=Rotary(50.0), is_causal=True).double())
    u, times = torch.randn(2, 7, 8, dtype=torch.float64), uniform(7).sort().values
    check_chunks(SMALL, kernel, u, 1e-12, times)


def test_autocast_keeps_the_cache_in_its_dtype():
    kernel = randomise(YatAttention(8, 4, is_causal=True))
    u = torch.randn(2, 3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        empty = kernel.initial_state(2)
        assert kernel.continued_form(u, Sequence(3), empty).key.dtype == torch.bfloat16
        out, state = SMALL.run(Integral(kernel, u, Sequence(3)), empty)
        stepped, after = kernel.step(u[:, 0], state)
    assert {t.dtype for t in (out, stepped, *state, *after)} == {torch.bfloat16}


@pytest.mark.parametrize("normaliser", NORMALISERS, ids=str)
def test_nan_stays_nan(normaliser):
    kernel = randomise(YatAttention(8, 2, normaliser=normaliser, is_causal=True))
    u = torch.randn(1, 5, 8)
    u[:, 2] = torch.nan
    for route in (Dense(), SMALL):
        assert bool(route.integrate(Integral(kernel, u, Sequence(5)))[:, 2:].isnan().all())
    stepped, _ = StepLoop().run(Integral(kernel, u, Sequence(5)))
    assert bool(stepped[:, 2:].isnan().all())


def test_rotary_scores_depend_on_differences_of_positions():
    kernel = randomise(YatAttention(8, 2, rotary=Rotary(30.0)).double())
    u = torch.randn(1, 6, 8, dtype=torch.float64)
    times = torch.rand(6, dtype=torch.float64).sort().values
    here, later = (SMALL.integrate(Integral(kernel, u, Sequence(times=times + shift))) for shift in (0.0, 7.3))
    torch.testing.assert_close(here, later)
    moved = SMALL.integrate(Integral(kernel, u, Sequence(times=2 * times)))
    assert not torch.allclose(here, moved)


@pytest.mark.parametrize("normaliser", [Softmax(), Softermax()], ids=str)
def test_a_query_without_mass_has_result_zero_and_zero_gradient(normaliser):
    where = Sequence(3).weigh_pairs(torch.tensor([[True] * 3, [False] * 3, [True] * 3]))
    made = problem({"normaliser": normaliser}, where)
    made.u.requires_grad_()
    for route in (SMALL, Dense()):
        out = route.integrate(made)
        assert torch.equal(out[:, 1], torch.zeros(2, 8, dtype=torch.float64))
        grads = torch.autograd.grad(out[:, 1].sum(), [made.u, *made.kernel.parameters()], allow_unused=True)
        assert all(not grad.any() for grad in grads if grad is not None)


def test_a_hidden_key_is_not_the_reference_of_a_row():
    made = problem({}, Sequence(4, mask=torch.tensor([True, True, True, False])), torch.float32)
    made = changed(made, u=torch.randn(2, 4, 8))
    made.u[:, 3] = 1e3  # with its score as reference, all others would underflow
    check_route(SMALL, made, tolerance=1e-4)


@pytest.mark.parametrize("normaliser", [Softmax(), Softermax(2.0), SoftSigmoid(), SoftTanh(), Unnormalised()], ids=str)
def test_large_bfloat16_signals_stay_finite(normaliser):
    kernel = randomise(YatAttention(32, 2, normaliser=normaliser).bfloat16())
    u = (1e4 * torch.rand(2, 9, 32).sub(0.5).sign()).bfloat16().requires_grad_()
    out = SMALL.integrate(Integral(kernel, u, Sequence(9)))
    grads = torch.autograd.grad(out.float().square().mean().sqrt(), [u, *kernel.parameters()])
    assert all(bool(torch.isfinite(t).all()) for t in (out, *grads))


def test_gradcheck():
    made = problem({"is_causal": True, "learn_epsilon": True}, Sequence(3), embed_dim=4)
    parameters = list(made.kernel.parameters())

    def integral(u, *values):
        named = dict(zip(dict(made.kernel.named_parameters()), values, strict=True))
        return torch.func.functional_call(Applied(made.kernel), {f"kernel.{k}": v for k, v in named.items()}, (u,))

    torch.autograd.gradcheck(integral, (made.u.requires_grad_(), *parameters))


class Applied(torch.nn.Module):
    """The tiled integral on a sequence, as a module."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, u):
        return SMALL.integrate(Integral(self.kernel, u, Sequence(u.shape[1])))


@pytest.mark.slow
def test_compiles_in_one_graph():
    operator = IntegralOperator(YatAttention(8, 2, is_causal=True, rotary=Rotary(100.0)))
    u = torch.randn(2, 5, 8)
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(u), operator(u))


def test_an_operator_chooses_this_route():
    made = problem({}, Sequence(6))
    assert isinstance(AUTO.choose(made).route, ScoreTiled)


@dataclasses.dataclass(frozen=True)
class Part(Elementwise):
    """A user-defined normaliser."""

    share: float | torch.Tensor

    def numerator(self, score, reference=None):
        return score * self.share

    def slope(self, score, reference, numerator):
        return score.new_ones(()).expand_as(score) * self.share


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", ["sequence", "masked", "pairs weighed per head"])
def test_a_user_defined_normaliser_is_computed_in_tiles(name):
    made = problem({"normaliser": Part(0.3)}, domain(name))
    assert isinstance(AUTO.choose(made).route, ScoreTiled)
    check_route(SMALL, made)


def test_a_normaliser_with_other_settings_than_numbers_is_computed_in_tiles_of_queries():
    class Named(Elementwise):
        def __init__(self, name):
            self.name = name

        def numerator(self, score, reference=None):
            return score

        def slope(self, score, reference, numerator):
            raise NotImplementedError

    for normaliser in (Named("half"), Part(torch.tensor(0.5))):
        choice = AUTO.choose(problem({"normaliser": normaliser}, Sequence(4)))
        assert isinstance(choice.route, Weighted)
        assert "is no frozen dataclass of numbers" in choice.refusals["ScoreTiled"][0]


def test_refuses_float16_and_pair_weights_for_other_heads():
    made = problem({}, Sequence(5))
    with refused(TypeError, "float16", "bfloat16 or float32"):
        ScoreTiled().integrate(Integral(made.kernel.half(), made.u.half(), made.domain))
    made = problem({}, Sequence(5).weigh_pairs(torch.zeros(2, 3, 5, 5)))
    for route in (ScoreTiled(), Dense()):
        with refused(ValueError, "pair weights must be for 1 or 4 heads", "for 3"):
            route.integrate(made)


def test_a_cache_refuses_resets_and_masks():
    kernel = YatAttention(8, 4, is_causal=True)
    with refused(ValueError, "keeps neither resets nor masks"):
        ScoreTiled().run(Integral(kernel, torch.randn(1, 3, 8), Sequence(3, mask=torch.tensor([True, False, True]))))
