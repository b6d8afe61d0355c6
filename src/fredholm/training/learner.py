"""A model in training: one optimiser step at a time."""

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_rate
from fredholm.blocks.field_block import FieldBlock
from fredholm.distributed.parallel_model import CalledModel, replicated, sharded, whole, without_meeting
from fredholm.distributed.processes import ALONE, Processes
from fredholm.models.blended import Blended
from fredholm.operators import collect_auxiliary_losses
from fredholm.quadrature.quadrature import Quadrature
from fredholm.storage.tensors import fill, refuse_misfits
from fredholm.tasks.task import Batch, Task

from .batches import Share
from .config import TrainingConfig
from .device import choose_device, move

METHODS: dict[type[nn.Module], Sequence[str]] = {FieldBlock: ("at",)}
"""Methods of blocks that are called besides `forward`."""
SLOTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state per parameter: a number, and two tensors of its shape."""
NORMS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
)


class StepReport(NamedTuple):
    """Measurements of one optimiser step."""

    loss: float
    gradient_norm: float
    learning_rate: float


@final
class NonFiniteError(ArithmeticError):
    """The loss or its gradient is not finite; the weights are unchanged by the step."""


def warmed_decay(num_updates: int, decay: float) -> float:
    """Returns the decay of update t, counted from 0: min(decay, (1 + t) / (10 + t)).

    With the warm-up, the average forgets the initial weights even in a short run.
    """
    return min(decay, (1 + num_updates) / (10 + num_updates))


def settled_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Buffers, by name, of the closed-form parts of `Blended` models. No step changes them, and they may be large."""
    parts = ((f"{path}.fitted".lstrip("."), part) for path, part in model.named_modules() if isinstance(part, Blended))
    return {name: buffer for path, part in parts for name, buffer in part.fitted.named_buffers(prefix=path)}


@final
class ExponentialMovingAverage:
    """Keeps w_avg <- d_t w_avg + (1 - d_t) w with d_t = ``warmed_decay(t, decay)``; ITNet H.4 uses 0.9999.

    Args:
        model: the trained model; its copy starts equal to it. Buffers are copied, not averaged, and those that no
            step changes (`settled_buffers`) are shared by both models.
        decay: in [0, 1).

    Raises:
        ValueError: the decay is outside [0, 1).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        check_rate("training.ExponentialMovingAverage", "decay", decay)
        common = {id(buffer): buffer for buffer in settled_buffers(model).values()}
        self.model = copy.deepcopy(model, common).eval().requires_grad_(False)
        """The averaged model, in evaluation mode."""
        self._decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, num_updates: int) -> None:
        """Averages ``model`` in after optimiser step number ``num_updates``, counted from 0."""
        weight = 1 - warmed_decay(num_updates, self._decay)
        if parameters := list(self.model.parameters()):
            # all by one launch, as optimisers work
            torch.ops.aten._foreach_lerp_(parameters, list(model.parameters()), weight)
        for averaged, current in zip(self.model.buffers(), model.buffers(), strict=True):
            if averaged is not current:
                averaged.copy_(current)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Returns optimiser groups: matrices decay; biases, norms and exempt parameters do not.

    A module exempts its own parameters by listing their local names in a class attribute ``no_weight_decay``
    (the kernels' output bias, which holds the identity of the initial integral). Buffers and frozen parameters
    are in no group. ITNet H.4.

    Args:
        model: any module; a parameter shared by several modules is exempt if one of them exempts it.
        weight_decay: the first group's decay; the second's is 0.

    Returns:
        Two groups of (name, parameter) pairs, as ``torch.optim`` takes them.

    Raises:
        ValueError: a module exempts a name that is not one of its own parameters, or the decay is below 0.
    """
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"training.parameter_groups: weight_decay must be >= 0 and finite; got {weight_decay}")
    exempt: set[int] = set()
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        listed = getattr(module, "no_weight_decay", frozenset())
        # a parameter that an option disables is an attribute that is None
        if unknown := sorted(name for name in listed if name not in own and getattr(module, name, ...) is not None):
            where = path or type(module).__name__
            raise ValueError(f"{where}.no_weight_decay lists {', '.join(unknown)}, not among its parameters")
        for name, parameter in own.items():
            if parameter.ndim <= 1 or isinstance(module, NORMS) or name in listed:
                exempt.add(id(parameter))
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return [
        {"params": [pair for pair in trained if id(pair[1]) not in exempt], "weight_decay": weight_decay},
        {"params": [pair for pair in trained if id(pair[1]) in exempt], "weight_decay": 0.0},
    ]


@final
class Learner:
    """A task's model with its optimiser, schedule and moving average; ITNet H.4, H.5.

    Auxiliary losses of operators (`operators.collect_auxiliary_losses`), such as that of a Monte Carlo proposal, are
    minimised in the same step. Gradients of quadratures are clipped separately, so that they do not scale the others.

    Args:
        task: source of the model, initialised from the global torch seed, and of the loss.
        config: training settings.
        num_steps: length of the schedule.
        start: tensors, by name, that replace initial weights of the model.
        is_new: whether nothing is learnt yet; quantities computed from the training split are then set.
        processes: processes that train the model together; their step equals that of one up to rounding.
    """

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        num_steps: int,
        start: Mapping[str, Tensor] | None = None,
        *,
        is_new: bool = True,
        processes: Processes = ALONE,
    ) -> None:
        self.device = choose_device(config.device, processes)
        model = task.model()
        fill(model, start or {})
        self.model = model.to(self.device)
        if is_new:
            task.initialise(self.model, self.device)
        processes.equalise(self.model)
        self.average = ExponentialMovingAverage(self.model, config.ema_decay)
        if config.shard and processes.size > 1:
            self._called = sharded(self.model, processes, METHODS)
            self.averaged = sharded(self.average.model, processes, METHODS)
        else:
            self._called, self.averaged = (
                replicated(self.model, processes, settled_buffers(self.model)),
                CalledModel(self.average.model),
            )
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.model, config.weight_decay),
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.adam_epsilon,
            fused=True,
        )
        self._task, self._config, self._num_steps, self._processes = task, config, num_steps, processes
        sampling = {p for m in self.model.modules() if isinstance(m, Quadrature) for p in m.parameters()}
        # in the model's order: a set's order differs from run to run, and with it the rounding of a norm
        self._sampling = [p for p in self.model.parameters() if p in sampling]
        self._others = [p for p in self.model.parameters() if p not in sampling]

    def update(self, share: Share, step: int) -> StepReport:
        """Takes optimiser step number ``step``, counted from 0, on the mean loss of a batch.

        Args:
            share: this process's part of the batch, on the CPU.
            step: counted from 0.

        Raises:
            NonFiniteError: before anything is changed.
        """
        config = self._config
        rate = config.rate_at(step, self._num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        self.optimizer.zero_grad()
        loss = self._backward(share)
        norm, sampling_norm = (
            float(whole(nn.utils.clip_grad_norm_(part, config.gradient_clip)))
            for part in (self._others, self._sampling)
        )
        if not math.isfinite(loss):
            raise NonFiniteError(f"the loss is {loss}")
        if not math.isfinite(norm):
            raise NonFiniteError(f"the loss is {loss:.4g} but its gradient's norm is {norm}")
        if not math.isfinite(sampling_norm):
            raise NonFiniteError(f"the loss is {loss:.4g} but the gradient of what samples it has norm {sampling_norm}")
        self.optimizer.step()
        self.average.update(self.model, step)
        return StepReport(loss, norm, rate)

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Returns the optimiser's state by name, as ``head.weight.exp_avg``, of parameters that have had gradients."""
        states = ((name, self.optimizer.state.get(parameter)) for name, parameter in self._learned())
        return {f"{name}.{slot}": state[slot] for name, state in states if state for slot in SLOTS}

    def optimizer_form(self) -> dict[str, Tensor]:
        """Returns tensors with the shapes and devices of ``optimizer_tensors``, for all parameters."""
        likes = ((name, parameter.detach()) for name, parameter in self._learned())
        return {f"{name}.{slot}": like for name, like in likes for slot in SLOTS[1:]}

    def load_optimizer(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Loads the optimiser's state; its settings still come from the config.

        Args:
            tensors: as returned by ``optimizer_tensors``.
            where: origin of the tensors, for messages.

        Raises:
            ValueError: names, shapes or dtypes do not match this model; nothing is changed.
        """
        wanted: dict[str, Tensor] = {}
        for name, parameter in self._learned():
            if any(f"{name}.{slot}" in tensors for slot in SLOTS):
                like = (torch.empty((), dtype=torch.float32), parameter, parameter)
                wanted |= {f"{name}.{slot}": each for slot, each in zip(SLOTS, like, strict=True)}
        refuse_misfits(tensors, wanted, where)
        state = {
            number: {slot: tensors[f"{name}.{slot}"].clone() for slot in SLOTS}
            for number, (name, _) in enumerate(self._learned())
            if f"{name}.{SLOTS[0]}" in wanted
        }
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})

    def _learned(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters by name, in the optimiser's order."""
        for group in self.optimizer.param_groups:
            yield from zip(group["param_names"], group["params"], strict=True)

    def _backward(self, share: Share) -> float:
        """Accumulates the gradients of the batch's mean loss and of the auxiliary losses, part by part.

        Returns:
            the batch's mean loss without the auxiliary losses.
        """
        # the same number of parts on every process, since each must take part in all
        largest = -(-share.num_examples // self._processes.size)
        num_parts = min(self._config.accumulation, largest)
        own_targets = self._task.num_targets(share.rows) * share.counts
        num_targets = max(1, int(self._processes.sum_(torch.tensor(own_targets))))  # a batch may have none
        parts = zip(*(tensor.tensor_split(num_parts) for tensor in share.rows.values()), strict=True)
        losses = []
        for number, tensors in enumerate(parts, start=1):
            counts = share.counts and len(tensors[0]) > 0
            rows = tensors if len(tensors[0]) else [tensor[:1] for tensor in share.rows.values()]
            part = move(dict(zip(share.rows, rows, strict=True)), self.device)
            with without_meeting(self._called) if number < num_parts else contextlib.nullcontext():
                whole, loss = self._called(self._losses, part, num_targets, share.num_examples)
                # gradients are averaged over processes; the factor turns the mean into a sum
                (whole * (self._processes.size if counts else 0)).backward()
            losses.append(loss.detach() * counts)
        return float(self._processes.sum_(torch.stack(losses).sum()))

    def _losses(self, model: nn.Module, part: Batch, num_targets: int, num_examples: int) -> tuple[Tensor, Tensor]:
        """Returns a part's contribution to the mean loss of a batch, with the auxiliary losses and without."""
        dtype = self._config.dtype
        autocast = torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)
        with autocast, collect_auxiliary_losses() as beside:
            loss = self._task.loss(model, part) / num_targets
        weight = len(next(iter(part.values()))) / num_examples
        return torch.stack([loss.float(), *(weight * extra.float() for extra in beside)]).sum(), loss
