import pytest
import torch
from torch import Tensor

from fredholm import analysis
from tests.refusals import refused


def positive(*shape: int) -> Tensor:
    return torch.rand(*shape, shape[-1], dtype=torch.float64) + 0.01


def eigen(A: Tensor) -> tuple[Tensor, Tensor]:
    """The dominant eigenvector and its eigenvalue, by an eigendecomposition."""
    values, vectors = torch.linalg.eig(A)
    best = values.real.argmax()
    vector = vectors[:, best].real.abs()
    return vector / vector.sum(), values[best].real


@pytest.mark.parametrize("n", [1, 2, 7, 31])
def test_equals_the_dominant_eigenvector(n: int) -> None:
    A = positive(2, 3, n)
    found = analysis.perron_vector(A, tolerance=1e-13)
    assert found.vector.shape == (2, 3, n)
    assert found.radius.shape == found.residual.shape == (2, 3)
    assert bool((found.residual <= 1e-13).all())
    for entry in range(2):
        for head in range(3):
            vector, radius = eigen(A[entry, head])
            torch.testing.assert_close(found.vector[entry, head], vector, atol=1e-10, rtol=1e-10)
            torch.testing.assert_close(found.radius[entry, head], radius, atol=1e-10, rtol=1e-10)


def test_accepts_a_function_instead_of_a_matrix() -> None:
    q = torch.rand(6, 3, dtype=torch.float64)
    start = torch.ones(6, dtype=torch.float64)
    found = analysis.perron_vector(lambda x: q @ (q.T @ x), start=start, tolerance=1e-12)
    torch.testing.assert_close(found.vector, analysis.perron_vector(q @ q.T, tolerance=1e-12).vector)


def test_periodic_matrices_converge() -> None:
    found = analysis.perron_vector(torch.tensor([[0.0, 4.0], [1.0, 0.0]], dtype=torch.float64), tolerance=1e-12)
    torch.testing.assert_close(found.vector, torch.tensor([2.0, 1.0], dtype=torch.float64) / 3)
    assert found.radius.item() == pytest.approx(2)


def test_reducible_matrices_are_refused_unless_allowed() -> None:
    A = torch.block_diag(positive(2), 3 * positive(3))
    with refused(ValueError, "1 of 2 matrices are reducible", "point 0 never reaches point 2", "allow_reducible=True"):
        analysis.perron_vector(torch.stack([A, positive(5)]))
    found = analysis.perron_vector(A, allow_reducible=True, tolerance=1e-12)
    assert found.vector[:2].abs().max() < 1e-6
    torch.testing.assert_close(found.vector[2:], eigen(A[2:, 2:])[0], atol=1e-8, rtol=1e-8)
    chain = torch.diag(torch.ones(6, dtype=torch.float64), 1)
    chain[-1, 0] = 1  # a ring: the longest path has N - 1 steps
    torch.testing.assert_close(analysis.perron_vector(chain).vector, torch.full((7,), 1 / 7, dtype=torch.float64))


@pytest.mark.parametrize(
    ("A", "message"),
    [
        (torch.zeros(2, 2), ["all weights are 0"]),
        (torch.tensor([[1.0, -1.0], [1.0, 1.0]]), ["must be >= 0", "-1"]),
        (torch.zeros(0, 0), ["no points"]),
        (torch.ones(2, 3), ["(..., N, N)", "(2, 3)"]),
    ],
)
def test_matrices_without_a_perron_vector_are_refused(A: Tensor, message: list[str]) -> None:
    with refused(ValueError, *message):
        analysis.perron_vector(A)


def test_nilpotent_and_negative_functions_are_refused() -> None:
    nilpotent = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    with refused(ValueError, "all walks end"):
        analysis.perron_vector(lambda x: nilpotent @ (nilpotent @ x), start=torch.ones(2))
    with refused(ValueError, "was mapped to -1"):
        analysis.perron_vector(lambda x: -2 * x, start=torch.ones(2))


def test_an_unmet_tolerance_is_refused() -> None:
    close = torch.tensor([[1.0, 1e-6], [1e-7, 1.0]])
    with refused(ValueError, "the residual is", "after 5 steps", "tolerance of 1e-08"):
        analysis.perron_vector(close, max_iterations=5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tolerance": 0.0}, ["tolerance > 0", "got 0.0"]),
        ({"max_iterations": 0}, ["max_iterations >= 1", ", 0"]),
        ({"start": torch.tensor([1.0, 0.0])}, ["start must be > 0"]),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: list[str]) -> None:
    with refused(ValueError, *message):
        analysis.perron_vector(torch.ones(2, 2), **settings)


def test_a_function_needs_a_start() -> None:
    with refused(ValueError, "needs start="):
        analysis.perron_vector(lambda x: x)


def counted_ranks(values: Tensor) -> Tensor:
    """Ranks from 1: one plus the number of smaller values, plus half the number of other equal values."""
    below, equal = (values < values[:, None]).sum(1), (values == values[:, None]).sum(1)
    return 1 + below + (equal - 1) / 2


def test_alignment_equals_its_formula() -> None:
    a = torch.rand(3, 4, 11, dtype=torch.float64)
    b = a + 0.3 * torch.rand(3, 4, 11, dtype=torch.float64)
    a = (4 * a).round() / 4  # with ties
    found = analysis.alignment(a, b)
    for i in range(3):
        for j in range(4):
            x, y = a[i, j], b[i, j]
            assert found.cosine[i, j].item() == pytest.approx((x @ y / x.norm() / y.norm()).item())
            ranked = torch.stack([counted_ranks(x), counted_ranks(y)])
            assert found.spearman[i, j].item() == pytest.approx(torch.corrcoef(ranked)[0, 1].item())
    tiny = analysis.alignment(1e-30 * a.float(), 1e-30 * b.float())
    torch.testing.assert_close(tiny.cosine.double(), found.cosine, atol=1e-6, rtol=1e-6)


def test_alignment_of_a_vector_with_itself_and_its_reverse() -> None:
    a = torch.tensor([0.1, 0.2, 0.3, 0.9])
    assert analysis.alignment(a, a**3).spearman.item() == pytest.approx(1)
    assert analysis.alignment(a, -a).cosine.item() == pytest.approx(-1)
    assert analysis.alignment(a, 1 / a).spearman.item() == pytest.approx(-1)


def test_vectors_without_alignment_are_refused() -> None:
    a = torch.rand(2, 4)
    with refused(ValueError, "1 of 2 vector are constant"):
        analysis.alignment(a, torch.stack([a[0], torch.zeros(4)]))
    with refused(ValueError, "one shape (..., N)", "(2, 4) and (4,)"):
        analysis.alignment(a, a[0])
    with refused(ValueError, "N >= 2", "(2, 1)"):
        analysis.alignment(a[:, :1], a[:, :1])
    with refused(ValueError, "weights holds NaN"):
        analysis.alignment(a / 0, a)


def test_rollout_equals_the_sum_over_chains_of_layers() -> None:
    torch.manual_seed(3)
    layers = [torch.rand(2, 3, 4, 4, dtype=torch.float64).softmax(-1) for _ in range(3)]
    rolled = analysis.attention_rollout(layers)
    means = [0.5 * layer.mean(1) + 0.5 * torch.eye(4, dtype=torch.float64) for layer in layers]
    for b in range(2):
        for i in range(4):
            for j in range(4):
                paths = sum(
                    means[2][b, i, k] * means[1][b, k, m] * means[0][b, m, j] for k in range(4) for m in range(4)
                )
                assert rolled[b, i, j].item() == pytest.approx(float(paths))
    torch.testing.assert_close(rolled.sum(-1), torch.ones(2, 4, dtype=torch.float64))
    named = {f"blocks.{n}": layer for n, layer in enumerate(layers)}
    assert torch.equal(analysis.attention_rollout(named), rolled)


def test_rollout_normalises_rows_and_keeps_zero_rows() -> None:
    layer = torch.tensor([[[[0.0, 5.0], [0.0, 0.0]]]])
    assert analysis.attention_rollout([layer])[0].tolist() == [[0.5, 0.5], [0.0, 1.0]]
    with refused(ValueError, "at least one layer"):
        analysis.attention_rollout([])
    with refused(ValueError, "layer 1 is (1, 1, 3, 3) after (1, 1, 2, 2)"):
        analysis.attention_rollout([layer, torch.rand(1, 1, 3, 3)])
