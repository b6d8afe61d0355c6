"""Whole modules of torch.nn after conversion: the same outputs, gradients and training steps."""

import copy

import pytest
import torch
from torch import Tensor, nn

import fredholm
from fredholm.layers import from_torch, to_torch
from fredholm.layers.torch_layers.attention import AttentionLayer
from fredholm.layers.torch_layers.convolution import ConvolutionLayer
from fredholm.layers.torch_layers.linear import LinearLayer
from fredholm.layers.torch_layers.recurrence import RecurrentLayer
from tests.refusals import refused


class Residual(nn.Module):
    """A small ResNet-like block with batch norm, a strided convolution and a 1 x 1 shortcut."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, padding_mode="reflect"),
        )
        self.shortcut = nn.Conv2d(channels, out, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class LSTMClassifier(nn.Module):
    """Tokens to a class, by the last state of a bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (state, _) = self.lstm(self.embed(tokens))
        return self.head(torch.cat([state[-2], state[-1]], dim=-1))


def encoder(**options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options)


def images() -> Tensor:
    return torch.randn(2, 3, 9, 7, dtype=torch.float64)


MODELS = {
    "transformer encoder": (encoder, lambda: torch.randn(2, 5, 8, dtype=torch.float64)),
    "pre-norm encoder": (lambda: encoder(norm_first=True), lambda: torch.randn(2, 5, 8, dtype=torch.float64)),
    "resnet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), Residual(4, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2)
        ),
        images,
    ),
    "autoencoder": (
        lambda: nn.Sequential(nn.Conv2d(3, 5, 3, 2), nn.GELU(), nn.ConvTranspose2d(5, 3, 3, 2, output_padding=0)),
        images,
    ),
    "lstm classifier": (LSTMClassifier, lambda: torch.randint(11, (3, 6))),
}


def made(name: str) -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(0)
    build, draw = MODELS[name]
    theirs = build().double()
    return theirs, from_torch(theirs), draw()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_same_outputs_and_gradients(name, training):
    theirs, ours, x = made(name)
    theirs.train(training)
    ours.train(training)
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for _ in range(2)]
    expected, out = theirs(inputs[0]), ours(inputs[1])
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    cotangent = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    expected.backward(cotangent)
    out.backward(cotangent)
    if x.is_floating_point():
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad, atol=1e-10, rtol=0)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    # gradients by torch's names: converted back as if they were the parameters
    for parameter in ours.parameters():
        assert parameter.grad is not None
        parameter.data.copy_(parameter.grad)
    gradients = to_torch(ours).state_dict()
    for key, parameter in theirs.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_round_trip_returns_every_value(name):
    theirs, ours, x = made(name)
    back = to_torch(ours)
    assert type(back) is type(theirs)
    assert back.state_dict().keys() == theirs.state_dict().keys()
    for key, value in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[key], value)
    torch.testing.assert_close(back.eval()(x), theirs.eval()(x), atol=1e-12, rtol=0)


def test_every_layer_is_an_operator_and_the_original_is_unchanged():
    theirs, ours, _ = made("transformer encoder")
    before = copy.deepcopy(theirs.state_dict())
    native = (nn.Linear, nn.MultiheadAttention)
    assert not [m for m in ours.modules() if isinstance(m, native)]
    assert sum(isinstance(m, AttentionLayer) for m in ours.modules()) == 2
    assert sum(isinstance(m, LinearLayer) for m in ours.modules()) == 4
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert all(torch.equal(before[key], value) for key, value in theirs.state_dict().items())


def test_an_encoder_applies_padding_and_causal_masks():
    theirs, ours, x = made("transformer encoder")
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    float_padding = torch.zeros(2, 5, dtype=torch.float64).masked_fill(padding, -torch.inf)
    for training in (True, False):
        theirs.train(training)
        ours.train(training)
        for options in (
            {"src_key_padding_mask": padding},
            {"mask": causal, "is_causal": True},
            {"mask": causal, "src_key_padding_mask": float_padding},
        ):
            out, expected = ours(x, **options), theirs(x, **options)
            torch.testing.assert_close(out[0], expected[0], atol=1e-12, rtol=0)
            torch.testing.assert_close(out[1, :3], expected[1, :3], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Linear(3, 2), LinearLayer),
        (nn.Conv1d(3, 2, 3), ConvolutionLayer),
        (nn.ConvTranspose3d(2, 2, 2), ConvolutionLayer),
        (nn.MultiheadAttention(4, 2), AttentionLayer),
        (nn.GRU(3, 2), RecurrentLayer),
        (nn.RNN(3, 2, nonlinearity="relu"), RecurrentLayer),
    ],
)
def test_single_layers(module, kind):
    layer = fredholm.from_torch(module)
    assert type(layer) is kind
    assert type(fredholm.to_torch(layer)) is type(module)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 5, 3), (0, 3), (2, 0, 3)])
def test_linear_on_any_shape(shape):
    theirs = nn.Linear(3, 2).double()
    x = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(from_torch(theirs)(x), theirs(x), atol=1e-15, rtol=0)


def test_a_layer_that_occurs_twice_stays_shared():
    linear = nn.Linear(4, 4)
    ours = from_torch(nn.Sequential(linear, nn.ReLU(), linear))
    assert isinstance(ours, nn.Sequential)
    assert ours[0] is ours[2]


def test_all_layers_that_cannot_be_converted_are_named():
    class Special(nn.Conv1d):
        pass

    model = nn.Sequential(
        nn.Linear(2, 2), nn.Sequential(Special(2, 2, 1)), nn.LSTM(3, 4, proj_size=2), nn.Bilinear(2, 2, 2)
    )
    with refused(ValueError, "1.0 (Special, which has no operator here", "2 (", "proj_size", "3 (Bilinear"):
        from_torch(model)
    with refused(TypeError, "LSTMCell, which is one point of a recurrence"):
        from_torch(nn.LSTMCell(2, 2))
    with refused(ValueError, "Sequential holds none of Conv1d", "MultiheadAttention"):
        from_torch(nn.Sequential(nn.ReLU()))
    with refused(TypeError, "expected a torch.nn.Module; got int"):
        from_torch(3)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "holds no layer that from_torch makes"):
        to_torch(nn.ReLU())
    with refused(ValueError, "1.self_attn (", "add_zero_attn"):
        broken = nn.ModuleList([nn.Linear(2, 2), nn.TransformerEncoderLayer(4, 2)])
        broken[1].self_attn = nn.MultiheadAttention(4, 2, add_zero_attn=True)
        from_torch(broken)


@pytest.mark.slow
def test_a_converted_model_compiles_in_one_graph():
    _, ours, x = made("transformer encoder")
    torch.testing.assert_close(torch.compile(ours, fullgraph=True, backend="aot_eager")(x), ours(x))
