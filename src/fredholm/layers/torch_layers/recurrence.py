"""A stack of recurrence operators that is called as torch's recurrent layers are."""

import functools
from collections.abc import Callable
from typing import Self, cast, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fredholm._precision import autocast_dtype
from fredholm._settings import check_count
from fredholm.domains import Sequence
from fredholm.kernels import GRU, LSTM, RNN, State
from fredholm.kernels.recurrence.cell_recurrence import CellMode, CellRecurrence
from fredholm.layers.torch_layers.layer import LayoutConverter, TorchLayer
from fredholm.operators.integral import IntegralOperator

NativeRecurrent = nn.RNN | nn.LSTM | nn.GRU

_KERNELS: dict[CellMode, Callable[..., CellRecurrence]] = {
    "rnn_tanh": functools.partial(RNN, nonlinearity="tanh"),
    "rnn_relu": functools.partial(RNN, nonlinearity="relu"),
    "lstm": LSTM,
    "gru": GRU,
}
_MODULES: dict[CellMode, Callable[..., NativeRecurrent]] = {
    "rnn_tanh": functools.partial(nn.RNN, nonlinearity="tanh"),
    "rnn_relu": functools.partial(nn.RNN, nonlinearity="relu"),
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}


@final
class RecurrentLayer(TorchLayer[NativeRecurrent]):
    """Integral operators with recurrence kernels, one per layer and direction, in place of torch's RNN, LSTM and GRU.

    Under autocast the recurrence runs in the dtype of its parameters; the output has the dtype of torch's layer.

    Args:
        kernel: builds the kernel of a layer from its channels in and out: `kernels.LSTM`, or, for its options,
            `functools.partial(kernels.RNN, nonlinearity="relu", bias=False)`.
        input_size: channels of the signal, >= 1.
        hidden_size: channels n of each direction's output, >= 1.
        num_layers: number of layers, each reading the output of the previous one, >= 1.
        batch_first: signals are `(B, T, C)` instead of torch's default `(T, B, C)`; states keep their layout.
        dropout: probability in [0, 1] with which the output of each layer but the last is zeroed in training mode.
        bidirectional: a second operator per layer reads the reversed signal; the outputs are concatenated.

    Attributes:
        operators: the integral operators, layer by layer, the forward direction first.

    Raises:
        ValueError: on sizes below 1 or a dropout outside [0, 1].
        TypeError: for a `kernel` that builds another kernel.
    """

    natives = (nn.RNN, nn.LSTM, nn.GRU)

    def __init__(
        self,
        kernel: Callable[[int, int], CellRecurrence],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__({})
        check_count("RecurrentLayer", "num_layers", num_layers)
        if not 0 <= dropout <= 1:
            raise ValueError(f"RecurrentLayer: dropout is a probability in [0, 1]; got {dropout}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        self.directions = 2 if bidirectional else 1
        self.operators = nn.ModuleList()
        for layer in range(num_layers):
            for _ in range(self.directions):
                built = kernel(hidden_size * self.directions if layer else input_size, hidden_size)
                if not isinstance(built, CellRecurrence):
                    raise TypeError(
                        "RecurrentLayer: kernel must build a kernels.RNN, LSTM or GRU from (in_dim, state_dim); "
                        f"it built {type(built).__name__}"
                    )
                ending = f"_l{layer}" + ("_reverse" if len(self.operators) % self.directions else "")
                path = f"operators.{len(self.operators)}.kernel"
                self.torch_names |= {name + ending: f"{path}.{name}" for name, _ in built.named_parameters()}
                self.operators.append(IntegralOperator(built, residual=False, bias=False, output_projection=False))

    @property
    def mode(self) -> str:
        """torch's name of the cell: "RNN_TANH", "RNN_RELU", "LSTM" or "GRU"."""
        return self._kernels()[0].mode.upper()

    @property
    def nonlinearity(self) -> str:
        """Nonlinearity of an RNN: "tanh" or "relu".

        Raises:
            AttributeError: for an LSTM or a GRU.
        """
        if not self.mode.startswith("RNN"):
            raise AttributeError(f"RecurrentLayer: an {self.mode} has no choice of nonlinearity")
        return self.mode.removeprefix("RNN_").lower()

    @property
    def bias(self) -> bool:
        """Whether the cells have biases."""
        return self._kernels()[0].bias_ih is not None

    @property
    def proj_size(self) -> int:
        """Always 0: h is not projected before it is fed back."""
        return 0

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction, in torch's order."""
        return [list(kernel.parameters()) for kernel in self._kernels()]

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | State | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor | State]:
        """Applies the layer to whole sequences, or to the next chunk of them.

        Args:
            input: `(T, B, C)`, `(B, T, C)` if `batch_first`, `(T, C)` without a batch, or a PackedSequence (not under
                `torch.compile`: its sizes depend on data).
            hx: the state before the first point, h `(num_layers * directions, B, n)`, without B if the input has none;
                (h, c) for an LSTM; None: zeros.

        Returns:
            The output, shaped like the input with `directions * n` channels, and the state after the last point of each
            sequence, shaped like hx; where a sequence is empty that is hx.

        Raises:
            ValueError, TypeError: on shapes, devices or dtypes that do not fit.
        """
        out, ended = self._packed(input, hx) if isinstance(input, PackedSequence) else self._whole(input, hx)
        data = out.data if isinstance(out, PackedSequence) else out
        cast = autocast_dtype(data)
        if cast is None or data.dtype == torch.float64:
            return out, ended
        dtype = self._returned_dtype(cast, input, hx)
        ended = tuple(part.to(dtype) for part in ended) if isinstance(ended, tuple) else ended.to(dtype)
        return out._replace(data=data.to(dtype)) if isinstance(out, PackedSequence) else out.to(dtype), ended

    def _returned_dtype(
        self, cast: torch.dtype, given: Tensor | PackedSequence, hx: Tensor | State | None
    ) -> torch.dtype:
        """Dtype that torch's layer returns under autocast to `cast`; the recurrence itself runs in its own dtype."""
        data = given.data if isinstance(given, PackedSequence) else given
        if self.mode == "GRU" and data.device.type == "cpu":
            # torch has no GRU of low precision on a CPU: there the dtype is that of the state
            return hx.dtype if isinstance(hx, Tensor) else data.dtype
        return cast

    def _whole(self, u: Tensor, hx: Tensor | State | None) -> tuple[Tensor, Tensor | State]:
        if not isinstance(u, Tensor) or u.ndim not in (2, 3):
            got = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
            raise ValueError(
                "RecurrentLayer: expected a signal of 3 dimensions, or of 2 without a batch, or a PackedSequence; "
                f"got {got}"
            )
        signal = u[None] if u.ndim == 2 else u if self.batch_first else u.transpose(0, 1)
        states = _split(hx, self._kernels(), signal.shape[0], unbatched=u.ndim == 2)
        out, ended = self._run(signal, None, states)
        if u.ndim == 2:
            return out[0], _join(ended, unbatched=True)
        return (out if self.batch_first else out.transpose(0, 1)), _join(ended)

    def initial_state(self, batch_size: int) -> Tensor | State:
        """The state before the first point, zeros, in the form of `hx`."""
        return _join([operator.initial_state(batch_size) for operator in self._operators()])

    def step(self, u: Tensor, hx: Tensor | State | None = None) -> tuple[Tensor, Tensor | State]:
        """Advances by one point; the results equal those of `forward` on the whole sequence.

        Args:
            u: signal at the next point, `(B, C)`.
            hx: the previous state, as in `forward`.

        Returns:
            `(B, n)`, and the new state.

        Raises:
            ValueError: for a bidirectional layer, and on shapes that do not fit.
        """
        if self.bidirectional:
            raise ValueError(
                "RecurrentLayer.step: a bidirectional layer reads later points; call it on whole "
                "sequences, or build it with bidirectional=False"
            )
        if not isinstance(u, Tensor) or u.ndim != 2:
            got = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
            raise ValueError(f"RecurrentLayer.step: u must be one point, (batch, channels); got {got}")
        ended: list[State] = []
        for operator, state in zip(self._operators(), _split(hx, self._kernels(), u.shape[0]), strict=True):
            u = self._dropped(u) if ended else u
            u, state = operator.step(u, operator.initial_state(u.shape[0]) if state is None else state)
            ended.append(state)
        return u, _join(ended)

    def flatten_parameters(self) -> None:
        """Does nothing: there is no packed copy of the parameters to renew, as there is in torch's layers."""

    def _operators(self) -> list[IntegralOperator]:
        return [cast(IntegralOperator, operator) for operator in self.operators]

    def _kernels(self) -> list[CellRecurrence]:
        return [cast(CellRecurrence, operator.kernel) for operator in self._operators()]

    def _dropped(self, u: Tensor) -> Tensor:
        return nn.functional.dropout(u, self.dropout, self.training) if self.dropout else u

    def _run(self, u: Tensor, mask: Tensor | None, states: list[State | None]) -> tuple[Tensor, list[State]]:
        """Runs all layers and directions in turn on `(B, T, C)`."""
        forwards = Sequence(u.shape[1], mask=mask, device=u.device)
        backwards = forwards if mask is None else Sequence(u.shape[1], mask=mask.flip(1))
        operators, ended = self._operators(), []
        for layer in range(self.num_layers):
            u, first = self._dropped(u) if layer else u, layer * self.directions
            out, end = operators[first].scan(u, forwards, state=states[first])
            ended.append(end)
            if self.bidirectional:
                back, end = operators[first + 1].scan(u.flip(1), backwards, state=states[first + 1])
                ended.append(end)
                # time first in memory, as in torch's layer, so that the same seed drops the same numbers
                out = torch.cat([out.transpose(0, 1), back.flip(1).transpose(0, 1)], dim=-1).transpose(0, 1)
            u = out
        return u, ended

    def _packed(self, u: PackedSequence, hx: Tensor | State | None) -> tuple[PackedSequence, Tensor | State]:
        signal, mask = _unpack(u)
        states = _split(hx, self._kernels(), signal.shape[0])
        if u.sorted_indices is not None:
            states = [s if s is None else tuple(part[u.sorted_indices] for part in s) for s in states]
        out, ended = self._run(signal, mask, states)
        if u.unsorted_indices is not None:
            ended = [tuple(part[u.unsorted_indices] for part in state) for state in ended]
        return _repack(out, u, mask), _join(ended)

    @classmethod
    def _blank(cls, module: nn.Module) -> nn.Module:
        assert isinstance(module, nn.RNNBase)
        if module.proj_size:
            raise ValueError(
                f"proj_size={module.proj_size} feeds a projection of h back, as no kernel here does; keep the nn.LSTM, "
                "or train one with proj_size=0 and an nn.Linear behind it"
            )
        return _native_like(module)

    @classmethod
    def _shaped_like(cls, blank: nn.Module) -> Self:
        assert isinstance(blank, nn.RNNBase)
        return cls(
            functools.partial(_KERNELS[cast(CellMode, blank.mode.lower())], bias=blank.bias),
            blank.input_size,
            blank.hidden_size,
            blank.num_layers,
            batch_first=blank.batch_first,
            dropout=blank.dropout,
            bidirectional=blank.bidirectional,
        )

    def _native(self) -> NativeRecurrent:
        return _native_like(self)

    def _give(self, module: nn.Module, relaid: LayoutConverter) -> None:
        super()._give(module, relaid)
        assert isinstance(module, nn.RNNBase)
        module.flatten_parameters()

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return (
            f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, batch_first={self.batch_first}, "
            f"dropout={self.dropout}, bidirectional={self.bidirectional}"
        )


def _native_like(layer: nn.RNNBase | RecurrentLayer) -> NativeRecurrent:
    return _MODULES[cast(CellMode, layer.mode.lower())](
        layer.input_size,
        layer.hidden_size,
        layer.num_layers,
        bias=layer.bias,
        batch_first=layer.batch_first,
        dropout=layer.dropout,
        bidirectional=layer.bidirectional,
    )


def _unpack(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """The signal `(B, T, C)`, longest sequence first, padded with 0, and the mask `(B, T)` of existing points."""
    sizes, data = packed.batch_sizes, packed.data
    exists = torch.arange(int(sizes[0]), device=data.device) < sizes.to(data.device)[:, None]
    signal = data.new_zeros(*exists.shape, data.shape[-1]).masked_scatter(exists[..., None], data)
    return signal.transpose(0, 1), exists.T


def _repack(signal: Tensor, like: PackedSequence, mask: Tensor) -> PackedSequence:
    """Packs the existing points of another signal in the same layout."""
    data = signal.transpose(0, 1)[mask.T]
    return PackedSequence(data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)


def _split(
    hx: Tensor | State | None, kernels: list[CellRecurrence], batch: int, *, unbatched: bool = False
) -> list[State | None]:
    """The state `(B, n)` of each operator, from torch's `(operators, B, n)`; None where none is given.

    Under autocast it is in the dtype of the parameters.

    Raises:
        ValueError: on another number of tensors or other shapes than these kernels have.
        TypeError: on anything but tensors.
    """
    if hx is None:
        return [None] * len(kernels)
    count, size, wanted = len(kernels), kernels[0].state_dim, kernels[0].num_states
    parts = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    if any(not isinstance(part, Tensor) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise TypeError(
            f"RecurrentLayer: hx must be {'two tensors, (h, c)' if wanted == 2 else 'a tensor'}; got {kinds}"
        )
    expected = (count, size) if unbatched else (count, batch, size)
    if len(parts) != wanted or any(tuple(part.shape) != expected for part in parts):
        raise ValueError(
            f"RecurrentLayer: hx must be {'(h, c), each' if wanted == 2 else 'h of shape'} {expected} = "
            f"(num_layers * directions, {'' if unbatched else 'batch, '}hidden_size); "
            f"got {', '.join(str(tuple(part.shape)) for part in parts)}"
        )
    if autocast_dtype(parts[0]) is not None:
        parts = tuple(part.to(kernels[0].weight_hh.dtype) for part in parts)
    return [tuple(part[k][None] if unbatched else part[k] for part in parts) for k in range(count)]


def _join(states: list[State], *, unbatched: bool = False) -> Tensor | State:
    """Concatenates the states of all operators, without a batch axis where the input had none."""
    parts = [torch.stack(part) for part in zip(*states, strict=True)]
    parts = [part[:, 0] for part in parts] if unbatched else parts
    return tuple(parts) if len(parts) > 1 else parts[0]
