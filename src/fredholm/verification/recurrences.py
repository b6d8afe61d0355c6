"""Recurrences against torch's, or, where torch has none, against the recurrence written out step by step."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fredholm.domains import Domain, Sequence
from fredholm.kernels import GRU, LSTM, RNN, DiagonalStateSpace, LinearRNN, LinearSystem, SelectiveStateSpace
from fredholm.kernels.recurrence.cell_recurrence import CellRecurrence
from fredholm.kernels.recurrence.linear_system import Rule
from fredholm.verification.check import Equality, operator_of

BATCH, LENGTH = 2, 7


def recurrences() -> Iterator[Equality]:
    """torch's cells, linear recurrences, continuous systems under three rules, S4D and the selective state space."""
    yield _cell("RNN", "tanh", RNN(3, 4), nn.RNN(3, 4, batch_first=True))
    yield _cell("RNN", "relu", RNN(3, 4, "relu"), nn.RNN(3, 4, nonlinearity="relu", batch_first=True))
    yield _cell("RNN", "no bias", RNN(3, 4, bias=False), nn.RNN(3, 4, bias=False, batch_first=True))
    yield _cell("LSTM", "", LSTM(3, 4), nn.LSTM(3, 4, batch_first=True))
    yield _cell("GRU", "", GRU(3, 4), nn.GRU(3, 4, batch_first=True))
    yield _linear_rnn()
    times = torch.rand(LENGTH, dtype=torch.float64).cumsum(0)
    for rule in ("euler", "bilinear", "zoh"):
        yield _linear_system(rule, "regular", Sequence(LENGTH))
        yield _linear_system(rule, "irregular", Sequence(times=times))
    for rule in ("zoh", "bilinear"):
        yield _diagonal(rule)
    yield _selective()


def _signal(dim: int) -> Tensor:
    return torch.randn(BATCH, LENGTH, dim, dtype=torch.float64, requires_grad=True)


def _cell(layer: str, variant: str, kernel: CellRecurrence, native: nn.Module) -> Equality:
    operator, u = operator_of(kernel), _signal(3)
    native.double()

    def expected() -> Tensor:
        weights: dict[str, Tensor] = {f"{name}_l0": parameter for name, parameter in kernel.named_parameters()}
        return functional_call(native, weights, (u,))[0]

    return Equality(layer, variant, operator, u, expected)


def _linear_rnn() -> Equality:
    kernel = LinearRNN(3, 4, 2, feedthrough=True, bias=True)
    operator, u = operator_of(kernel), _signal(3)
    for parameter in kernel.parameters():
        nn.init.normal_(parameter, std=0.4)

    def advance(h: Tensor, t: int) -> tuple[Tensor, Tensor]:
        assert kernel.feedthrough is not None
        assert kernel.bias is not None
        h = h @ kernel.transition.mT + u[:, t] @ kernel.input_weight.mT + kernel.bias
        return h, h @ kernel.output_weight.mT + u[:, t] @ kernel.feedthrough.mT

    return Equality("linear RNN", "", operator, u, _loop(advance, (BATCH, 4)))


def _linear_system(rule: Rule, variant: str, domain: Domain) -> Equality:
    kernel = LinearSystem(3, 4, 2, rule=rule, step_size=0.3, first_step=0.2)
    operator, u = operator_of(kernel), _signal(3)
    steps = torch.full((LENGTH,), 0.3, dtype=torch.float64)
    if domain.times is not None:
        steps = torch.cat([torch.tensor([0.2], dtype=torch.float64), domain.times.diff()])

    def advance(h: Tensor, t: int) -> tuple[Tensor, Tensor]:
        a, drive, step = kernel.rates, u[:, t] @ kernel.input_weight.mT, steps[t]
        identity = torch.eye(4, dtype=torch.float64)
        if rule == "euler":
            h = h + step * (h @ a.mT + drive)
        elif rule == "bilinear":
            right = h + 0.5 * step * h @ a.mT + step * drive
            h = torch.linalg.solve(identity - 0.5 * step * a, right.mT).mT
        else:
            flow = torch.linalg.matrix_exp(step * a)
            h = h @ flow.mT + torch.linalg.solve(a, (flow - identity) @ drive.mT).mT
        return h, h @ kernel.output_weight.mT

    return Equality("linear system", f"{rule}, {variant} steps", operator, u, _loop(advance, (BATCH, 4)), domain)


def _diagonal(rule: str) -> Equality:
    kernel = DiagonalStateSpace(3, 8, rule=rule)  # pyright: ignore[reportArgumentType]
    operator, u = operator_of(kernel), _signal(3)

    def advance(h: Tensor, t: int) -> tuple[Tensor, Tensor]:
        assert kernel.feedthrough is not None
        rates = torch.complex(-kernel.log_decay.exp(), kernel.frequency)
        step = kernel.log_step.exp()
        if rule == "zoh":
            decay = (step * rates).exp()
            drive = (decay - 1) / rates
        else:
            decay = (1 + 0.5 * step * rates) / (1 - 0.5 * step * rates)
            drive = step / (1 - 0.5 * step * rates)
        h = decay * h + drive * u[:, t, None]
        read_out = torch.complex(kernel.output_weight[..., 0], kernel.output_weight[..., 1])
        return h, 2 * (read_out * h).sum(1).real + kernel.feedthrough * u[:, t]

    return Equality("S4D", rule, operator, u, _loop(advance, (BATCH, 4, 3), torch.complex128))


def _selective() -> Equality:
    kernel = SelectiveStateSpace(3, 4, rank=2)
    operator, u = operator_of(kernel), _signal(3)

    def advance(h: Tensor, t: int) -> tuple[Tensor, Tensor]:
        assert kernel.feedthrough is not None
        low_rank, read_in, read_out = (u[:, t] @ kernel.content_weight.mT).split([2, 4, 4], dim=-1)
        step = nn.functional.softplus(low_rank @ kernel.step_weight.mT + kernel.step_bias)
        h = (step[..., None] * -kernel.log_a.exp()).exp() * h + (step * u[:, t])[..., None] * read_in[:, None]
        return h, (h * read_out[:, None]).sum(-1) + kernel.feedthrough * u[:, t]

    return Equality("Mamba", "selective state space", operator, u, _loop(advance, (BATCH, 3, 4)))


def _loop(
    advance: Callable[[Tensor, int], tuple[Tensor, Tensor]],
    state_shape: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
) -> Callable[[], Tensor]:
    """h, y = advance(h, t) along the sequence, from h = 0."""

    def run() -> Tensor:
        h, rows = torch.zeros(state_shape, dtype=dtype), []
        for t in range(LENGTH):
            h, row = advance(h, t)
            rows.append(row)
        return torch.stack(rows, dim=1)

    return run
