"""Replaces the attention of a trained model by other kernels, distilled layer by layer and then as a whole.

Legend
    f_l      operator l of the trained model                 g_l      the operator that replaces it
    F, G     the whole models                                e(g, f) = ‖g - f‖² / ‖f‖², over all points of a batch

    first for each l, g_l is fitted to f_l on the inputs of f_l in F, by the mean of e(g_l, f_l) over batches
    then all g_l are fitted together, by the mean of e(G, F)

The first stage is that of attention transfer (Zhang et al., LoLCATs, arXiv 2410.10254, eq. 5), on outputs.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive
from fredholm.kernels import Kernel
from fredholm.kernels.heads import HeadProjections
from fredholm.operators import IntegralOperator
from fredholm.pretrained.add_kernel import Where, check_channels_and_causality, check_module, selected_operators

Model = TypeVar("Model", bound=nn.Module)
Inputs = Tensor | tuple[Any, ...]
"""Inputs of a model: a tensor, or a tuple of arguments."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerFit:
    """Fit of one operator to the one that it replaces; errors e are on held-out batches.

    Attributes:
        name: name of the operator.
        start: e before the first step.
        error: e after the last step.
        losses: e of each step's batch, before the step.
    """

    name: str
    start: float
    error: float
    losses: tuple[float, ...]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Linearised:
    """Report of a linearisation; errors e are on held-out batches.

    Attributes:
        layers: fit of each operator.
        start: e of the whole model after the fit of layers.
        error: e of the whole model at the end.
        losses: e of each step's batch, before the step.
    """

    layers: tuple[LayerFit, ...]
    start: float
    error: float
    losses: tuple[float, ...]

    def __str__(self) -> str:
        lines = [f"{fit.name}: relative error {fit.start:.3g} before, {fit.error:.3g} after" for fit in self.layers]
        return "\n".join([*lines, f"the whole: relative error {self.start:.3g} before, {self.error:.3g} after"])


def linearise(
    model: Model,
    kernel: Callable[[Kernel], Kernel],
    data: Iterable[Inputs],
    *,
    layer_steps: int = 200,
    whole_steps: int = 200,
    learning_rate: float = 1e-3,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    train_rest: bool = False,
    where: Where | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Model, Linearised]:
    """Copies a model with other kernels for its attention, fitted to the original on the user's data.

    Intended for kernels whose time is linear in the points (`kernels.LinearAttention`, `LowRankMLP`,
    `FactorisedInfiniteAttention`), but works with any of the same channels and causality. W^O, biases and, where the
    new kernel has queries, keys and values of the same sizes, their maps are initialised with the attention's.

    Args:
        model: a trained model, which stays unchanged and is run in evaluation mode.
        kernel: function from the old kernel of an operator to its new one.
        data: batches of inputs, at least one; of several a fifth is held out for the report.
        layer_steps, whole_steps: steps of Adam for each operator, and for the whole model; 0 skips a stage.
        learning_rate: learning rate of Adam, which decays to 0 along a cosine in each stage.
        loss: loss of the new and the old model's outputs in the second stage; None: e. For language models the
            cross-entropy of the logits is worth a try.
        train_rest: whether the second stage trains the rest of the copy too.
        where: predicate of name and operator that selects the operators; None: those with attention (`Scored` kernels).
        generator: random generator of the order of batches, on the CPU; None: torch's global one.

    Returns:
        The copy, in the mode of the model, and a report that can be printed.

    Raises:
        TypeError, ValueError: no batch, no selected operator, one that is compiled or not called on the data, kernels
            that do not fit, outputs that are no tensor, arguments out of range, or outputs and losses that are not
            finite.
    """
    for name, value in (("layer_steps", layer_steps), ("whole_steps", whole_steps)):
        check_count("linearise", name, value, least=0)
    check_positive("linearise", "learning_rate", learning_rate)
    if not callable(kernel) or isinstance(kernel, nn.Module):
        raise TypeError(
            f"linearise: kernel is a function that makes the new kernel of an operator from its old one; got a "
            f"{type(kernel).__name__}"
        )
    if not isinstance(data, Iterable):
        raise TypeError(f"linearise: data is a list of batches; got {type(data).__name__}")
    batches = [item if isinstance(item, tuple) else (item,) for item in data]
    if not batches:
        raise ValueError("linearise: data holds no batch; give at least one")
    kept = max(1, len(batches) // 5) if len(batches) > 1 else 0
    train, held = batches[: len(batches) - kept], batches[len(batches) - kept :] or batches
    check_module("linearise", model)
    old, new = copy.deepcopy(model).eval().requires_grad_(False), copy.deepcopy(model).eval()
    replaced = _replaced(new, kernel, where)
    new = cast(Model, replaced.get("", new))  # a model may be an operator itself
    layers = []
    for name, operator in replaced.items():
        learn, check = (_seen(old, name, part) for part in (train, held))
        start = _mean_error(operator, check)
        losses = _descend(
            operator.parameters(), learn, lambda call, f=operator: error_of(f(*call[0], **call[1]), call[2]),
            layer_steps, learning_rate, generator,
        )  # fmt: skip
        layers.append(LayerFit(name=name, start=start, error=_mean_error(operator, check), losses=losses))
    with torch.no_grad():
        learn, check = ([(item, {}, _answer(old, item)) for item in part] for part in (train, held))
    if loss is None:  # a user's loss may mask some values
        _check_finite("the model", [*learn, *check])
    start = _mean_error(new, check)
    measure = error_of if loss is None else loss
    parameters = new.parameters() if train_rest else [p for part in replaced.values() for p in part.parameters()]
    losses = _descend(
        parameters, learn, lambda call: measure(new(*call[0]), call[2]), whole_steps, learning_rate, generator
    )
    report = Linearised(layers=tuple(layers), start=start, error=_mean_error(new, check), losses=losses)
    return new.train(model.training), report


Call = tuple[tuple[Any, ...], dict[str, Any], Tensor]
"""Positional and keyword arguments of a call, and its target output."""


def error_of(found: Tensor, wanted: Tensor) -> Tensor:
    """e = ‖found - wanted‖² / ‖wanted‖², 0-dim, in at least float32."""
    found, wanted = found.float() if found.itemsize < 4 else found, wanted.to(found)
    return (found - wanted).square().sum() / wanted.square().sum().clamp_min(torch.finfo(found.dtype).tiny)


def _replaced(model: nn.Module, kernel: Callable[[Kernel], Kernel], where: Where | None) -> dict[str, IntegralOperator]:
    """Replaces the selected operators by ones with new kernels; returns the new operators by name."""
    old = selected_operators("linearise", model, where)
    found, new_of = {}, dict[nn.Module, IntegralOperator]()
    for name in old:
        made = kernel(old[name].kernel)
        if not isinstance(made, Kernel):
            raise TypeError(f"linearise: kernel must make a fredholm kernel; got {type(made).__name__}")
        check_channels_and_causality("linearise", name, old[name].kernel, made)
        found[name] = new_of[old[name]] = _operator(old[name], made)
    for place, part in list(model.named_modules(remove_duplicate=False)):
        if not place or part not in new_of:
            continue
        package, _, last = place.rpartition(".")
        home = model.get_submodule(package)
        if isinstance(home, torch._dynamo.OptimizedModule):
            raise ValueError(
                f"linearise: the operator {package!r} is compiled, and would be called with its old kernel; linearise "
                "the model first, and compile the result"
            )
        setattr(home, last, new_of[part])
    return found


@torch.no_grad()
def _operator(old: IntegralOperator, kernel: Kernel) -> IntegralOperator:
    """An operator with another kernel that keeps all weights that fit."""
    like = next(old.parameters())
    operator = IntegralOperator(
        kernel,
        residual=old.residual_weight is not None,
        bias=old.bias is not None,
        output_projection=old.output_weight is not None,
    ).to(device=like.device, dtype=like.dtype)
    for name in ("output_weight", "residual_weight", "bias"):
        if (own := getattr(old, name)) is not None:
            getattr(operator, name).copy_(own)
    theirs, ours = (_projections(each) for each in (old.kernel, kernel))
    if theirs is not None and ours is not None:
        known, own = theirs.state_dict(), ours.state_dict()
        ours.load_state_dict(own | {name: p for name, p in known.items() if name in own and own[name].shape == p.shape})
    return operator.eval()


def _projections(kernel: Kernel) -> HeadProjections | None:
    return next((part for part in kernel.children() if isinstance(part, HeadProjections)), None)


@torch.no_grad()
def _seen(model: nn.Module, name: str, batches: Sequence[tuple[Any, ...]]) -> list[Call]:
    """Inputs and outputs of an operator within a model, batch by batch."""
    calls: list[Call] = []

    def note(operator: nn.Module, args: tuple[Any, ...], options: dict[str, Any], out: Tensor) -> None:
        calls.append((args, options, out))

    handle = model.get_submodule(name).register_forward_hook(note, with_kwargs=True)
    try:
        for item in batches:
            _answer(model, item)
    finally:
        handle.remove()
    if not calls:
        raise ValueError(
            f"linearise: the operator {name!r} is not called on these data; pass data that use it, or leave it out "
            "by where="
        )
    _check_finite(f"the operator {name!r}", calls)
    return calls


def _check_finite(who: str, calls: Sequence[Call]) -> None:
    """Raises a ValueError unless all target outputs are finite."""
    if not all(bool(out.isfinite().all()) for _, _, out in calls):
        raise ValueError(
            f"linearise: {who} gives NaN or infinite values on these data; leave out data that hold such values, or "
            "look for them in the weights"
        )


def _answer(model: nn.Module, item: tuple[Any, ...]) -> Tensor:
    """Output of a model; raises a TypeError unless it is a tensor."""
    found = model(*item)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"linearise: the model must answer with one tensor, to be compared; got {type(found).__name__}; put it "
            "into a module that gives one"
        )
    return found


def _descend(
    parameters: Iterable[nn.Parameter],
    calls: Sequence[Call],
    loss: Callable[[Call], Tensor],
    steps: int,
    learning_rate: float,
    generator: torch.Generator | None,
) -> tuple[float, ...]:
    """Takes steps of Adam on calls in random order; returns the loss before each step."""
    found: list[float] = []
    learned = [p.requires_grad_() for p in parameters]
    optimiser = torch.optim.Adam(learned, lr=learning_rate)
    for step in range(steps):
        call = calls[int(torch.randint(len(calls), (), generator=generator))]
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.zero_grad()
        with torch.enable_grad():
            value = loss(call)
            value.backward()
        found.append(value.item())
        if not math.isfinite(found[-1]):
            loss_text = f"the loss is {found[-1]} at step {step + 1}"
            raise ValueError(f"linearise: {loss_text}; lower the learning rate, which is {learning_rate:g}")
        optimiser.step()
    optimiser.zero_grad()
    return tuple(found)


@torch.no_grad()
def _mean_error(module: nn.Module, calls: Sequence[Call]) -> float:
    return sum(error_of(module(*args, **options), out).item() for args, options, out in calls) / len(calls)
