"""Attributes of torch's layers on the converted layers."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm import kernels, layers
from tests.refusals import refused

# typed as Any: tests use attributes of the model that type checkers do not know
from_torch: Any = layers.from_torch
to_torch: Any = layers.to_torch

MODULES: dict[str, nn.Module] = {
    "linear": nn.Linear(3, 5),
    "linear without bias": nn.Linear(3, 5, bias=False),
    "conv1d": nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2),
    "conv2d": nn.Conv2d(4, 6, (3, 2), padding=(1, 0), padding_mode="circular", bias=False),
    "conv2d same": nn.Conv2d(4, 6, (4, 2), padding="same"),
    "conv3d transposed": nn.ConvTranspose3d(4, 6, 3, stride=2, output_padding=1),
    "rnn": nn.RNN(3, 4, 2, nonlinearity="relu", bias=False),
    "lstm": nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True, dropout=0.2),
    "gru": nn.GRU(3, 4),
    "attention": nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True),
    "attention without bias": nn.MultiheadAttention(8, 2, bias=False),
    "attention of other channels": nn.MultiheadAttention(8, 4, kdim=3, vdim=5),
}
PACKED = {
    "in_proj_weight",
    "in_proj_bias",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
}  # attention packs its weights by one of two rules


def public(module: nn.Module) -> dict[str, Any]:
    """Attributes and parameters of torch's layer that not every module has."""
    inner = vars(nn.Module()).keys()
    attributes = {n: value for n, value in vars(module).items() if n not in inner and not n.startswith("_flat")}
    return attributes | module._parameters


@pytest.mark.parametrize("name", MODULES)
def test_has_the_attributes_of_torchs_layer(name):
    theirs = MODULES[name]
    ours = from_torch(theirs)
    for key, value in public(theirs).items():
        if key in PACKED or key.startswith("_"):
            continue
        mine = getattr(ours, key)
        if isinstance(value, Tensor):
            assert torch.equal(mine, value), key
            assert mine.requires_grad
        else:
            assert mine == value, key
            assert type(mine) is type(value), key


@pytest.mark.parametrize("name", [name for name in MODULES if "attention" not in name])
def test_an_attribute_is_the_parameter_itself(name):
    ours = from_torch(MODULES[name])
    identities = {id(p) for p in ours.parameters()}
    for key, _ in MODULES[name].named_parameters():
        assert isinstance(getattr(ours, key), nn.Parameter)
        assert id(getattr(ours, key)) in identities
        fresh = nn.Parameter(torch.randn_like(getattr(ours, key)))
        setattr(ours, key, fresh)
        assert getattr(ours, key) is fresh
        assert any(p is fresh for p in ours.parameters())
        assert torch.equal(to_torch(ours).get_parameter(key), fresh)
        assert ours.get_parameter(key) is fresh
    assert len(list(ours.parameters())) == len(identities)
    assert not ours.state_dict().keys() & dict(MODULES[name].named_parameters()).keys()


def test_attention_packs_the_same_weights_as_torch():
    theirs = nn.MultiheadAttention(8, 2)
    ours = from_torch(theirs)
    assert torch.equal(ours.in_proj_weight, theirs.in_proj_weight)
    assert torch.equal(ours.in_proj_bias, theirs.in_proj_bias)
    assert torch.equal(ours.q_proj_weight, theirs.in_proj_weight[:8])
    assert torch.equal(ours.out_proj.weight, theirs.out_proj.weight)
    assert torch.equal(ours.out_proj.bias, theirs.out_proj.bias)
    assert (ours.out_proj.in_features, ours.out_proj.out_features) == (8, 8)
    assert ours.out_proj.weight is ours.operator.output_weight
    ours.in_proj_weight.sum().backward()
    assert torch.equal(ours.operator.kernel.projections.key_weight.grad, torch.ones(8, 8))
    with pytest.raises((KeyError, AttributeError)):
        ours.in_proj_weight = theirs.in_proj_weight


def test_recurrence_lists_its_weights_as_torchs_does():
    theirs = nn.LSTM(3, 4, 2, bidirectional=True)
    ours = from_torch(theirs)
    for mine, torchs in zip(ours.all_weights, theirs.all_weights, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, torchs, strict=True))


@pytest.mark.parametrize("name", MODULES)
def test_there_are_no_further_attributes_and_copies_have_their_own(name):
    ours = from_torch(MODULES[name])
    assert not hasattr(ours, "no_such_name")
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ours.no_such_name
    other = copy.deepcopy(ours)
    for key in ours.torch_names:
        mine = getattr(ours, key)
        assert mine is None or getattr(other, key) is not mine


def test_attributes_compile_in_one_graph():
    ours = from_torch(nn.Linear(3, 5))

    def read(x: Tensor) -> Tensor:
        return ours(x.to(ours.weight.dtype)) @ ours.weight + ours.in_features

    x = torch.randn(2, 3)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(read, fullgraph=True, backend="eager")(x), read(x))
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("theirs", "x"),
    [
        (nn.Linear(3, 2), torch.randn(2, 3)),
        (nn.Conv1d(3, 2, 2), torch.randn(1, 3, 4)),
        (nn.GRU(3, 2), torch.randn(4, 1, 3)),
    ],
)
def test_the_input_argument_has_torchs_name(theirs, x):
    out, expected = from_torch(theirs)(input=x), theirs(input=x)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    ("native", "shape", "needed"),
    [(nn.Linear(3, 3), (2, 3), "Pointwise"), (nn.Conv1d(3, 3, 1), (2, 3, 5), "Convolution")],
)
def test_another_kernel_in_place_of_a_layers_own_is_refused(
    native: nn.Module, shape: tuple[int, ...], needed: str
) -> None:
    layer = from_torch(native)
    layer.operator.kernel = kernels.Attention(3, 1)
    with refused(
        TypeError, f"its operator needs a kernels.{needed}; got Attention", "put an IntegralOperator in place"
    ):
        layer(torch.zeros(shape))
