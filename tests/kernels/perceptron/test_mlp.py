import math
from typing import Any

import pytest
import torch

from fredholm.domains import Grid, Points, Sequence
from fredholm.kernels import MLP, KernelInputs
from tests.contracts.routes import randomise
from tests.kernels.point_formulas import check_entries
from tests.refusals import refused

SMALL = {"width": 5, "num_frequencies": 3, "sigma": 1.0}


def literal_entry(kernel: MLP, head: int, x, y, u_x, u_y) -> torch.Tensor:
    """κ of one pair and one head, written out from the paper's equations 2, 3 and 196-199."""

    def gamma(p):
        if kernel.num_frequencies == 0:
            return list(p)
        angles = [2 * math.pi * sum(b * c for b, c in zip(row, p, strict=True)) for row in kernel.frequencies.tolist()]
        return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]

    inputs = kernel.inputs
    difference = [a - b for a, b in zip(x, y, strict=True)]
    z = []
    z += gamma(x) if inputs.query_position else []
    z += gamma(y) if inputs.key_position else []
    z += gamma(difference) if inputs.relative_position else []
    z += [math.sqrt(sum(c * c for c in difference))] if inputs.distance else []
    z += u_x.tolist() if inputs.query_content else []
    z += u_y.tolist() if inputs.key_content else []
    z += (u_x * u_y).tolist() if inputs.product else []
    g = 0 if kernel.head_shared else head
    phi = {
        "gelu": lambda p: 0.5 * p * (1 + torch.erf(p / math.sqrt(2))),
        "gelu_tanh": lambda p: 0.5 * p * (1 + torch.tanh(math.sqrt(2 / math.pi) * (p + 0.044715 * p**3))),
        "relu": lambda p: p.clamp_min(0),
    }[kernel.activation]
    hidden = phi(kernel.get_parameter("input_weight")[g] @ torch.tensor(z, dtype=u_x.dtype) + kernel.input_bias[g])
    for layer in range(kernel.depth - 2):
        weight, bias = (kernel.get_parameter(f"hidden_{name}")[layer, g] for name in ("weight", "bias"))
        hidden = phi(weight @ hidden + bias)
    return torch.einsum("kio,k->oi", kernel.output_weight[g], hidden) + kernel.output_bias[g]


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize(("depth", "head_shared", "num_frequencies"), [(2, False, 3), (3, True, 3), (4, False, 0)])
def test_matrix_is_the_papers_formula_entry_by_entry(activation, depth, head_shared, num_frequencies):
    kernel = MLP(
        6, 3, 2, width=5, depth=depth, activation=activation, head_shared=head_shared,
        num_frequencies=num_frequencies, sigma=1.0 if num_frequencies else 10.0,
    ).double()  # fmt: skip
    check_entries(randomise(kernel), literal_entry)


def test_causal_matrix_is_zero_where_y_comes_after_x():
    kernel = randomise(MLP(4, 2, 1, is_causal=True, **SMALL))
    kappa = kernel.matrix(torch.randn(1, 5, 4), Sequence(5))
    zero = (kappa == 0).all(-1).all(-1)[0]
    assert torch.equal(zero, torch.ones(5, 5).triu(1).bool())


def test_causal_matrix_compares_times_where_both_domains_have_them():
    kernel = randomise(MLP(4, 2, 1, is_causal=True, **SMALL))
    times, query_times = torch.tensor([0.0, 0.1, 0.5, 2.0]), torch.tensor([-1.0, 0.1, 0.7])
    kappa = kernel.matrix(
        torch.randn(1, 4, 4), Sequence(times=times), torch.randn(1, 3, 4), Sequence(times=query_times)
    )
    assert (kappa != 0).any(-1).any(-1)[0].sum(-1).tolist() == [0, 2, 3]


def test_initial_operator_is_the_mean():
    kernel = MLP(6, 2, 2)
    u = torch.randn(2, 35, 6)
    kappa = kernel.matrix(u, Grid(5, 7))
    mean = torch.einsum("bqkoi,bki->bqo", kappa, u / 35)
    # epsilon = 1e-3 keeps the learned part a small correction to b2 = I
    torch.testing.assert_close(mean, u.mean(1, keepdim=True).expand_as(u), atol=5e-3, rtol=0)


def test_initialisation_has_the_papers_scales():
    kernel = MLP(32, 2, 2, width=64, depth=3)
    assert kernel.get_parameter("input_weight").std().item() == pytest.approx(0.02, rel=0.05)
    assert kernel.output_weight.std().item() == pytest.approx(1e-3 / 8, rel=0.05)
    assert kernel.get_parameter("hidden_weight").std().item() == pytest.approx(math.sqrt(2 / 64), rel=0.05)
    assert not kernel.input_bias.any()
    assert torch.equal(kernel.output_bias, torch.eye(16).expand(2, 16, 16))
    assert kernel.frequencies.shape == (64, 2)
    assert kernel.frequencies.std().item() == pytest.approx(10, rel=0.2)
    assert "frequencies" not in dict(kernel.named_parameters())


def test_golden_parameter_shapes():
    shapes = {name: tuple(p.shape) for name, p in MLP(384, 6, 2, width=128).named_parameters()}
    assert shapes == {
        "input_weight": (6, 128, 577),
        "input_bias": (6, 128),
        "output_weight": (6, 128, 64, 64),
        "output_bias": (6, 64, 64),
    }
    assert MLP(384, 6, 2, head_shared=True).output_weight.shape == (1, 128, 64, 64)


def test_without_inputs_the_kernel_is_constant():
    names = KernelInputs.__dataclass_fields__
    kernel = randomise(MLP(4, 1, 2, inputs=KernelInputs(**dict.fromkeys(names, False)), width=5))
    kappa = kernel.matrix(torch.randn(1, 6, 4), Grid(2, 3))
    torch.testing.assert_close(kappa, kappa[:, :1, :1].expand_as(kappa))
    assert not kernel.reads_query


def test_distance_has_no_nan_gradient_where_points_coincide():
    kernel = randomise(MLP(4, 1, 2, **SMALL))
    pos = torch.rand(3, 2).requires_grad_()
    kernel.matrix(torch.randn(1, 3, 4), Points(pos)).sum().backward()
    assert pos.grad is not None
    assert torch.isfinite(pos.grad).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embed_dim": 10, "num_heads": 3}, "num_heads must divide embed_dim; got 3 heads for 10 channels"),
        ({"embed_dim": 0}, "embed_dim must be at least 1; got 0"),
        ({"embed_dim": 4, "depth": 1}, "depth counts linear layers and must be at least 2; got 1"),
        ({"embed_dim": 4, "num_frequencies": -1}, "num_frequencies must be >= 0"),
        ({"embed_dim": 4, "activation": "swish"}, "activation is 'gelu', 'gelu_tanh' or 'relu'; got 'swish'"),
    ],
)
def test_bad_sizes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        MLP(**arguments)


@pytest.mark.parametrize("num_frequencies", [0, 3])
def test_the_pairwise_form_at_the_points_equals_that_at_equal_queries(num_frequencies: int) -> None:
    kernel = randomise(MLP(4, pos_dim=2, num_frequencies=num_frequencies, width=5))
    at_points, at_queries = kernel.pairwise_form(Grid(2, 3)), kernel.pairwise_form(Grid(2, 3), Grid(2, 3))
    for name, ours, theirs in zip(at_points._fields, at_points, at_queries, strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


@pytest.mark.parametrize(
    ("inputs", "got"),
    [(["distance"], "list"), ({"distance": False}, "dict"), (KernelInputs, "the class KernelInputs")],
)
def test_inputs_of_another_type_are_refused(inputs: Any, got: str) -> None:
    with refused(TypeError, f"kernels.MLP: inputs must be of type kernels.KernelInputs; got {got}"):
        MLP(4, 2, inputs=inputs)
    assert MLP(4, 2, inputs=None).inputs == KernelInputs()
