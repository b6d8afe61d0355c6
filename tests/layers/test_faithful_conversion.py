"""Conversion keeps shared weights, hooks, attributes and the random state, or names what it cannot keep."""

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from fredholm import layers
from fredholm.layers.torch_layers.attention import AttentionLayer
from fredholm.layers.torch_layers.linear import LinearLayer
from tests.refusals import refused

# typed as Any: tests use attributes of the model that type checkers do not know
from_torch: Any = layers.from_torch
to_torch: Any = layers.to_torch

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")


class TiedModel(nn.Module):
    """A model from tokens to logits whose head shares the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embed(tokens))))


def trained(model: nn.Module, x: Tensor, steps: int = 3) -> Tensor:
    """The output after a few steps of Adam."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()
    return model(x)


def test_a_head_tied_to_an_embedding_stays_tied():
    torch.manual_seed(0)
    theirs, tokens = TiedModel().double(), torch.randint(7, (3, 5))
    ours = from_torch(theirs)
    assert ours.head.weight is ours.embed.weight
    assert ours.embed.weight is not theirs.embed.weight
    assert len(list(ours.parameters())) == len(list(theirs.parameters()))
    torch.testing.assert_close(trained(ours, tokens), trained(theirs, tokens), atol=1e-10, rtol=0)
    assert ours.head.kernel.weight is ours.embed.weight
    back = to_torch(ours)
    assert back.head.weight is back.embed.weight
    torch.testing.assert_close(back(tokens), ours(tokens), atol=1e-12, rtol=0)


def shared_linears() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def shared_convolutions() -> nn.Module:
    one, other = nn.Conv1d(4, 4, 1), nn.ConvTranspose1d(4, 4, 1)
    other.weight, other.bias = one.weight, one.bias
    return nn.Sequential(nn.Flatten(1), nn.Unflatten(-1, (4, -1)), one, nn.Tanh(), other)


def shared_recurrences() -> nn.Module:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.LSTM(4, 4), nn.LSTM(4, 4)
            self.other.weight_hh_l0 = self.one.weight_hh_l0

        def forward(self, x: Tensor) -> Tensor:
            return self.other(self.one(x)[0])[0]

    return Pair()


def shared_attention() -> nn.Module:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)
            self.other.in_proj_weight = self.one.in_proj_weight
            self.other.out_proj.weight = self.one.out_proj.weight

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x, x, x)[0]
            return self.other(x, 2 * x, x)[0]

    return Pair()


@pytest.mark.parametrize("build", [shared_linears, shared_convolutions, shared_recurrences, shared_attention])
def test_layers_that_share_a_parameter_still_share_it(build: Callable[[], nn.Module]):
    torch.manual_seed(0)
    theirs, x = build().double(), torch.randn(3, 2, 4, dtype=torch.float64)
    ours = from_torch(theirs)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    torch.testing.assert_close(trained(ours, x), trained(theirs, x), atol=1e-10, rtol=0)
    back = to_torch(ours)
    assert len(list(back.parameters())) == len(list(theirs.parameters()))
    torch.testing.assert_close(trained(back, x), trained(theirs, x), atol=1e-9, rtol=0)


def test_a_packed_weight_that_another_module_uses_whole_is_refused():
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)
            self.packed = self.attention.in_proj_weight

    with refused(ValueError, "attention (", "in_proj_weight is also packed"):
        from_torch(Reader())


def test_a_layer_in_a_plain_list_is_converted():
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
            self.order: list[Any] = [self.other, self.one]
            self.named = {"first": self.one, "none": None}
            self.again = self.order
            self.order.append(self.order)
            object.__setattr__(self, "last", self.other)

    ours = from_torch(Listed())
    assert ours.order[0] is ours.other
    assert ours.order[1] is ours.one
    assert ours.named["first"] is ours.one
    assert ours.last is ours.other
    assert ours.again is ours.order
    assert type(to_torch(ours).order[0]) is nn.Linear


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 4), (3, 4)),
    "convolution": (lambda: nn.Conv1d(4, 4, 3, padding=1), (2, 4, 5)),
    "attention": (lambda: nn.MultiheadAttention(4, 2), (3, 2, 4)),
    "recurrence": (lambda: nn.GRU(4, 4), (3, 2, 4)),
}


def call(layer: nn.Module, x: Tensor, name: str) -> Tensor:
    out = layer(x, key=x, value=x) if name == "attention" else layer(x)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("nested", [False, True])
def test_hooks_run_as_before(name, nested):
    torch.manual_seed(0)
    build, shape = KINDS[name]
    found: list[Any] = []
    theirs: Any = build().double()

    def before(module, args, kwargs):
        found.append(("before", type(module), sorted(kwargs)))
        return (2 * args[0], *args[1:]), kwargs

    def after(module, args, kwargs, out):
        found.append(("after", type(module), sorted(kwargs)))
        return (3 * out[0], *out[1:]) if isinstance(out, tuple) else 3 * out

    def backward(module, grad_input, grad_output):
        found.append(("backward", type(module), [tuple(g.shape) for g in grad_output if g is not None]))
        return tuple(None if g is None else 5 * g for g in grad_input)

    def before_backward(module, grad_output):
        return tuple(None if g is None else 7 * g for g in grad_output)

    theirs.register_forward_pre_hook(before, with_kwargs=True)
    theirs.register_forward_hook(after, with_kwargs=True)
    theirs.register_full_backward_hook(backward)
    theirs.register_full_backward_pre_hook(before_backward)
    ours = from_torch(nn.Sequential(theirs))[0] if nested else from_torch(theirs)
    assert type(ours) is not type(theirs)
    results = []
    for layer in (theirs, ours, to_torch(ours)):
        found.clear()
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
        out = call(layer, x, name)
        out.sum().backward()
        results.append((out, x.grad, [(hook, more) for hook, _, more in found]))
        assert all(kind is type(layer) for _, kind, _ in found)
        assert [hook for hook, *_ in found] == ["before", "after", "backward"]
    for out, grad, calls in results[1:]:
        torch.testing.assert_close(out, results[0][0], atol=1e-12, rtol=0)
        torch.testing.assert_close(grad, results[0][1], atol=1e-10, rtol=0)
        assert calls == results[0][2]


@pytest.mark.parametrize("frozen", [False, True])
def test_attributes_and_hooks_of_a_parameter_are_kept(frozen):
    theirs: Any = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.MultiheadAttention(3, 1))
    theirs[0].weight.no_weight_decay = True
    theirs[1].weight.role = "scale"
    theirs[2].in_proj_weight.no_weight_decay = True
    counted: list[int] = []
    for layer in theirs[:2]:
        layer.weight.register_hook(lambda grad: 0 * grad)
        layer.bias.register_post_accumulate_grad_hook(lambda parameter: counted.append(1))
    theirs[0].requires_grad_(not frozen)
    ours = from_torch(theirs)
    for model in (theirs, ours, to_torch(ours)):
        model[:2].requires_grad_()
        counted.clear()
        model[1](model[0](torch.randn(2, 3))).square().sum().backward()
        assert not model[0].weight.grad.any()
        assert not model[1].weight.grad.any()
        assert model[0].bias.grad.any()
        assert len(counted) == 2
        assert model[0].weight.no_weight_decay
        assert model[1].weight.role == "scale"
    assert all(p.no_weight_decay for p in (ours[2].q_proj_weight, ours[2].k_proj_weight, ours[2].v_proj_weight))
    assert to_torch(ours)[2].in_proj_weight.no_weight_decay
    theirs[2].in_proj_weight.register_hook(lambda grad: 0 * grad)
    with refused(ValueError, "2 (", "hook on the gradient of in_proj_weight"):
        from_torch(theirs)
    alone = nn.Linear(2, 2)
    alone.weight.register_hook(lambda grad: 0 * grad)
    for layer in (from_torch(alone), to_torch(from_torch(alone))):
        layer(torch.ones(2)).sum().backward()
        assert not layer.weight.grad.any()


def test_a_hook_registered_with_always_call_still_runs():
    found = []
    theirs = nn.Linear(3, 3)
    theirs.register_forward_hook(lambda *_: found.append(1), always_call=True)
    with pytest.raises(ValueError, match="3 channels"):
        from_torch(theirs)(torch.randn(2, 4))
    assert found == [1]


@pytest.mark.filterwarnings("ignore:Using non-full backward hooks")
def test_hooks_without_the_same_meaning_are_refused():
    def state(module, *_):
        return None

    for add in (
        lambda layer: layer.register_backward_hook(state),
        lambda layer: layer.register_state_dict_post_hook(state),
        lambda layer: layer.register_state_dict_pre_hook(state),
        lambda layer: layer.register_load_state_dict_pre_hook(state),
        lambda layer: layer.register_load_state_dict_post_hook(state),
    ):
        model: Any = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
        add(model[1])
        with refused(ValueError, "from_torch: cannot convert 1 (", "hook", "remove it"):
            from_torch(model)
        with refused(ValueError, "hook", "remove it"):
            from_torch(model[1])


PARAMETRISED: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "weight_norm": (parametrizations.weight_norm, "remove_parametrizations"),
    "spectral_norm": (parametrizations.spectral_norm, "remove_parametrizations"),
    "old weight_norm": (nn.utils.weight_norm, "remove_weight_norm"),
    "old spectral_norm": (nn.utils.spectral_norm, "remove_spectral_norm"),
    "prune": (lambda layer: prune.l1_unstructured(layer, "weight", 0.5), "prune.remove"),
}


@pytest.mark.pairs
@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", PARAMETRISED)
def test_a_parametrised_weight_is_refused_with_its_path(name, kind, frozen):
    change, advice = PARAMETRISED[name]
    layer = KINDS[kind][0]().requires_grad_(not frozen)
    model: Any = nn.ModuleDict({"fine": nn.Linear(2, 2), "block": nn.Sequential(layer)})
    change(model["block"][0])
    with refused(ValueError, "block.0 (", "weight", advice):
        from_torch(model)
    with pytest.raises((TypeError, ValueError), match=advice):
        from_torch(model["block"][0])


def test_parametrised_weights_of_attention_recurrence_and_others_are_refused():
    model: Any = nn.ModuleList([nn.Linear(2, 2), nn.MultiheadAttention(4, 2)])
    parametrizations.weight_norm(model[1].out_proj)
    with refused(ValueError, "1 (", "out_proj", "remove_parametrizations"):
        from_torch(model)
    model[1] = nn.LSTM(2, 2)
    parametrizations.weight_norm(model[1], "weight_hh_l0")
    with refused(ValueError, "1 (", "remove_parametrizations"):
        from_torch(model)
    model[1] = nn.utils.weight_norm(nn.LSTM(2, 2), "weight_hh_l0")
    with refused(ValueError, "1 (", "remove_weight_norm"):
        from_torch(model)
    model[1] = nn.utils.weight_norm(nn.Embedding(4, 2))
    with refused(ValueError, "1 (", "remove_weight_norm"):
        from_torch(model)
    model[1] = parametrizations.weight_norm(nn.Embedding(4, 2))  # is not converted
    ours = from_torch(model)
    tokens = torch.arange(4)
    assert torch.equal(ours[1](tokens), model[1](tokens))


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(2, 2, dtype=torch.complex64),
        nn.MultiheadAttention(4, 2, dtype=torch.complex64),
        nn.GRU(2, 2, dtype=torch.complex64),
        nn.ConvTranspose2d(2, 2, 1, dtype=torch.complex128),
    ],
    ids=lambda module: type(module).__name__,
)
def test_complex_layers_are_refused(module):
    with refused(ValueError, "inner.0 (", "weights must be real", "complex"):
        from_torch(nn.ModuleDict({"inner": nn.Sequential(module)}))
    with refused(TypeError, "weights must be real", "complex"):
        from_torch(module)


def test_additions_to_a_layer_are_kept_or_refused():
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    model[0].note, model[0]._mark = "kept", [1, 2]
    ours = from_torch(model)
    assert (ours[0].note, ours[0]._mark) == ("kept", [1, 2])
    back = to_torch(ours)
    assert (back[0].note, back[0]._mark) == ("kept", [1, 2])
    for change, message in (
        (lambda layer: setattr(layer, "forward", types.MethodType(lambda self, x: x, layer)), "forward"),
        (lambda layer: layer.register_parameter("lora", nn.Parameter(torch.zeros(2))), "lora"),
        (lambda layer: layer.register_buffer("seen", torch.zeros(2)), "seen"),
        (lambda layer: layer.add_module("adapter", nn.Linear(2, 2)), "adapter"),
        (lambda layer: setattr(layer, "in_features", 3), "(2, 2), where its options ask for (2, 3)"),
        (lambda layer: setattr(layer, "kernel", 3), "kernel"),
    ):
        changed = copy.deepcopy(model)
        change(changed[0])
        with refused(ValueError, "cannot convert 0 (", message):
            from_torch(changed)


def test_a_compiled_layer_is_refused_and_a_compiled_model_converted():
    layer: Any = nn.Linear(2, 2)
    inside: Any = torch.compile(layer)
    for compiled, path in ((inside, "OptimizedModule"), (nn.Sequential(inside), "0")):
        with refused(ValueError, f"{path} (is compiled", "convert that first"):
            from_torch(compiled)
    ours = from_torch(torch.compile(nn.Sequential(layer), backend="eager"))
    with torch.no_grad():
        ours._orig_mod[0].weight.zero_()
    assert torch.equal(ours(torch.randn(3, 2)), layer.bias.expand(3, 2))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_modules_of_torch_jit_are_refused():
    made = torch.jit.script(nn.Linear(2, 2))
    with refused(ValueError, "RecursiveScriptModule (is made by torch.jit", "module that it was made from"):
        from_torch(made)
    with refused(ValueError, "1 (is made by torch.jit"):
        from_torch(nn.Sequential(nn.Linear(2, 2), made))


def test_layers_without_an_operator_are_refused():
    model = nn.ModuleDict(
        {
            "bilinear": nn.Bilinear(2, 2, 2),
            "cell": nn.LSTMCell(2, 2),
            "projected": nn.LSTM(2, 4, proj_size=2),
            "biased": nn.MultiheadAttention(4, 2, add_bias_kv=True),
            "zero": nn.MultiheadAttention(4, 2, add_zero_attn=True),
            "lazy": nn.LazyLinear(2),
            "fine": nn.Linear(2, 2),
        }
    )
    with refused(
        ValueError,
        "bilinear (Bilinear",
        "cell (LSTMCell",
        "projected (RecurrentLayer.from_torch: proj_size=2",
        "biased (",
        "add_bias_kv",
        "zero (",
        "add_zero_attn",
        "lazy (LazyLinear",
        "call it once",
    ):
        from_torch(model)


@pytest.mark.parametrize("name", KINDS)
def test_conversion_draws_no_random_number_and_keeps_dtypes_flags_and_modes(name):
    theirs: Any = KINDS[name][0]().eval()
    for index, parameter in enumerate(theirs.parameters()):
        parameter.requires_grad_(index % 2 == 0)
    state = torch.random.get_rng_state()
    ours = from_torch(theirs)
    back = to_torch(ours)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(module.training for module in (*ours.modules(), *back.modules()))
    flags = {key: p.requires_grad for key, p in theirs.named_parameters()}
    assert {key: p.requires_grad for key, p in back.named_parameters()} == flags
    assert sum(p.numel() for p in ours.parameters() if p.requires_grad) == sum(
        p.numel() for p in theirs.parameters() if p.requires_grad
    )
    if name == "linear":
        theirs.bias.data = theirs.bias.data.double()
        assert from_torch(theirs).bias.dtype == torch.float64
    meta = from_torch(KINDS[name][0]().to("meta"))
    assert all(p.is_meta for p in meta.parameters())


def test_partly_frozen_attention_does_not_fit_torchs_packed_weight():
    layer = from_torch(nn.MultiheadAttention(4, 2))
    assert isinstance(layer, AttentionLayer)
    layer.q_proj_weight.requires_grad_(False)
    with refused(ValueError, "requires_grad", "in_proj_weight"):
        to_torch(layer)


def test_partly_tied_attention_does_not_fit_torchs_packed_weight():
    pair = from_torch(nn.ModuleList([nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)]))
    pair[1].q_proj_weight = pair[0].q_proj_weight
    with refused(ValueError, "1 (", "a part of in_proj_weight is shared"):
        to_torch(pair)
    alone = from_torch(nn.MultiheadAttention(4, 2))
    alone.q_proj_weight = alone.k_proj_weight
    with refused(ValueError, "a part of in_proj_weight is shared"):
        to_torch(alone)


def test_weights_can_be_tied_after_the_conversion():
    ours = from_torch(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5)))
    head = ours[1]
    assert type(head) is LinearLayer
    head.weight = ours[0].weight
    head.bias = None
    assert head.kernel.weight is ours[0].weight
    assert {name for name, _ in ours.named_parameters()} == {"0.weight"}
    tokens = torch.arange(5)
    torch.testing.assert_close(ours(tokens), ours[0].weight @ ours[0].weight.T)
    with pytest.raises(TypeError, match="cannot assign"):
        head.weight = torch.zeros(5, 3)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_transformers_with_attention_dropout_train_like_torchs():
    torch.manual_seed(0)
    theirs = nn.Transformer(8, 2, 1, 2, 16, dropout=0.3).double()
    ours = from_torch(theirs)
    source, target = torch.randn(5, 2, 8).double(), torch.randn(4, 2, 8).double()
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    for training in (True, False):
        results = []
        for model in (theirs.train(training), ours.train(training)):
            torch.manual_seed(1)
            model.zero_grad()
            out = model(source, target, tgt_mask=mask, tgt_is_causal=True)
            out.square().sum().backward()
            results.append(out)
        torch.testing.assert_close(results[1], results[0], atol=1e-12, rtol=0)
        flat = copy.deepcopy(ours)
        for mine, parameter in zip(flat.parameters(), ours.parameters(), strict=True):
            mine.data.copy_(parameter.grad)
        grads = to_torch(flat).state_dict()
        for key, parameter in theirs.named_parameters():
            torch.testing.assert_close(grads[key], parameter.grad, atol=1e-10, rtol=0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_an_encoder_is_converted_back_with_its_fast_paths():
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    assert theirs.use_nested_tensor
    ours = from_torch(theirs)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    u = torch.randn(2, 5, 8)
    with torch.no_grad():
        out, expected = ours.eval()(u, src_key_padding_mask=padding), theirs.eval()(u, src_key_padding_mask=padding)
    torch.testing.assert_close(out[0], expected[0])
    torch.testing.assert_close(out[1, :3], expected[1, :3])
    assert to_torch(ours).use_nested_tensor
