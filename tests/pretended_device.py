"""A simulated GPU: tensors lie on the CPU, but report `DEVICE` as their device and do not mix with CPU tensors.

Within `pretending()`, `t.to(DEVICE)` returns a tensor whose `device` is `DEVICE`. So do all tensors computed from it or
created there. An operation on it and on a tensor of the CPU fails as it would on a GPU. Values are real, so the results
of code paths for `device.type == "cuda"` can be compared. Operators of this library run their own code, forward and
backward, not their fake implementation for tensors without values.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from fredholm.evaluation.triton import machine

aten = torch.ops.aten
_parse_to = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue]
_DEVICE, _IS_CUDA, _IS_CPU = (getattr(Tensor, name).__get__ for name in ("device", "is_cuda", "is_cpu"))
DEVICE, CPU = torch.device("cuda", 0), torch.device("cpu")
_OWN_CODE = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_PLACES: dict[int, tuple[StorageWeakRef, torch.device | None]] = {}
"""Device of each storage, by the storage's address. A weak reference keeps the address from being reused. None: the
storage was created in C++ from no tensor, so its device is unknown here. A storage without an entry is on the CPU."""
_MANY = 2_000
"""Number of entries above which those of freed storages are removed."""


_CUDA: dict[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "get_device_name": lambda device=None: "pretended",
    "is_bf16_supported": lambda: True,
    "is_current_stream_capturing": lambda: False,
    "synchronize": lambda device=None: None,
    "empty_cache": lambda: None,
    "reset_peak_memory_stats": lambda device=None: None,
    "memory_allocated": lambda device=None: 0,
    "max_memory_allocated": lambda device=None: 1_000_000,
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
}
"""Replacements of functions of `torch.cuda`."""


@contextlib.contextmanager
def pretending() -> Iterator[None]:
    """Simulates a machine with a GPU and without Triton, as the module describes."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(machine, "INSTALLED", False))
        for name, answer in _CUDA.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch.object(torch.autocast, "__enter__", _enter_on_the_cpu_too))
        stack.enter_context(mock.patch.object(torch.autocast, "__exit__", _exit_on_the_cpu_too))
        stack.enter_context(mock.patch.object(torch.backends.cudnn, "is_acceptable", return_value=False))
        # checkpoint's default check reads devices in C++, where every tensor is on the CPU
        seen = {"default": lambda t: (t.shape, t.dtype)}
        stack.enter_context(mock.patch.dict(checkpoint._allowed_determinism_checks_to_fns, seen))
        stack.enter_context(_Computing())
        stack.enter_context(_DeviceQueries())
        stack.callback(_PLACES.clear)
        yield


_enter, _exit = torch.autocast.__enter__, torch.autocast.__exit__


def _enter_on_the_cpu_too(autocast: Any) -> Any:
    if autocast.device == DEVICE.type:
        autocast.there = torch.autocast("cpu", autocast.fast_dtype, enabled=autocast._enabled)
        autocast.there.__enter__()
    return _enter(autocast)


def _exit_on_the_cpu_too(autocast: Any, *error: Any) -> Any:
    if autocast.device == DEVICE.type:
        autocast.there.__exit__(*error)
    return _exit(autocast, *error)


def _storage(t: Tensor) -> torch.UntypedStorage:
    if t.layout == torch.strided:
        return t.untyped_storage()
    return (t._values() if t.layout == torch.sparse_coo else t.values()).untyped_storage()


def _place_of(t: Tensor) -> torch.device | None:
    return _PLACES.get(_storage(t)._cdata, (None, CPU))[1]


def _placed(t: Tensor, device: torch.device | None) -> Tensor:
    storage = _storage(t)
    if len(_PLACES) > _MANY:
        for address in [address for address, (record, _) in _PLACES.items() if record.expired()]:
            del _PLACES[address]
    _PLACES[storage._cdata] = StorageWeakRef(storage), device
    return t


def _leaves(tree: Any, kind: type = object) -> list[Any]:
    """Leaves of one type in nested arguments or results; `torch.utils._pytree` takes ten times as long."""
    found = []
    for each in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(each, list | tuple | dict):
            found += _leaves(each, kind) if each else ()
        elif isinstance(each, kind):
            found.append(each)
    return found


def _tensors(*trees: Any) -> list[Tensor]:
    return _leaves(trees, Tensor)


@final
class _Computing(TorchDispatchMode):
    """Marks the results of operations on tensors of `DEVICE` as lying on `DEVICE` too."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "fredholm":
            with self, _DeviceQueries():
                return func.redispatch(_OWN_CODE, *args, **kwargs)
        with torch._C.DisableTorchFunction():
            inputs = _tensors(args, kwargs)
            before = {_storage(t)._cdata for t in inputs}
            device = _common_device(func, args, inputs)
            out = func(*args, **kwargs)
            for t in _tensors(out):
                if _storage(t)._cdata not in before:
                    _placed(t, device)
            if func.overloadpacket == aten._pack_padded_sequence:
                _placed(out[1], CPU)  # lengths stay on the CPU
            return out


_ANYWHERE = (aten.copy_, aten._pack_padded_sequence)
"""Operations whose second tensor may lie on any device."""
_INDEXED = (aten.index, aten.index_put, aten.index_put_)
"""Operations whose indices, the second argument, may lie on the CPU."""


def _common_device(func: Any, args: Sequence[Any], inputs: list[Tensor]) -> torch.device | None:
    """The device of an operation's result; raises `RuntimeError` where its inputs lie on different devices."""
    if func.overloadpacket in _ANYWHERE:
        return _place_of(args[0])
    if func.overloadpacket in _INDEXED:
        inputs = _tensors((args[0], *args[2:]))
    places = [_place_of(t) for t in inputs]
    if DEVICE not in places:
        return CPU if CPU in places else None
    if any(place == CPU and t.ndim for t, place in zip(inputs, places, strict=True)):  # a scalar may be on the CPU
        raise RuntimeError(f"{func.name()}: tensors on {DEVICE} and on the CPU")
    return DEVICE


@final
class _Moved(torch.autograd.Function):
    """Copy to another device; the gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, device: torch.device) -> Tensor:
        ctx.back = _place_of(t)
        return _placed(t.clone(), device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _placed(grad.clone(), ctx.back), None


@final
class _DeviceQueries(TorchFunctionMode):
    """Answers queries for a tensor's device, and carries out moves to a device and creations on a device."""

    def __init__(self) -> None:
        super().__init__()
        self._running: list[Any] = []

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        named.pop("pin_memory", None)  # pinning needs a real GPU
        if func == _DEVICE:
            return _place_of(args[0]) or DEVICE
        if func == _IS_CUDA:
            return _place_of(args[0]) != CPU
        if func == _IS_CPU:
            return _place_of(args[0]) == CPU
        if inspect.isfunction(func) and func not in self._running:
            return self._within(func, args, named)
        if func in (torch.device, _parse_to):
            return func(*args, **named)
        if func == Tensor.cuda:
            return args[0] if _place_of(args[0]) == DEVICE else _Moved.apply(args[0], DEVICE)
        device = _requested_device(func, args, named)
        if device is not None:
            args, named = _on_the_cpu((args, named))
        out = func(*args, **named)
        if device is None or not isinstance(out, Tensor) or _place_of(out) == device:
            return out
        return _Moved.apply(out, device) if _tensors(args, named) else _placed(out, device)

    def _within(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs the body of a function that PyTorch implements in Python, with this mode active inside it."""
        names = func.__globals__
        checks = {name: check for name, check in names.items() if name.startswith("has_torch_function")}
        self._running.append(func)  # the method in C of the same name identifies itself as this function
        try:
            names.update(dict.fromkeys(checks, _always_false))
            with self:
                return func(*args, **kwargs)
        finally:
            names.update(checks)
            self._running.pop()


def _always_false(*_: Any) -> bool:
    return False


def _requested_device(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
    """The device that the caller requests for the result; None: the device where it is computed."""
    if func == Tensor.cpu:
        return CPU
    if func == Tensor.new_tensor and "device" not in kwargs:
        return _place_of(args[0]) or DEVICE
    named = [leaf for leaf in _leaves((args, kwargs)) if _names_a_device(leaf)]
    if func == Tensor.to and not named and (other := _tensors(args[1:], kwargs)):
        return _place_of(other[0]) or DEVICE
    if not named:
        return None if _tensors(args, kwargs) else CPU
    return DEVICE if torch.device(named[0]).type == DEVICE.type else CPU


def _names_a_device(leaf: Any) -> bool:
    return isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf.split(":")[0] in ("cpu", "cuda"))


def _on_the_cpu(tree: Any) -> Any:
    return tree_map(lambda leaf: CPU if _names_a_device(leaf) else leaf, tree)
