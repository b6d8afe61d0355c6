"""A stack of recurrence operators that is called as torch's recurrent layers are."""

import functools
from collections.abc import Callable
from typing import Self, cast, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fredholm.domains import Sequence
from fredholm.kernels import GRU, LSTM, RNN, CellMode, CellRecurrence, State
from fredholm.operators.integral import IntegralOperator
from fredholm.operators.torch_layers.packed_sequence import repack, unpack
from fredholm.operators.torch_layers.parameters import copy_parameters
from fredholm.operators.torch_layers.stacked_states import join_states, split_states

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
class RecurrentLayer(nn.Module):
    """Integral operators with recurrence kernels, one a layer and direction, in place of torch's RNN, LSTM and GRU.

    Args:
        kernel: builds the kernel of a layer from its channels in and out: `kernels.LSTM`, or, for its options,
            `functools.partial(kernels.RNN, nonlinearity="relu", bias=False)`.
        input_size: channels of the signal, >= 1.
        hidden_size: channels n of each direction's output, >= 1.
        num_layers: layers, each reading the output of the one before, >= 1.
        batch_first: signals are `(B, T, C)` instead of torch's default `(T, B, C)`; states never are.
        dropout: probability in [0, 1] with which the output of each layer but the last is zeroed in training mode.
        bidirectional: a second operator a layer reads the reversed signal; the outputs are concatenated.

    Attributes:
        operators: the integral operators, layer by layer, the forward direction first.

    Raises:
        ValueError: on sizes below 1 or a dropout outside [0, 1].
        TypeError: for a `kernel` that builds none of these kernels.
    """

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
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"RecurrentLayer: num_layers must be at least 1; got {num_layers}")
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
                self.operators.append(IntegralOperator(built, residual=False, bias=False, output_projection=False))

    def forward(
        self, u: Tensor | PackedSequence, hx: Tensor | State | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor | State]:
        """Applies the layer to whole sequences, or to the next chunk of them.

        Args:
            u: `(T, B, C)`, `(B, T, C)` if `batch_first`, `(T, C)` without a batch, or a PackedSequence (not under
                `torch.compile`: its sizes are data).
            hx: the state before the first point, h `(num_layers * directions, B, n)`, without B if u is, or (h, c) for
                an LSTM; None: zeros.

        Returns:
            The output, shaped like u with `directions * n` channels, and the state after the last point of each
            sequence, shaped like hx; where a sequence is empty that is hx.

        Raises:
            ValueError, TypeError: on shapes, devices or dtypes that do not fit.
        """
        if isinstance(u, PackedSequence):
            return self._packed(u, hx)
        if not isinstance(u, Tensor) or u.ndim not in (2, 3):
            got = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
            raise ValueError(
                "RecurrentLayer: expected a signal of 3 dimensions, or of 2 without a batch, or a PackedSequence; "
                f"got {got}"
            )
        signal = u[None] if u.ndim == 2 else u if self.batch_first else u.transpose(0, 1)
        states = split_states(hx, self._kernels(), signal.shape[0], unbatched=u.ndim == 2)
        out, ended = self._run(signal, None, states)
        if u.ndim == 2:
            return out[0], join_states(ended, unbatched=True)
        return (out if self.batch_first else out.transpose(0, 1)), join_states(ended)

    def initial_state(self, batch_size: int) -> Tensor | State:
        """The state before the first point, zeros, in the form of `hx`."""
        return join_states([operator.initial_state(batch_size) for operator in self._operators()])

    def step(self, u: Tensor, hx: Tensor | State | None = None) -> tuple[Tensor, Tensor | State]:
        """One point at a time, with the numbers that `forward` gives for the whole sequence.

        Args:
            u: signal at the next point, `(B, C)`.
            hx: the state before it, as in `forward`.

        Returns:
            `(B, n)`, and the new state.

        Raises:
            ValueError: for a bidirectional layer, and on shapes that do not fit.
        """
        if self.bidirectional:
            raise ValueError(
                "RecurrentLayer.step: a bidirectional layer reads what comes after a point; call it on whole "
                "sequences, or build it with bidirectional=False"
            )
        if not isinstance(u, Tensor) or u.ndim != 2:
            got = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
            raise ValueError(f"RecurrentLayer.step: u must be one point, (batch, channels); got {got}")
        ended: list[State] = []
        for operator, state in zip(self._operators(), split_states(hx, self._kernels(), len(u)), strict=True):
            u = self._dropped(u) if ended else u
            u, state = operator.step(u, operator.initial_state(len(u)) if state is None else state)
            ended.append(state)
        return u, join_states(ended)

    def flatten_parameters(self) -> None:
        """Does nothing: there is no packed copy of the parameters to renew, as there is in torch's layers."""

    def _operators(self) -> list[IntegralOperator]:
        return [cast(IntegralOperator, operator) for operator in self.operators]

    def _kernels(self) -> list[CellRecurrence]:
        return [cast(CellRecurrence, operator.kernel) for operator in self._operators()]

    def _dropped(self, u: Tensor) -> Tensor:
        return nn.functional.dropout(u, self.dropout, self.training) if self.dropout else u

    def _run(self, u: Tensor, mask: Tensor | None, states: list[State | None]) -> tuple[Tensor, list[State]]:
        """Every layer and direction in turn on `(B, T, C)`."""
        forwards = Sequence(u.shape[1], mask=mask).to(u.device)
        backwards = forwards if mask is None else Sequence(u.shape[1], mask=mask.flip(1))
        operators, ended = self._operators(), []
        for layer in range(self.num_layers):
            u, first = self._dropped(u) if layer else u, layer * self.directions
            out, end = operators[first].scan(u, forwards, state=states[first])
            ended.append(end)
            if self.bidirectional:
                back, end = operators[first + 1].scan(u.flip(1), backwards, state=states[first + 1])
                ended.append(end)
                out = torch.cat([out, back.flip(1)], dim=-1)
            u = out
        return u, ended

    def _packed(self, u: PackedSequence, hx: Tensor | State | None) -> tuple[PackedSequence, Tensor | State]:
        signal, mask = unpack(u)
        states = split_states(hx, self._kernels(), len(signal))
        if u.sorted_indices is not None:
            states = [s if s is None else tuple(part[u.sorted_indices] for part in s) for s in states]
        out, ended = self._run(signal, mask, states)
        if u.unsorted_indices is not None:
            ended = [tuple(part[u.unsorted_indices] for part in state) for state in ended]
        return repack(out, u, mask), join_states(ended)

    @classmethod
    def from_torch(cls, module: NativeRecurrent) -> Self:
        """The same layer as operators, with copies of its parameters.

        Returns:
            A layer with the module's values, dtype, device, training mode and `requires_grad`.

        Raises:
            TypeError: for any other module, subclasses included.
            ValueError: for `proj_size`.
        """
        if type(module) not in (nn.RNN, nn.LSTM, nn.GRU):
            name = type(module).__name__
            raise TypeError(f"RecurrentLayer.from_torch: converts nn.RNN, nn.LSTM and nn.GRU themselves; got {name}")
        if module.proj_size:
            raise ValueError(
                f"RecurrentLayer.from_torch: proj_size={module.proj_size} feeds a projection of h back, as no kernel "
                "here does; keep the nn.LSTM, or train one with proj_size=0 and an nn.Linear behind it"
            )
        mode = cast(CellMode, module.mode.lower())
        layer = cls(
            functools.partial(_KERNELS[mode], bias=module.bias),
            module.input_size,
            module.hidden_size,
            module.num_layers,
            batch_first=module.batch_first,
            dropout=module.dropout,
            bidirectional=module.bidirectional,
        )
        like = next(module.parameters())
        layer.to(device=like.device, dtype=like.dtype)
        copy_parameters(dict(module.named_parameters()), layer._by_torch_name())
        return layer.train(module.training)

    def to_torch(self) -> NativeRecurrent:
        """A `torch.nn.RNN`, `LSTM` or `GRU` with copies of the parameters."""
        kernel = self._kernels()[0]
        module = _MODULES[kernel.mode](
            self.input_size,
            self.hidden_size,
            self.num_layers,
            bias=kernel.bias_ih is not None,
            batch_first=self.batch_first,
            dropout=self.dropout,
            bidirectional=self.bidirectional,
            device=kernel.weight_ih.device,
            dtype=kernel.weight_ih.dtype,
        )
        copy_parameters(self._by_torch_name(), dict(module.named_parameters()))
        return module.train(self.training)

    def _by_torch_name(self) -> dict[str, nn.Parameter]:
        named = {}
        for index, kernel in enumerate(self._kernels()):
            ending = f"_l{index // self.directions}" + ("_reverse" if index % self.directions else "")
            named |= {name + ending: parameter for name, parameter in kernel.named_parameters()}
        return named

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return (
            f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, batch_first={self.batch_first}, "
            f"dropout={self.dropout}, bidirectional={self.bidirectional}"
        )
