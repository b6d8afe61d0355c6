"""One model on several processes: copies whose gradients are added up, or shards of one model."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeGuard, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from fredholm.distributed.processes import Processes

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


@final
class CalledModel(nn.Module):
    """A model whose every use is a call of this module, with a function of it.

    Processes meet where a module is called. A task may use any part of a model, so this one is called with a function
    of the whole.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, use: Callable[..., Any], *arguments: Any) -> Any:
        """``use(model, *arguments)``."""
        return use(self.model, *arguments)


def replicated(model: nn.Module, processes: Processes, settled: Iterable[str] = ()) -> nn.Module:
    """To be called as `CalledModel`; in the backward pass gradients become their mean over the processes.

    A parameter that no process uses has no gradient, as on one. Buffers of the first process go to all others before
    each pass.

    Args:
        model: the same on all.
        processes: that have a copy each.
        settled: names of buffers that no pass changes, which stay where they are.

    Raises:
        ValueError: what the model computes of an example depends on the others of the batch, which are elsewhere.
    """
    called = CalledModel(model)
    if processes.size == 1 or not any(parameter.requires_grad for parameter in model.parameters()):
        return called
    _refuse_batch_norms(model, processes)
    # which are unused depends on the batch, and past Python torch warns where none ever is
    called.unused = nn.Parameter(torch.zeros(1))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(called, [f"model.{name}" for name in settled])
    # of a filter whose gradient has another layout than the filter: it is copied, and nobody can help it
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    return DistributedDataParallel(
        called.to(next(model.parameters()).device),
        init_sync=False,
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
    )


def sharded(model: nn.Module, processes: Processes, methods: Mapping[type[nn.Module], Sequence[str]]) -> CalledModel:
    """Likewise, but parameters, gradients and what is made like them lie on all processes, a part on each.

    The parameters of a block are whole while it computes, and no longer. Nothing is rounded on the way: they travel,
    and gradients are added up, in their own dtype.

    Args:
        model: the same on all, on the device to compute on; its parameters become `DTensor`.
        processes: which each keep a part of every parameter, cut along its first axis.
        methods: of blocks of some classes, those that are called beside `forward`.

    Raises:
        ValueError: as of `replicated`; or a parameter is a scalar.
    """
    from torch.distributed.device_mesh import init_device_mesh  # seconds, which one process need not spend
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    _refuse_batch_norms(model, processes)
    called = CalledModel(model)
    mesh = init_device_mesh(next(model.parameters()).device.type, (processes.size,))
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh)
        for kind, names in methods.items():
            for name in names if isinstance(block, kind) else ():
                register_fsdp_forward_method(block, name)
    fully_shard(called, mesh=mesh, reshard_after_forward=True)
    return called


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The parts of a model that follow each other: those of its lists of modules which have parts themselves.

    One that shares a parameter with others is none: it would be whole in one of them alone.
    """
    uses = _uses(model)
    return [
        part
        for part in _listed(model)
        if next(part.children(), None) is not None and all(uses[each] == own for each, own in _uses(part).items())
    ]


def _listed(model: nn.Module) -> Iterator[nn.Module]:
    """The members of a model's lists of modules, but for those of lists within them."""
    if isinstance(model, nn.ModuleList):
        yield from model
        return
    for child in model.children():
        yield from _listed(child)


def _uses(model: nn.Module) -> Counter[nn.Parameter]:
    """How many places in a model each of its parameters has."""
    return Counter(parameter for part in model.modules() for parameter in part.parameters(recurse=False))


def _refuse_batch_norms(model: nn.Module, processes: Processes) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            raise ValueError(
                f"{name} normalises over a batch, of which each of {processes.size} processes has a part; train on one "
                "process, or take a model with other norms, such as LayerNorm"
            )


def without_meeting(called: nn.Module) -> AbstractContextManager[object]:
    """While entered gradients of copies are added up here alone; the next backward pass adds in those of all others."""
    return called.no_sync() if isinstance(called, DistributedDataParallel) else contextlib.nullcontext()


@contextlib.contextmanager
def held_whole(called: nn.Module) -> Iterator[None]:
    """While entered, by all processes together, each has all the weights of `called`, and may call it as it needs."""
    parts = _shards(called)
    try:
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def _shards(called: nn.Module) -> "list[FSDPModule]":
    """The blocks, and the rest, of a model that lies on several processes; none of another."""
    if not any(map(_is_shared, called.parameters())):
        return []
    from torch.distributed.fsdp import FSDPModule

    return [part for part in called.modules() if isinstance(part, FSDPModule)]


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may lie on several processes, which then call this together."""
    return tensor.full_tensor() if _is_shared(tensor) else tensor


def own_part(tensor: Tensor) -> Tensor:
    """What lies here of a tensor that may lie on several processes."""
    return tensor.to_local() if _is_shared(tensor) else tensor


def _is_shared(tensor: Tensor) -> "TypeGuard[DTensor]":
    if not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)
