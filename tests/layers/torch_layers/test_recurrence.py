import copy
import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

from fredholm.kernels import LSTM, MLP, RNN
from fredholm.layers.torch_layers.recurrence import RecurrentLayer
from tests.contracts.cells import CELLS, NATIVE, assert_near, gradients
from tests.refusals import refused

names = pytest.mark.parametrize("name", CELLS)
FORMS = list(itertools.product((1, 2, 3), (False, True), (False, True), (True, False)))
forms = pytest.mark.parametrize(
    ("num_layers", "bidirectional", "batch_first", "bias"),
    FORMS,
    ids=lambda value: {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value),
)


def native(name: str, num_layers: int = 1, **options: Any) -> nn.RNNBase:
    """torch's layer of 3 channels and 4 states in float64, with weights larger than at initialisation."""
    layer = NATIVE[name](3, 4, num_layers, **options).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator))
    return layer


def ours(layer: Any) -> RecurrentLayer:
    return RecurrentLayer.from_torch(layer)


def parts(result: Any) -> list[Tensor]:
    """The output and the states of a call, in order."""
    out, state = result
    out = out.data if isinstance(out, PackedSequence) else out
    return [out, *((state,) if isinstance(state, Tensor) else state)]


def start(layer: nn.RNNBase, *batch: int) -> Any:
    """A random hx that requires a gradient."""
    shape = (layer.num_layers * (2 if layer.bidirectional else 1), *batch, 4)
    made = [torch.randn(shape, dtype=torch.float64).requires_grad_() for _ in range(1 + isinstance(layer, nn.LSTM))]
    return tuple(made) if len(made) > 1 else made[0]


def check(layer: nn.RNNBase, u: Any, hx: Any) -> None:
    """Asserts outputs and states within 1e-12 of torch's, and all gradients within 1e-10."""
    mine = ours(layer)
    got, expected = mine(u, hx), layer(u, hx)
    assert_near(parts(got), parts(expected), 1e-12)
    assert isinstance(got[1], tuple) == isinstance(expected[1], tuple)
    leaves = [u.data if isinstance(u, PackedSequence) else u]
    leaves += [] if hx is None else [hx] if isinstance(hx, Tensor) else list(hx)
    named = dict(layer.named_parameters())
    pairs = [(getattr(mine, name), parameter) for name, parameter in named.items()]
    assert len(pairs) == len(list(layer.parameters())) == len(list(mine.parameters()))
    ours_grads = gradients(parts(got), [*leaves, *(pair[0] for pair in pairs)])
    theirs = gradients(parts(expected), [*leaves, *(pair[1] for pair in pairs)])
    assert_near(ours_grads, theirs, 1e-10)


@pytest.mark.pairs
@names
@forms
def test_equals_torchs_layer(name, num_layers, bidirectional, batch_first, bias):
    layer = native(name, num_layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias)
    u = torch.randn(5, 2, 3, dtype=torch.float64).requires_grad_()
    check(layer, u, None)
    check(layer, u, start(layer, 5 if batch_first else 2))


@names
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("length", [1, 6])
def test_without_a_batch(name, bidirectional, length):
    layer = native(name, 2, bidirectional=bidirectional)
    u = torch.randn(length, 3, dtype=torch.float64).requires_grad_()
    check(layer, u, None)
    check(layer, u, start(layer))


@names
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", [[6, 4, 4, 1], [4, 1, 6, 4], [5, 5], [1]], ids=str)
def test_packed_sequences(name, bidirectional, lengths):
    layer = native(name, 2, bidirectional=bidirectional)
    u = torch.randn(len(lengths), max(lengths), 3, dtype=torch.float64)
    is_sorted = lengths == sorted(lengths, reverse=True)
    packed = pack_padded_sequence(u, torch.tensor(lengths), batch_first=True, enforce_sorted=is_sorted)
    packed = PackedSequence(packed.data.requires_grad_(), *packed[1:])
    check(layer, packed, None)
    check(layer, packed, start(layer, len(lengths)))
    got, expected = ours(layer)(packed)[0], layer(packed)[0]
    assert isinstance(got, PackedSequence)
    assert torch.equal(got.batch_sizes, expected.batch_sizes)
    assert got.sorted_indices is expected.sorted_indices
    assert got.unsorted_indices is expected.unsorted_indices


def test_packing_of_single_sequences():
    layer = native("gru")
    packed = pack_sequence([torch.randn(n, 3).double() for n in (4, 2)])
    assert_near(parts(ours(layer)(packed)), parts(layer(packed)), 1e-12)


@pytest.mark.pairs
@names
@forms
def test_a_round_trip_keeps_the_layer(name, num_layers, bidirectional, batch_first, bias):
    options = {"bidirectional": bidirectional, "batch_first": batch_first, "bias": bias}
    dropout = 0.25 if num_layers > 1 else 0.0
    layer = native(name, num_layers, dropout=dropout, **options).float().eval()
    layer.weight_hh_l0.requires_grad_(False)
    back = ours(layer).to_torch()
    assert type(back) is type(layer)
    assert back.extra_repr() == layer.extra_repr()
    assert back.mode == layer.mode
    assert not back.training
    assert ours(copy.deepcopy(layer).train()).training
    for (name_b, b), (name_a, a) in zip(back.named_parameters(), layer.named_parameters(), strict=True):
        assert name_a == name_b
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
        assert a.requires_grad == b.requires_grad
        assert a.data_ptr() != b.data_ptr()


@names
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_steps_equal_the_whole_sequence_at_every_split(name, dtype, tolerance):
    mine = ours(native(name, 2)).to(dtype)
    u = torch.randn(6, 2, 3, dtype=dtype)
    with torch.no_grad():
        whole = parts(mine(u))
        for split in range(7):
            rows, state = mine(u[:split], mine.initial_state(2))
            for t in range(split, 6):
                row, state = mine.step(u[t], state)
                rows = torch.cat([rows, row[None]])
            assert_near(parts((rows, state)), whole, tolerance)
    assert_near([mine.step(u[0])[0]], [whole[0][0]], tolerance)


@names
def test_chunks_carry_the_state(name):
    layer = native(name, 2)
    mine, u = ours(layer), torch.randn(7, 2, 3, dtype=torch.float64)
    first, state = mine(u[:3])
    second, state = mine(u[3:], state)
    assert_near(parts((torch.cat([first, second]), state)), parts(layer(u)), 1e-12)


def test_dropout_is_applied_between_layers_only_in_training():
    layer = native("lstm", 3, dropout=0.5)
    mine, u = ours(layer), torch.randn(5, 2, 3, dtype=torch.float64)
    assert not torch.equal(mine(u)[0], mine(u)[0])
    assert_near(parts(mine.eval()(u)), parts(layer.eval()(u)), 1e-12)
    mine.train().dropout = 1.0
    silenced = nn.LSTM(4, 4).double()
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(silenced, f"{name}_l0").data.copy_(getattr(layer, f"{name}_l2"))
    assert_near([mine(u)[0]], [silenced(torch.zeros(5, 2, 4).double())[0]], 1e-12)
    alone = RecurrentLayer(LSTM, 3, 4, dropout=0.9)
    assert torch.equal(alone(u.float())[0], alone(u.float())[0])


@names
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_dropout_is_the_same_as_torchs(name, bidirectional, batch_first):
    layer = native(name, 3, dropout=0.4, bidirectional=bidirectional, batch_first=batch_first)
    u = torch.randn(5, 4, 3, dtype=torch.float64).requires_grad_()
    results = []
    for module in (layer, ours(layer)):
        torch.manual_seed(2)
        found = parts(module(u))
        results.append([*found, *gradients(found, [u])])
    assert_near(results[1], results[0], 1e-10)


def test_an_empty_signal():
    mine = ours(native("lstm", 2, bidirectional=True))
    hx = tuple(torch.randn(4, 3, 4).double() for _ in range(2))
    out, (h, c) = mine(torch.zeros(0, 3, 3).double(), hx)
    assert out.shape == (0, 3, 8)
    assert torch.equal(h, hx[0])
    assert torch.equal(c, hx[1])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_compiles_to_one_graph(bidirectional):
    torch.compiler.reset()
    mine = ours(native("gru", 2, bidirectional=bidirectional))
    u = torch.randn(5, 2, 3, dtype=torch.float64).requires_grad_()
    expected, got = mine(u), torch.compile(mine, fullgraph=True, backend="aot_eager")(u)
    assert_near(parts(got), parts(expected), 1e-12)
    leaves = [u, *mine.parameters()]
    assert_near(gradients(parts(got), leaves), gradients(parts(expected), leaves), 1e-10)
    torch.compiler.reset()


def test_unsupported_uses_of_the_layer_are_refused():
    mine = RecurrentLayer(LSTM, 3, 4, 2)
    u = torch.randn(5, 2, 3)
    with refused(ValueError, "hx must be (h, c), each (2, 2, 4)", "(2, 3, 4), (2, 3, 4)"):
        mine(u, (torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)))
    with refused(ValueError, "hx must be (h, c)", "got (2, 2, 4)"):
        mine(u, torch.zeros(2, 2, 4))
    with refused(ValueError, "(2, 4) = (num_layers * directions, hidden_size)"):
        mine(u[:, 0], (torch.zeros(2, 2, 4), torch.zeros(2, 2, 4)))
    with refused(TypeError, "torch.float32", "torch.float64"):
        mine(u, tuple(torch.zeros(2, 2, 4).double() for _ in range(2)))
    with refused(ValueError, "expected a signal", "(5, 2, 3, 1)"):
        mine(u[..., None])
    with refused(ValueError, "3 channels", "(2, 5, 4)"):
        mine(torch.randn(5, 2, 4))
    with refused(TypeError, "two tensors, (h, c)", "NoneType, NoneType"):
        mine(u, (None, None))  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "one point, (batch, channels)", "(5, 2, 3)"):
        mine.step(u)
    both = RecurrentLayer(LSTM, 3, 4, bidirectional=True)
    with refused(ValueError, "a bidirectional layer reads later points", "bidirectional=False"):
        both.step(u[0])
    with refused(ValueError, "proj_size=2", "nn.Linear"):
        RecurrentLayer.from_torch(nn.LSTM(3, 4, proj_size=2))
    with refused(TypeError, "converts nn.GRU, nn.LSTM, nn.RNN", "LSTMCell"):
        RecurrentLayer.from_torch(nn.LSTMCell(3, 4))  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "it built MLP"):
        RecurrentLayer(MLP, 3, 3)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "num_layers must be at least 1; got 0"):
        RecurrentLayer(LSTM, 3, 4, 0)
    with refused(ValueError, "dropout is a probability in [0, 1]; got 1.5"):
        RecurrentLayer(LSTM, 3, 4, dropout=1.5)


def test_options_of_the_kernel_are_passed_by_the_builder():
    mine = RecurrentLayer(functools.partial(RNN, nonlinearity="relu", bias=False), 3, 4, 2, batch_first=True)
    back = mine.to_torch()
    assert (back.mode, back.bias, back.batch_first) == ("RNN_RELU", False, True)
    u = torch.randn(2, 5, 3)
    torch.testing.assert_close(mine(u)[0], back(u)[0])
    mine.flatten_parameters()
    assert "num_layers=2" in repr(mine)
