"""The kernels on a GPU, compared with the dense oracle."""

from typing import Any

import pytest
import torch

from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import AUTO, ROUTES, Dense, Evaluation, Integral, TritonFeatureSum, TritonTiled, TritonYat
from fredholm.evaluation.attention.score_tiled import ScoreInputs
from fredholm.evaluation.triton import tuning
from fredholm.evaluation.triton.machine import FusedRoute
from fredholm.evaluation.triton.tuning import AFTER, PRODUCT, Room, Tile
from fredholm.evaluation.triton.yat_tiled import yat_sums_triton
from fredholm.kernels import MLP, SeparableMLP, Softermax, Softmax, YatAttention
from tests.contracts.routes import TOLERANCE, randomise, relative_errors, results
from tests.contracts.small_perceptron import small_perceptron

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

DOMAINS: dict[str, Domain] = {
    "points": Points(torch.rand(2, 131, 2), weights=torch.rand(2, 131)),
    "grid": Grid(7, 13),
    "torus": Grid(7, 6, periodic=True),
    "token and grid": Union(Points(torch.full((1, 2), 0.5)), Grid(9, 11)),
}


def make(domain: Domain, dtype: torch.dtype, **options) -> Integral:
    options = small_perceptron(**{"width": 48, "num_frequencies": 20} | options)
    kernel = randomise(MLP(48, 2, domain.pos_dim, **options)).to("cuda", dtype)
    return Integral(kernel, torch.randn(2, domain.num_points, 48, dtype=dtype).cuda(), domain.to("cuda"))


SHORT = [None, torch.bfloat16, torch.float16]
"""Dtypes of autocast; None: without autocast."""
IDS = ["fp32", "bf16", "fp16"]


def check(route: Evaluation, problem: Integral, *, autocast: torch.dtype | None = None) -> None:
    """Compares with the float64 oracle, except for results that depend on the rounding of positions.

    Under autocast signals are rounded before any route reads them, and a steep kernel can amplify the error beyond the
    tolerance. A route may then have 1.5 times the error of the route that is chosen without fused kernels.
    """
    with torch.autocast("cuda", autocast, enabled=autocast is not None):
        plain = next(
            each for each in ROUTES if not isinstance(each, FusedRoute) and not each.unsupported_reasons(problem)
        )
        got, by_plain = ({n: t.cpu() for n, t in results(each, problem).items()} for each in (route, plain))
    oracle = results(Dense(), Integral(problem.kernel.double(), problem.u.detach().double(), problem.domain))
    names = [name for name in got.keys() & oracle.keys() if "pos" not in name or name.endswith("weight")]
    expected = {name: oracle[name].cpu() for name in names}
    errors, allowed = (relative_errors({n: by[n] for n in names}, expected) for by in (got, by_plain))
    tolerance = TOLERANCE[autocast or torch.float32]
    for name, error in errors.items():
        most = tolerance if autocast is None else max(tolerance, 1.5 * allowed.get(name, 0.0))
        assert error <= most, f"{name}: relative error {error:.2e} above {most:.1e}"


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", DOMAINS)
def test_float32(name, is_causal):
    check(TritonTiled(), make(DOMAINS[name], torch.float32, is_causal=is_causal))


@pytest.mark.parametrize("autocast", SHORT[1:], ids=IDS[1:])
@pytest.mark.parametrize("name", DOMAINS)
def test_16_bits_stay_near_the_float64_oracle(name, autocast):
    check(TritonTiled(), make(DOMAINS[name], torch.float32), autocast=autocast)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"activation": "relu"}, {"width": 130}], ids=str)
def test_float16_with_other_options(options):
    check(TritonTiled(), make(DOMAINS["points"], torch.float32, **options), autocast=torch.float16)


@pytest.mark.parametrize("rest", [AFTER, PRODUCT])
@pytest.mark.parametrize("autocast", SHORT[1:], ids=IDS[1:])
@pytest.mark.parametrize("name", ["points", "token and grid"])
def test_r_is_added_to_p_in_every_variant(name, autocast, rest, monkeypatch):
    kept = tuning.tuned_tile

    def with_rest(kernel: Any, room: Room, rule: Tile) -> Tile:
        return kept(kernel, room, rule._replace(rest=rest if room.has_rest else rule.rest))

    monkeypatch.setattr(tuning, "tuned_tile", with_rest)
    check(TritonTiled(), make(DOMAINS[name], torch.float32), autocast=autocast)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=IDS)
@pytest.mark.parametrize("name", DOMAINS)
def test_two_runs_are_identical(name, dtype):
    problem = make(DOMAINS[name], dtype)
    first, second = results(TritonTiled(), problem), results(TritonTiled(), problem)
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    "options",
    [{"width": 130}, {"width": 5, "num_frequencies": 3}, {"num_frequencies": 0}, {"activation": "relu"}],
    ids=str,
)
def test_sizes_and_options(options):
    check(TritonTiled(), make(Sequence(67), torch.float32, **options))


@pytest.mark.parametrize("autocast", SHORT, ids=IDS)
@pytest.mark.parametrize("name", ["points", "grid"])
def test_features(name, autocast):
    domain = DOMAINS[name].to("cuda")
    # values so small that no gradient leaves the range of float16
    kernel = randomise(SeparableMLP(48, 2, 2, width=48, num_frequencies=20, sigma=1.0), scale=0.25).cuda()
    problem = Integral(kernel, torch.randn(2, domain.num_points, 48).cuda(), domain)
    check(TritonFeatureSum(), problem, autocast=autocast)


@pytest.mark.pairs
@pytest.mark.parametrize("autocast", SHORT, ids=IDS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("normaliser", [None, Softermax(2.0, 1e-2)], ids=str)
def test_yat_scores(normaliser, is_causal, autocast):
    where = Sequence(150, mask=(torch.arange(150) % 7 > 0).expand(2, -1)).to("cuda")
    kernel = randomise(YatAttention(48, 2, normaliser=normaliser, is_causal=is_causal), scale=0.2).cuda()
    assert where.mask is not None
    u = torch.where(where.mask[..., None], torch.randn(2, 150, 48).cuda(), 0.0)
    problem = Integral(kernel, u, where)
    check(TritonYat(), problem, autocast=autocast)


@pytest.mark.parametrize(
    ("normaliser", "head_dim", "num_points", "is_causal"),
    [
        (Softmax(), 64, 777, True), (Softmax(), 64, 1024, False), (Softermax(), 64, 777, False),
        (Softmax(), 128, 300, True), (Softmax(), 24, 99, False),
    ],
    ids=str,
)  # fmt: skip
def test_yat_scores_of_many_tiles(normaliser, head_dim, num_points, is_causal):
    """Heads lie side by side in memory; errors are norms of the difference from the plain form in float64."""
    generator = torch.Generator().manual_seed(0)
    signal = torch.randn(2, num_points, 9 * head_dim, generator=generator).to("cuda", torch.bfloat16)
    seen = torch.arange(1, num_points + 1, device="cuda")[None] if is_causal else None
    cotangent, found = torch.randn(2, 3, num_points, head_dim, generator=generator).cuda().bfloat16(), []
    for sums, dtype in ((yat_sums_triton, torch.bfloat16), (yat_sums_triton.plain, torch.float64)):
        assert sums is not None
        u = signal.to(dtype).requires_grad_()
        query, key, value = u.unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)
        softening = torch.full((), 0.5, dtype=torch.float64, device="cuda")
        inputs = ScoreInputs(value, query, key, None, softening, None, None, None, seen)
        out = sums(inputs, normaliser.encoded())[0].to(dtype)
        (grad,) = torch.autograd.grad(out, u, cotangent.to(dtype))
        found.append([out, *grad.unflatten(-1, (3, -1)).unbind(-2)])
    for ours, expected in zip(*found, strict=True):
        assert float((ours.double() - expected).norm() / expected.norm()) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=IDS)
def test_the_fused_route_is_the_first_choice(dtype):
    problem = make(Grid(3, 3), dtype)
    assert isinstance(AUTO.choose(problem).route, TritonTiled)
