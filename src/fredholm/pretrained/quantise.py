"""Quantises the linear maps of a trained model to 8-bit integers.

Weights of linear maps are found by running the model on the user's data: a weight is quantised if only `F.linear` reads
it. Parameters that other functions read, such as a convolution, stay as they are.
"""

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves

from fredholm._settings import check_count
from fredholm.pretrained.add_kernel import check_module
from fredholm.pretrained.int8_weight import DTYPES, Int8Weight, frozen, linear_arguments

Model = TypeVar("Model", bound=nn.Module)
Inputs = Tensor | tuple[Any, ...]
"""Inputs of a model: a tensor, or a tuple of arguments."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantised:
    """Report of a quantisation.

    Attributes:
        weights: names of the quantised weights.
        left: reasons why other parameters are not quantised, by parameter name.
        bytes_before, bytes_after: bytes of all parameters.
        error: ‖G - F‖ / ‖F‖ of the outputs F before and G after, over all batches.
    """

    weights: tuple[str, ...]
    left: Mapping[str, str]
    bytes_before: int
    bytes_after: int
    error: float

    def __str__(self) -> str:
        before, after = (size / 1e6 for size in (self.bytes_before, self.bytes_after))
        lines = [f"{len(self.weights)} weights in whole numbers: {before:.1f} MB of parameters became {after:.1f} MB"]
        by_reason = defaultdict(list)
        for name, reason in self.left.items():
            by_reason[reason].append(name)
        for reason, names in by_reason.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"left, {reason}: {names[0]}{more}")
        return "\n".join([*lines, f"relative error of the outputs: {self.error:.3g}"])


def quantise(
    model: Model,
    data: Iterable[Inputs],
    *,
    activations: bool = False,
    embeddings: bool = False,
    min_size: int = 4096,
    where: Callable[[str, nn.Parameter], bool] | None = None,
) -> tuple[Model, Quantised]:
    """Copies a model with 8-bit weights in its linear maps, frozen, and reports the error of its outputs.

    Each row of a weight W has a scale of its own: W_o ≈ s_o q_o, with q_o in -127 … 127. A quantised model can be
    called, compiled, copied and used for generation like any other, but it has no gradients.

    Args:
        model: a trained model, which stays unchanged and is run in evaluation mode.
        data: batches of inputs, at least one. They determine the weights of linear maps and the error, and must
            exercise every input of the model, such as masks.
        activations: whether the input signals of linear maps are rounded too, row by row, which is faster for many
            rows, and less accurate.
        embeddings: whether tables that `F.embedding` reads are rounded too, including those that are tied to the
            head.
        min_size: smallest number of entries of a quantised weight.
        where: predicate of name and parameter that selects the weights; None: all.

    Returns:
        The copy, in evaluation mode, which shares no memory with the model, and a report that can be printed.

    Raises:
        TypeError, ValueError: there is no batch or no weight to quantise, weights are of another dtype than float32
            and bfloat16, not finite or quantised already, or outputs are no finite tensors.
        ModuleNotFoundError: on a GPU, where torchao is missing.
    """
    check_count("quantise", "min_size", min_size)
    named = _parameters(model)
    if activations and not torch.backends.mkldnn.is_available() and any(p.is_cpu for p in named.values()):
        raise ValueError("quantise: activations=True needs oneDNN, which this build of PyTorch lacks; leave it out")
    batches = [item if isinstance(item, tuple) else (item,) for item in data]
    if not batches:
        raise ValueError("quantise: data holds no batch; give at least one")
    uses, wanted = _observed(model, named, batches)
    left: dict[str, str] = {}
    memo: dict[int, Any] = {}
    for name, parameter in named.items():
        if (reason := _reason_against(parameter, uses[name], embeddings, min_size)) is not None:
            left[name] = reason
        elif where is not None and not where(name, parameter):
            left[name] = "excluded by where"
        else:
            _check_numbers(name, parameter)
            # embedding look-ups read single rows, which packed weights do not have
            rounds_signals = activations and EMBEDDING not in uses[name]
            memo[id(parameter)] = frozen(Int8Weight.of(parameter, rounds_signals=rounds_signals))
    if not memo:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(left.items())[:3])
        raise ValueError(f"quantise: none of the {len(named)} parameters is quantised ({reasons}, …)")
    new = copy.deepcopy(model, memo).eval().requires_grad_(False)
    with torch.no_grad():
        error = _relative_error((_tensors(new(*item)) for item in batches), wanted)
    before, after = (sum(map(_bytes, each.parameters())) for each in (model, new))
    weights = tuple(name for name in named if name not in left)
    return new, Quantised(weights=weights, left=left, bytes_before=before, bytes_after=after, error=error)


LINEAR, EMBEDDING = "linear", "embedding"

HARMLESS = frozenset(
    {
        *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda")),
        *(getattr(Tensor, name) for name in ("size", "dim", "numel", "is_floating_point", "is_complex", "__len__")),
        *(getattr(Tensor, name) for name in ("new_zeros", "new_empty", "new_ones", "new_full", "new_tensor")),
    }
)
"""Functions that read only metadata of a tensor, or create one like it, but not its values."""


class _Uses(TorchFunctionMode):
    """Records the functions that read each parameter.

    Attributes:
        of: names of the functions, by the names of the parameters.
    """

    def __init__(self, named: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.name_of = {id(parameter): name for name, parameter in named.items()}
        self.of: dict[str, set[str]] = {name: set() for name in named}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in HARMLESS:
            if func is F.linear:
                x, weight, bias = linear_arguments(*args, **kwargs)
                self._note([weight], LINEAR)
                self._note([x, bias], "linear as its constant or signal")
            else:
                name = EMBEDDING if func is F.embedding else _name(func)
                self._note([args, kwargs], name)
        return func(*args, **kwargs)

    def _note(self, given: Any, use: str) -> None:
        for part in tree_leaves(given):
            if id(part) in self.name_of:
                self.of[self.name_of[id(part)]].add(use)


def _name(func: Any) -> str:
    known = resolve_name(func) or getattr(func, "__name__", str(func))
    return known.removesuffix(".__get__").removesuffix(".default").rpartition(".")[2]


def _observed(
    model: nn.Module, named: Mapping[str, nn.Parameter], batches: Sequence[tuple[Any, ...]]
) -> tuple[dict[str, set[str]], list[list[Tensor]]]:
    """The functions that read each parameter, and the model's outputs in evaluation mode."""
    seen = _Uses(named)
    was_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), seen:
            return seen.of, [_tensors(model(*item)) for item in batches]
    finally:
        for module in was_training:
            module.training = True


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model by name, tied ones once; raises for a model that cannot be quantised at all."""
    check_module("quantise", model)
    for name, part in model.named_modules():
        # marks of torch.compile(part) and of part.compile()
        if isinstance(part, torch._dynamo.OptimizedModule) or part._compiled_call_impl is not None:
            raise TypeError(f"quantise: {name or 'model'} is compiled; quantise it first, and compile the result")
    named = dict(model.named_parameters())
    if not named:
        raise ValueError(f"quantise: {type(model).__name__} has no parameters, so there is nothing to quantise")
    for name, parameter in named.items():
        if isinstance(parameter, Int8Weight):
            raise ValueError(f"quantise: {name} is quantised already; quantise the model that this one was made from")
        if parameter.is_meta:
            raise ValueError(f"quantise: {name} is on the meta device and has no numbers; load the weights first")
    return named


def _reason_against(parameter: nn.Parameter, uses: set[str], embeddings: bool, min_size: int) -> str | None:
    """The reason why a parameter is not quantised; None if it is."""
    others = sorted(uses - {LINEAR, EMBEDDING})
    if not uses:
        return "not read on these data"
    if others or (LINEAR not in uses and not embeddings) or parameter.ndim != 2:
        return f"not the weight of a linear map alone: read by {', '.join(sorted(uses))}"
    if EMBEDDING in uses and not embeddings:
        return "shared with an embedding; embeddings=True rounds it too"
    if parameter.numel() < min_size:
        return f"below {min_size} numbers"
    return None


def _check_numbers(name: str, parameter: nn.Parameter) -> None:
    if parameter.dtype not in DTYPES:
        raise ValueError(
            f"quantise: {name} is {parameter.dtype}; weights must be float32 or bfloat16: convert the model with "
            "model.float() first"
        )
    if not parameter.isfinite().all():
        raise ValueError(f"quantise: {name} holds numbers that are not finite; the model is damaged")


def _tensors(outputs: Any) -> list[Tensor]:
    """The floating-point tensors among a model's outputs."""
    found = [part for part in tree_leaves(outputs) if isinstance(part, Tensor) and part.is_floating_point()]
    if not found:
        raise TypeError(
            f"quantise: the model must answer with tensors, to measure the error; got {type(outputs).__name__}"
        )
    return found


def _relative_error(found: Iterable[Sequence[Tensor]], wanted: Iterable[Sequence[Tensor]]) -> float:
    """‖g - f‖ / ‖f‖ over all tensors of all batches."""
    off, size = 0.0, 0.0
    for g, f in zip(found, wanted, strict=True):
        for new, old in zip(g, f, strict=True):
            off += (new.double() - old.double()).square().sum().item()
            size += old.double().square().sum().item()
    if not (size < float("inf") and off < float("inf")):
        raise ValueError("quantise: outputs on these data are not finite; look at the data, then at the model")
    return (off / size) ** 0.5 if size else off**0.5


def _bytes(parameter: Tensor) -> int:
    """Bytes of a parameter in memory."""
    if isinstance(parameter, Int8Weight):
        return parameter.numel() + parameter.scale.nbytes
    return parameter.nbytes
