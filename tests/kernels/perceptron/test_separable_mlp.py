import pytest
import torch

from fredholm.domains import Grid, Sequence
from fredholm.kernels import LowRankMLP, SeparableMLP
from tests.contracts.routes import randomise
from tests.kernels.point_formulas import check_entries, literal_features
from tests.refusals import refused

SMALL = {"width": 5, "num_frequencies": 3, "sigma": 1.0}


def literal_entry(kernel: SeparableMLP, head: int, x, y, u_x, u_y) -> torch.Tensor:
    """κ of one pair and one head: a number times V."""
    features, g = kernel.features, head % len(kernel.value_weight)
    phi = literal_features(features, features.query, head, x, u_x)
    psi = literal_features(features, features.key, head, y, u_y)
    score = sum(phi[a] * kernel.score_weight[g, a, c] * psi[c] for a in range(6) for c in range(6))
    return score * kernel.value_weight[g]


@pytest.mark.parametrize(("head_shared", "num_frequencies"), [(False, 3), (True, 0)])
def test_matrix_is_the_formula_entry_by_entry(head_shared, num_frequencies):
    sigma = 1.0 if num_frequencies else 10.0
    options = SMALL | {"num_frequencies": num_frequencies, "sigma": sigma, "head_shared": head_shared}
    kernel = randomise(SeparableMLP(6, 3, 2, **options).double())
    check_entries(kernel, literal_entry)


def test_with_one_channel_per_head_it_is_the_low_rank_kernel_of_full_rank():
    """With d = 1 both are bilinear maps of the same features: m = Σ_r Φ_r ⊗ Ψ_r, V = 1."""
    separable = randomise(SeparableMLP(3, 3, 2, **SMALL).double())
    low_rank = LowRankMLP(3, 3, 2, rank=6, constant=False, **SMALL).double()
    low_rank.features.load_state_dict(separable.features.state_dict())
    with torch.no_grad():
        separable.value_weight.fill_(1)
        low_rank.query_weight.copy_(separable.score_weight.mT[..., None])
        low_rank.key_weight.copy_(torch.eye(6).expand(3, 6, 6)[..., None])
    u = torch.randn(2, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(separable.matrix(u, Grid(2, 3)), low_rank.matrix(u, Grid(2, 3)))


def test_scores_take_either_sign():
    kernel = randomise(SeparableMLP(4, 1, 2, **SMALL))
    with torch.no_grad():
        kernel.value_weight.copy_(torch.eye(4))
    scores = kernel.matrix(torch.randn(1, 12, 4), Grid(3, 4))[..., 0, 0]
    assert scores.min() < 0 < scores.max()


def test_initial_operator_is_the_mean():
    kernel, u = SeparableMLP(6, 2, 2), torch.randn(2, 35, 6)
    mean = torch.einsum("bqkoi,bki->bqo", kernel.matrix(u, Grid(5, 7)), u / 35)
    torch.testing.assert_close(mean, u.mean(1, keepdim=True).expand_as(u), atol=5e-3, rtol=0)


def test_a_causal_kernel_takes_the_mean_over_the_past():
    full, causal = (SeparableMLP(4, 2, 1, is_causal=flag, **SMALL).double() for flag in (False, True))
    causal.load_state_dict(randomise(full).state_dict())
    u, domain = torch.randn(1, 5, 4, dtype=torch.float64), Sequence(5)
    expected = full.matrix(u, domain) * torch.ones(5, 5).tril().double()[..., None, None]
    expected = expected / torch.arange(1, 6).double()[:, None, None, None]
    torch.testing.assert_close(causal.matrix(u, domain), expected)


def test_golden_parameter_shapes():
    shapes = {name: tuple(p.shape) for name, p in SeparableMLP(384, 6, 2).named_parameters()}
    assert shapes == {
        "score_weight": (6, 129, 129),
        "value_weight": (6, 64, 64),
        "features.query.position_weight": (6, 128, 128),
        "features.query.content_weight": (6, 128, 64),
        "features.query.bias": (6, 128),
        "features.key.position_weight": (6, 128, 128),
        "features.key.content_weight": (6, 128, 64),
        "features.key.bias": (6, 128),
    }


def test_bad_sizes_are_refused():
    with refused(ValueError, "kernels.SeparableMLP: num_heads must divide embed_dim; got 3 heads for 10 channels"):
        SeparableMLP(10, 3)
