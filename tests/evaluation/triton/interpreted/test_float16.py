"""The fused routes in float16 stay near the float64 oracle, forward and in every gradient."""

import copy

import pytest
import torch

from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import AUTO, Dense, Evaluation, Integral, TritonFeatureSum, TritonTiled, TritonYat
from fredholm.evaluation.attention.score_tiled import ScoreInputs, plain_scores
from fredholm.evaluation.triton import perceptron, yat_tiled
from fredholm.evaluation.triton.tuning import launch
from fredholm.kernels import MLP, Kernel, KernelInputs, LowRankMLP, SeparableMLP, Softermax, YatAttention
from fredholm.kernels.attention.yat import YatScore
from tests.contracts.routes import TOLERANCE, changed, compare, randomise, results
from tests.contracts.small_perceptron import small_perceptron

pytestmark = pytest.mark.usefixtures("poisoned_memory")
HALF = torch.float16
SEEDED = torch.Generator().manual_seed(0)
MASK = torch.rand(2, 19, generator=SEEDED) > 0.4
WEIGHTS = torch.rand(2, 19, generator=SEEDED)
DOMAINS: dict[str, Domain] = {
    "times, weights and mask per entry": Sequence(
        times=torch.rand(2, 19, generator=SEEDED).sort().values, weights=WEIGHTS, mask=MASK
    ),
    "times": Sequence(times=torch.rand(5, generator=SEEDED).sort().values),
    "token and grid": Union(Points(torch.full((1, 1), 0.5)), Grid(4)),
    "one point": Sequence(1),
    "nothing exists": Sequence(3, mask=torch.zeros(2, 3, dtype=torch.bool)),
    "no point": Sequence(0),
}


def kernel_of(kind: str, **options) -> tuple[Kernel, Evaluation]:
    """A kernel of odd sizes and its fused route."""
    sizes = small_perceptron(width=5, num_frequencies=3)
    made = {
        "exact": lambda: (MLP(6, 2, 1, **sizes, **options), TritonTiled()),
        "exact, relu": lambda: (MLP(6, 2, 1, **sizes, activation="relu", **options), TritonTiled()),
        "separable": lambda: (SeparableMLP(6, 2, 1, **sizes), TritonFeatureSum()),
        "low rank": lambda: (LowRankMLP(6, 2, 1, rank=2, **sizes), TritonFeatureSum()),
        "yat": lambda: (YatAttention(6, 2, **options), TritonYat()),
    }
    kernel, route = made[kind]()
    return randomise(kernel, 0.3 if kind == "yat" else 0.5), route


def signal(domain: Domain) -> torch.Tensor:
    u = torch.randn(2, domain.num_points, 6)
    return u if domain.mask is None else torch.where(domain.mask[..., None], u, 0.0)


def check(route: Evaluation, problem: Integral, tolerance: float = TOLERANCE[HALF]) -> None:
    """Compares with the float64 oracle, except gradients of positions, which depend on rounding."""
    u, domain, query, query_domain = problem.arguments
    query = None if query is None or not problem.has_query_signal else query.detach().double()
    oracle = Integral(copy.deepcopy(problem.kernel).double(), u.detach().double(), domain, query, query_domain)
    expected = {name: value for name, value in results(Dense(), oracle).items() if not name.endswith(" pos")}
    with torch.autocast("cpu", HALF, enabled=u.dtype == torch.float32):
        assert route.unsupported_reasons(problem) == []
        got = results(route, problem)
    assert got["integral"].dtype == HALF
    compare({name: got[name] for name in got.keys() & expected.keys()}, expected, tolerance)


@pytest.mark.parametrize("kind", ["exact", "separable", "low rank", "yat"])
@pytest.mark.parametrize("name", DOMAINS)
def test_every_domain(name, kind):
    kernel, route = kernel_of(kind)
    # scores are squares of rounded queries and keys
    check(route, Integral(kernel, signal(DOMAINS[name]), DOMAINS[name]), 2e-2 if kind == "yat" else 4e-3)


@pytest.mark.parametrize("kind", ["exact", "exact, relu", "yat"])
def test_a_causal_kernel(kind):
    kernel, route = kernel_of(kind, is_causal=True)
    # the first queries average few samples, so their weights have large gradients that nearly cancel
    check(route, Integral(kernel, signal(DOMAINS["times"]), DOMAINS["times"]), 2e-2)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(5, 19), (1, 3), (0, 3), (3, 0)])
@pytest.mark.parametrize("kind", ["exact", "low rank"])
def test_queries_on_another_domain(kind, num_queries, num_keys):
    kernel, route = kernel_of(kind)
    problem = Integral(kernel, torch.randn(2, num_keys, 6), Points(torch.rand(num_keys, 1)))
    check(
        route,
        changed(problem, query_domain=Points(torch.rand(num_queries, 1)), query=torch.randn(2, num_queries, 6)),
    )


def test_a_kernel_with_float16_parameters():
    kernel, route = kernel_of("exact")
    check(route, Integral(kernel.half(), signal(DOMAINS["token and grid"]).half(), DOMAINS["token and grid"]))


@pytest.mark.parametrize("kind", ["exact", "low rank"])
def test_masses_of_many_points_stay_precise(kind):
    """ω u, here 3e-6, and its products with gradients are close to the underflow of float16."""
    kernel, route = kernel_of(kind)
    weights = 1e-4 * (0.5 + 0.5 * torch.rand(19, generator=SEEDED))
    with torch.no_grad():
        kernel.get_parameter("output_weight" if kind == "exact" else "query_weight").mul_(1e3)
    check(route, Integral(kernel, 0.03 * torch.randn(2, 19, 6), Points(torch.rand(19, 1), weights=weights)))


def test_sums_beyond_the_range_of_float16(monkeypatch):
    """S exceeds 65504, and the last layer brings it back into range."""
    kernel, route = kernel_of("exact")
    with torch.no_grad():
        for name, parameter in kernel.named_parameters():
            parameter.mul_(1e-4 if name.startswith("output") else 1.0)
    problem = Integral(kernel, 150 * torch.rand(1, 7, 6), Points(torch.rand(7, 1)))
    launched = list[torch.Tensor]()

    def record(kernel, grid, tile, arguments):
        launch(kernel, grid, tile, arguments)
        launched.append(arguments["sums"])

    monkeypatch.setattr(perceptron, "launch", record)
    with torch.no_grad():
        exact = Dense().integrate(Integral(copy.deepcopy(kernel).double(), problem.u.double(), problem.domain))
        with torch.autocast("cpu", HALF):
            found = route.integrate(problem)
    assert launched[0].abs().max() > torch.finfo(HALF).max
    torch.testing.assert_close(found.double(), exact, rtol=4e-3, atol=4e-3 * float(exact.abs().max()))


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize(
    ("query", "key"), [([1.0, 1.0], [2e4, 2e4]), ([6e4, 0.0], [0.0, 1.0])], ids=["hidden units", "P u_i"]
)
def test_overflow_of_float16_never_gives_a_finite_result(query, key, activation):
    """φ(p) exceeds 65504; or a coefficient of the first layer does, and is multiplied by 0."""
    inputs = KernelInputs(**{name: name == "product" for name in KernelInputs.__dataclass_fields__})
    kernel = MLP(2, 1, 1, **small_perceptron(width=5, inputs=inputs), activation=activation)
    for parameter in kernel.parameters():
        torch.nn.init.constant_(parameter, 4.0)
    u, query_signal = (torch.tensor(channels).expand(1, 3, 2) for channels in (key, query))
    with torch.no_grad(), torch.autocast("cpu", HALF):
        found = TritonTiled().integrate(
            Integral(kernel, u, Points(torch.rand(3, 1)), query_signal, Points(torch.rand(3, 1)))
        )
    assert not found.isfinite().any()


def test_slopes_of_scores_of_near_points_beyond_the_range_of_float16():
    """Where a query equals a key, r is 4e6 and the factor of the key 2e5; compared with the plain form in float64."""
    key, value, cotangent = (torch.randn(1, 1, 5, 4, generator=SEEDED) for _ in range(3))
    key, value, softening = (1 + 0.02 * key).half(), value.half(), torch.tensor(1e-6, dtype=torch.float64)
    found = []
    for dtype in (HALF, torch.float64):
        leaves = [signal.to(dtype).requires_grad_() for signal in (value, key.flip(2), key)]
        value_leaf, query_leaf, key_leaf = leaves
        inputs = ScoreInputs(value_leaf, query_leaf, key_leaf, None, softening, None, None, None, None)
        if dtype == HALF:
            out = yat_tiled._fused(inputs, YatScore(), Softermax(1.0, 1e-2))
        else:
            (out,) = plain_scores(inputs, YatScore().encoded(), Softermax(1.0, 1e-2).encoded())
        found.append([out.detach(), *torch.autograd.grad(out, leaves, cotangent.to(out.dtype))])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=0.0, atol=2e-2 * float(expected.abs().max()))


def test_the_fused_route_is_the_first_choice_where_it_runs():
    kernel, route = kernel_of("exact")
    with torch.autocast("cpu", HALF):
        assert isinstance(AUTO.choose(Integral(kernel, torch.randn(2, 3, 6), Sequence(3))).route, type(route))
