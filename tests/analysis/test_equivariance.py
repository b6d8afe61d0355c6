import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, analysis, fields, kernels, models
from fredholm.blocks.feed_forward import FeedForward
from fredholm.blocks.residual import ResidualBlock
from fredholm.domains import Domain, Grid, Points
from fredholm.evaluation import Dense
from tests.models.fields.test_neural_field import operator as field_operator
from tests.models.fields.test_neural_field import samples
from tests.refusals import refused

GROUPS: dict[str, analysis.Moves] = {
    "translations": analysis.Translations(5.0),
    "scalings": analysis.Scalings(),
    "anisotropic": analysis.AnisotropicScalings(),
    "rotations": analysis.Rotations(),
    "orthogonal": analysis.OrthogonalMaps(),
    "linear": analysis.LinearMaps(),
    "permutations": analysis.Permutations(),
}
COVERED = {
    "Isotropic": ["translations", "scalings", "permutations"],
    "Diagonal": ["translations", "scalings", "anisotropic", "permutations"],
    "Rotational": ["translations", "scalings", "rotations", "orthogonal", "permutations"],
    "Affine": list(GROUPS),
    "Identity": ["permutations"],
}


@pytest.mark.parametrize("frame", COVERED)
def test_each_frame_is_equivariant_under_its_groups_alone(frame: str) -> None:
    op, (u, x) = field_operator(getattr(fields, frame)()), samples()
    queries = torch.rand(7, 2, dtype=torch.float64)
    for name, moves in GROUPS.items():
        found = analysis.equivariance_error(op, moves, u, Points(x), query_pos=queries, num_moves=3)
        assert found.absolute.shape == found.relative.shape == (3, 2)
        assert bool((found.norm > 0.05).all())
        assert bool((found.variation > 0.01).all())
        worst = found.relative.max().item()
        assert worst < 1e-11 if name in COVERED[frame] else worst > 1e-3, name


def test_rotations_and_reflections_in_three_dimensions() -> None:
    op, (u, x) = field_operator(fields.Rotational(proper=True), pos_dim=3), samples(pos_dim=3)
    assert analysis.equivariance_error(op, analysis.Rotations(), u, Points(x)).relative.max() < 1e-11
    assert analysis.equivariance_error(op, analysis.OrthogonalMaps(), u, Points(x)).relative.max() > 1e-3


def test_equivariance_of_operators_and_blocks() -> None:
    u, grid = torch.randn(2, 12, 6, dtype=torch.float64), Grid(3, 4)

    def operator_of(**read: bool) -> IntegralOperator:
        inputs = kernels.KernelInputs(query_position=False, key_position=False, **read)
        frequencies = {"num_frequencies": 3, "sigma": 1.0} if inputs.has_frequencies else {}
        kernel = kernels.MLP(6, 2, 2, inputs=inputs, width=5, epsilon=1.0, **frequencies)
        return IntegralOperator(kernel, evaluation=Dense()).double()

    relative, distances = operator_of(), operator_of(relative_position=False)
    block = ResidualBlock(relative, FeedForward(6)).double()

    def error(op: analysis.SetOperator, moves: analysis.Moves) -> float:
        return analysis.equivariance_error(op, moves, u, grid, num_moves=3).relative.max().item()

    for op in (relative, block):
        assert error(op, analysis.Translations()) < 1e-12
        assert error(op, analysis.Permutations()) < 1e-12
        assert error(op, analysis.Rotations()) > 1e-4
    assert error(distances, analysis.OrthogonalMaps()) < 1e-12
    assert error(distances, analysis.Scalings()) > 1e-6
    # one vector per set must be invariant
    assert error(lambda u, domain: relative(u, domain).mean(1), analysis.Permutations()) < 1e-12
    assert error(lambda u, domain: relative(u, domain)[:, 0], analysis.Permutations()) > 1e-3


def test_equals_its_formula() -> None:
    """An operator that returns positions: its error under x -> x + b is ‖b‖ in the root mean square."""
    u = torch.randn(3, 5, 2, dtype=torch.float64)
    pos = torch.rand(5, 2, dtype=torch.float64)
    mask = torch.tensor([True, True, True, False, True])

    def positions(u: Tensor, domain: Domain) -> Tensor:
        return domain.pos + 0 * u

    generator = torch.Generator().manual_seed(3)
    found = analysis.equivariance_error(
        positions, analysis.Translations(2.0), u, Points(pos, mask=mask), num_moves=4, generator=generator
    )
    generator = torch.Generator().manual_seed(3)
    for row in found.absolute:
        shift = analysis.Translations(2.0).draw(2, 5, generator).shift
        torch.testing.assert_close(row, shift.square().mean().sqrt().expand(3))
    kept = pos[mask]
    torch.testing.assert_close(found.norm, kept.square().mean().sqrt().expand(3))
    torch.testing.assert_close(found.variation, (kept - kept.mean(0)).square().mean().sqrt().expand(3))
    torch.testing.assert_close(found.relative, found.absolute / found.norm)


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_moves_belong_to_their_group(name: str, dim: int) -> None:
    A, b, order = GROUPS[name].draw(dim, 6)
    identity = torch.eye(dim, dtype=torch.float64)
    if name in ("rotations", "orthogonal"):
        torch.testing.assert_close(A @ A.T, identity)
    if name == "rotations":
        torch.testing.assert_close(torch.linalg.det(A), torch.tensor(1.0).double())
    if name in ("scalings", "anisotropic"):
        torch.testing.assert_close(A, torch.diag(A.diagonal()))
        assert bool(((A.diagonal() >= 0.5) & (A.diagonal() <= 2)).all())
    if name == "scalings":
        torch.testing.assert_close(A, A[0, 0] * identity)
    assert b.any().item() == (name == "translations")
    assert (order is not None) == (name == "permutations")


def test_bad_inputs_are_refused() -> None:
    u, points = torch.randn(2, 5, 2, dtype=torch.float64), Points(torch.rand(5, 2, dtype=torch.float64))
    with refused(ValueError, "norm is", "2 of 2 sets", "a field near 0"):
        analysis.equivariance_error(lambda u, _: 1e-9 * u, analysis.Rotations(), u, points)
    with refused(ValueError, "NaN"):
        analysis.equivariance_error(lambda u, _: u / 0, analysis.Rotations(), u, points)
    with refused(ValueError, "4 points for 5"):
        analysis.equivariance_error(lambda u, _: u[:, :4], analysis.Rotations(), u, points)
    with refused(TypeError, "fields", "(5,)"):
        analysis.equivariance_error(lambda u, _: u[0, :, 0], analysis.Rotations(), u, points)
    with refused(ValueError, "num_moves", "got 0"):
        analysis.equivariance_error(lambda u, _: u, analysis.Rotations(), u, points, num_moves=0)
    with refused(ValueError, "0 < low <= high", "got 2.0, 1.0"):
        analysis.equivariance_error(lambda u, _: u, analysis.Scalings(2.0, 1.0), u, points)
    small = models.FieldOperator(2, fields.SIREN(2, 2), fields.Isotropic()).eval().double()
    with torch.no_grad():
        small.start.zero_()
        for parameter in small.head[-1].parameters():
            parameter.zero_()
    with refused(ValueError, "norm is 0"):
        analysis.equivariance_error(small, analysis.Rotations(), u, points)
