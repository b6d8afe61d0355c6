"""Linear maps of a trained model in whole numbers of 8 bits.

Which weights are those of linear maps is not looked up but seen: the model runs on the user's data, and a weight is
meant if `F.linear` is all that reads it. What is read in other ways, such as by a convolution, stays as it is.
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
"""What a model is called with: a tensor, or several arguments."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantised:
    """What was made of a model.

    Attributes:
        weights: names of those that are whole numbers now.
        left: why others are not, by their names.
        bytes_before, bytes_after: of all parameters.
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
    """A frozen copy of a model whose linear maps have weights of 8 bits, and how far its outputs are from the model's.

    Each row of a weight W has a scale of its own: W_o ≈ s_o q_o, with q_o in -127 … 127. A quantised model is called,
    compiled, copied and drawn texts from like any other; it has no gradients.

    Args:
        model: trained; left as it is, and asked in evaluation mode.
        data: batches as the model is called with them, at least one. They show which weights are those of linear maps,
            and give the error; use all that the model is for, such as masks.
        activations: whether the signals that linear maps read are rounded too, row by row: faster where there are many
            rows, and less exact.
        embeddings: whether tables that `F.embedding` reads are rounded too, those that are the head's map as well
            among them.
        min_size: the fewest numbers of a weight that is worth it.
        where: which weights are meant, of name and parameter; None: all.

    Returns:
        the copy, in evaluation mode, which shares no memory with the model; and the report, which `print` shows.

    Raises:
        TypeError, ValueError: there is no batch or no weight that is meant, weights are of another dtype than float32
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
            left[name] = "not meant by where"
        else:
            _check_numbers(name, parameter)
            # whoever looks a table up reads single rows of it, which packed numbers have not
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
"""What says something of a tensor, or makes another of its kind, without its numbers."""


class _Uses(TorchFunctionMode):
    """Notes which functions read each parameter.

    Attributes:
        of: their names, by the names of parameters.
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
    """What reads each parameter, and what the model answers, in evaluation mode."""
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
    """The parameters of a model by their first names; raises for a model that cannot be quantised at all."""
    check_module("quantise", model)
    for name, part in model.named_modules():
        # what torch.compile(part) and part.compile() leave behind
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
    """Why a parameter stays as it is."""
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
    """The floating-point tensors among what a model answers."""
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
    """What a parameter takes in memory."""
    if isinstance(parameter, Int8Weight):
        return parameter.numel() + parameter.scale.nbytes
    return parameter.nbytes
