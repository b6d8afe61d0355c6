"""Recomputation in the backward pass, with the parameters of the forward pass; and points in blocks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from fredholm._precision import under_autocast
from fredholm.kernels import Kernel

Result = TypeVar("Result")


def recomputed(module: nn.Module | None, function: Callable[..., Result], *args: Any) -> Result:
    """`function(*args)`, recomputed in the backward pass, which keeps only the arguments.

    Args:
        module: the module whose parameters `function` reads. The backward pass uses their values of this call, even if
            the module has others by then, as after `torch.func.functional_call`. None: `function` reads none.
        function: computes tensors.
        args: its arguments.

    Under `torch.func.grad`, vjp and the like everything is kept, because they do not support recomputation.
    """
    if not torch.is_grad_enabled():
        return function(*args)
    if not torch.compiler.is_compiling():
        if torch._C._are_functorch_transforms_active():
            return function(*args)
        if module is not None:
            reader = _Reader(module, function)
            state = {**dict(reader.named_parameters()), **dict(reader.named_buffers())}
            return cast("Result", checkpoint(functional_call, reader, state, args, use_reentrant=False))
    return cast("Result", checkpoint(function, *args, use_reentrant=False))


@final
class _Reader(nn.Module):
    """Wraps a function that reads the parameters of a module, so that `functional_call` can replace them.

    Args:
        module: the module whose parameters it reads.
        function: a function of tensors.
    """

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *args: Any) -> Any:
        """The function's result."""
        return self.function(*args)


def reading(module: nn.Module, parameters: Sequence[Tensor], function: Callable[[], Result]) -> Result:
    """Calls `function()` with these tensors as the parameters of a module, in the order of `module.parameters()`."""
    names = (f"module.{name}" for name, _ in module.named_parameters())
    return cast("Result", functional_call(_Reader(module, function), dict(zip(names, parameters, strict=True)), ()))


def pulled_back(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    grads: Any,
    tensors: Sequence[Tensor | None],
    wanted: Sequence[bool],
    autocast: torch.dtype | None,
) -> list[Tensor | None]:
    """The gradients of the wanted tensors, of a recomputed function; None for the others.

    `autocast` is the `autocast_dtype` of the forward pass.
    """
    pairs, like = zip(tensors, wanted, strict=True), next(t for t in tensors if t is not None)
    leaves = [None if t is None else t.detach().requires_grad_(want) for t, want in pairs]
    with torch.enable_grad(), under_autocast(autocast, like):
        results = function(*leaves)
    results, grads = ((results,), (grads,)) if isinstance(results, Tensor) else (results, grads)
    received = [(r, g) for r, g in zip(results, grads, strict=True) if r.requires_grad and g is not None]
    starts = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    if not received or not starts:
        return [None] * len(leaves)
    ends, given = zip(*received, strict=True)
    found = iter(torch.autograd.grad(ends, starts, given, allow_unused=True))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


Made = TypeVar("Made")


class Blocks(NamedTuple):
    """A cut of N points into blocks of `size`; with `anew`, nothing of a block is kept, and the backward pass
    recomputes it from the parameters of `reads`."""

    size: int
    anew: bool
    reads: Kernel | None

    def cut(self, points: Tensor) -> Sequence[Tensor]:
        """The blocks of a tensor with the points in dim 1."""
        # `split` gathers gradients at once; each slice would make a gradient of all points
        return points.split(self.size, dim=1) if points.shape[1] > self.size else [points]

    def each(self, part: Callable[..., Made], *blocks: Sequence[Tensor]) -> Iterator[Made]:
        """The results of `part` on every block."""
        for given in zip(*blocks, strict=True):
            if self.anew and len(blocks[0]) > 1:
                yield recomputed(self.reads, part, *given)
            else:
                yield part(*given)

    def sum(self, part: Callable[..., tuple[Tensor, ...]], *blocks: Sequence[Tensor]) -> list[Tensor]:
        """The sums over all blocks of the results of `part`."""
        totals: list[Tensor] = []
        for made in self.each(part, *blocks):
            totals = [total + more for total, more in zip(totals, made, strict=True)] if totals else list(made)
        return totals


def blocks_of(u: Tensor, size: int | None, kept: int, reads: Kernel | None = None) -> Blocks:
    """The blocks of the points of `u` `(B, N, C)`.

    Args:
        u: the signal.
        size: points per block; None: 2^11 on a CPU, whose cache then holds their features, 2^16 elsewhere.
        kept: largest number of entries of a signal whose blocks are kept for the backward pass instead of recomputed;
            2^24 are 64 MB in float32.
        reads: the module whose parameters are read block by block; None: none.
    """
    return Blocks(size or (1 << 11 if u.device.type == "cpu" else 1 << 16), u.numel() > kept, reads)
