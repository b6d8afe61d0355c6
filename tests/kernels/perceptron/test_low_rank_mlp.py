import math

import pytest
import torch

from fredholm.domains import Grid, Points, Sequence
from fredholm.kernels import MLP, KernelInputs, LowRankMLP, PointInputs
from tests.contracts.routes import randomise
from tests.kernels.point_formulas import check_entries, literal_features
from tests.refusals import refused

SMALL = {"rank": 2, "width": 5, "num_frequencies": 3, "sigma": 1.0}
NOTHING = PointInputs(**dict.fromkeys(PointInputs.__dataclass_fields__, False))


def literal_entry(kernel: LowRankMLP, head: int, x, y, u_x, u_y) -> torch.Tensor:
    """κ of one pair and one head: Φᵀ Ψ + B, row by row of Φ and Ψ."""
    h = literal_features(kernel.features, kernel.features.query, head, x, u_x)
    k = literal_features(kernel.features, kernel.features.key, head, y, u_y)
    g = head % len(kernel.query_weight)
    kappa = torch.zeros(len(u_x), len(u_x), dtype=u_x.dtype)
    for row in range(kernel.rank):
        phi, psi = h @ kernel.query_weight[g, row], k @ kernel.key_weight[g, row]
        kappa = kappa + torch.outer(phi, psi)
    return kappa if kernel.constant is None else kappa + kernel.constant[g]


def full_and_causal() -> tuple[LowRankMLP, LowRankMLP]:
    """The same parameters without and with `is_causal`."""
    full, causal = (LowRankMLP(4, 2, 1, is_causal=flag, **SMALL).double() for flag in (False, True))
    causal.load_state_dict(randomise(full).state_dict())
    return full, causal


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize(
    ("head_shared", "num_frequencies", "constant"), [(False, 3, True), (True, 3, False), (False, 0, True)]
)
def test_matrix_is_the_formula_entry_by_entry(activation, head_shared, num_frequencies, constant):
    kernel = LowRankMLP(
        6, 3, 2, rank=4, width=5, activation=activation, head_shared=head_shared, num_frequencies=num_frequencies,
        sigma=1.0 if num_frequencies else 10.0, constant=constant,
    ).double()  # fmt: skip
    check_entries(randomise(kernel), literal_entry)


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_the_whole_matrix_has_the_requested_rank(rank):
    kernel = randomise(LowRankMLP(8, 2, 2, rank=rank, width=9, constant=False, num_frequencies=4).double(), 1.0)
    blocks = kernel.head_matrices(torch.randn(1, 6, 8, dtype=torch.float64), Grid(2, 3))
    whole = blocks[0].permute(0, 1, 3, 2, 4).reshape(2, 24, 24)  # one matrix per head
    assert torch.linalg.matrix_rank(whole).tolist() == [rank, rank]


def test_a_causal_kernel_is_the_same_divided_by_the_mass_of_the_past():
    full, causal = full_and_causal()
    u, weights = torch.randn(1, 5, 4, dtype=torch.float64), torch.tensor([0.0, 0.3, 0.0, 0.5, 0.2]).double()
    domain = Points(torch.rand(5, 1).double(), weights=weights)
    expected = full.matrix(u, domain).tril().new_zeros(1, 5, 5, 4, 4)
    for i in range(1, 5):
        expected[:, i, : i + 1] = full.matrix(u, domain)[:, i, : i + 1] / weights[: i + 1].sum()
    # the first point sees no mass, and its row is 0
    torch.testing.assert_close(causal.matrix(u, domain), expected)


def test_at_the_last_point_the_mean_over_the_past_is_the_mean():
    full, causal = full_and_causal()
    u, domain = torch.randn(2, 7, 4, dtype=torch.float64), Sequence(7)
    last = [
        torch.einsum("bqkoi,k,bki->bqo", kernel.matrix(u, domain), kernel.measure(domain), u)[:, -1]
        for kernel in (full, causal)
    ]
    torch.testing.assert_close(*last)


def test_without_inputs_and_factors_it_is_the_constant_mlp_kernel():
    off = KernelInputs(**dict.fromkeys(KernelInputs.__dataclass_fields__, False))
    constant = randomise(MLP(4, 2, 2, inputs=off, epsilon=0.0, width=3))
    kernel = LowRankMLP(4, 2, 2, inputs=NOTHING, epsilon=0.0, rank=2, width=5)
    assert kernel.constant is not None
    with torch.no_grad():
        kernel.constant.copy_(constant.output_bias)
        constant.output_weight.zero_()
    u = torch.randn(2, 6, 4)
    torch.testing.assert_close(kernel.matrix(u, Grid(2, 3)), constant.matrix(u, Grid(2, 3)))
    assert not kernel.reads_query
    assert kernel.pos_dim is None


@pytest.mark.parametrize("switched_off", PointInputs.__dataclass_fields__)
def test_an_input_that_is_off_is_not_read(switched_off):
    kernel = randomise(LowRankMLP(4, 2, 2, inputs=PointInputs(**{switched_off: False}), **SMALL))
    for name in PointInputs.__dataclass_fields__:
        pos = {"query": torch.rand(3, 2), "key": torch.rand(5, 2)}
        signal = {"query": torch.randn(1, 3, 4), "key": torch.randn(1, 5, 4)}
        before = kernel.matrix(signal["key"], Points(pos["key"]), signal["query"], Points(pos["query"]))
        side, _, quantity = name.partition("_")
        (pos if quantity == "position" else signal)[side] += 0.3
        after = kernel.matrix(signal["key"], Points(pos["key"]), signal["query"], Points(pos["query"]))
        assert torch.equal(before, after) == (name == switched_off)


def test_initial_operator_is_the_mean():
    kernel, u = LowRankMLP(6, 2, 2, rank=3), torch.randn(2, 35, 6)
    mean = torch.einsum("bqkoi,bki->bqo", kernel.matrix(u, Grid(5, 7)), u / 35)
    torch.testing.assert_close(mean, u.mean(1, keepdim=True).expand_as(u), atol=5e-3, rtol=0)
    without = LowRankMLP(6, 2, 2, rank=3, constant=False).matrix(u, Grid(5, 7))
    assert 0 < without.abs().max() < 5e-3


def test_initialisation_has_the_documented_scales():
    kernel = LowRankMLP(32, 2, 2, rank=16, width=64)
    assert kernel.get_parameter("features.query.position_weight").std().item() == pytest.approx(0.02, rel=0.05)
    for weight in (kernel.query_weight, kernel.key_weight):
        assert weight[:, :, :-1].std().item() == pytest.approx(math.sqrt(1e-3 / (64 * 4)), rel=0.05)
        assert not weight[:, :, -1].any()
    assert kernel.features.frequencies.std().item() == pytest.approx(10, rel=0.2)


def test_golden_parameter_shapes():
    shapes = {name: tuple(p.shape) for name, p in LowRankMLP(384, 6, 2, rank=8).named_parameters()}
    assert shapes == {
        "query_weight": (6, 8, 129, 64),
        "key_weight": (6, 8, 129, 64),
        "constant": (6, 64, 64),
        "features.query.position_weight": (6, 128, 128),
        "features.query.content_weight": (6, 128, 64),
        "features.query.bias": (6, 128),
        "features.key.position_weight": (6, 128, 128),
        "features.key.content_weight": (6, 128, 64),
        "features.key.bias": (6, 128),
    }
    assert LowRankMLP(384, 6, 2, rank=8, head_shared=True).query_weight.shape == (1, 8, 129, 64)
    assert "features.frequencies" in LowRankMLP(8, 2, 2, rank=1).state_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embed_dim": 10, "num_heads": 3}, "num_heads must divide embed_dim; got 3 heads for 10 channels"),
        ({"width": 0}, "width must be at least 1; got 0"),
        ({"rank": 0}, "rank must be from 1 to 516 = (width + 1) · channels of a head, beyond which it adds nothing"),
        ({"rank": -1}, "got -1"),
        ({"rank": 517}, "got 517"),
        ({"num_frequencies": -1}, "num_frequencies must be >= 0"),
        ({"activation": "swish"}, "activation is 'gelu', 'gelu_tanh' or 'relu'; got 'swish'"),
    ],
)
def test_bad_sizes_are_refused(arguments, message):
    with refused(ValueError, "kernels.LowRankMLP: ", message):
        LowRankMLP(**({"embed_dim": 4, "rank": 2} | arguments))


def test_a_step_that_reads_positions_needs_a_time():
    kernel, u = LowRankMLP(4, 2, 1, is_causal=True, **SMALL), torch.randn(2, 4)
    with refused(ValueError, "kernels.LowRankMLP: a step needs the time", "Sequence(times=...)", "inputs="):
        kernel.step(u, kernel.initial_state(2))
    kernel.step(u, kernel.initial_state(2), torch.zeros(2))
