"""Checks whether Python code may branch on the values of tensors, or on sizes."""

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import is_fake
from torch.fx.experimental.proxy_tensor import get_proxy_mode, has_proxy_slot


def values_can_be_read(*tensors: Tensor | None) -> bool:
    """Whether Python code may branch on the values of these tensors.

    Not while a graph is traced or captured, for tensors that are shapes only (meta and fake ones), nor under
    `torch.func.vmap`. There, checks of values are left out, and routes assume nothing about values.
    """
    return not torch.compiler.is_compiling() and all(tensor is None or _holds_values(tensor) for tensor in tensors)


def values_are_at_hand(*tensors: Tensor | None) -> bool:
    """`values_can_be_read`, and on the CPU, so that reading waits for no device; for optional shortcuts."""
    return all(tensor is None or tensor.device.type == "cpu" for tensor in tensors) and values_can_be_read(*tensors)


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor has storage: meta and fake tensors do not."""
    return not (tensor.is_meta or is_fake(tensor))


def is_batched(tensor: Tensor | None) -> bool:
    """Whether a tensor is batched by `torch.func.vmap`."""
    while tensor is not None and is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


def is_open(size: int) -> bool:
    """Whether a size is symbolic, as in an exported graph; a branch on it would hold only for some sizes."""
    return isinstance(size, torch.SymInt)


def _holds_values(tensor: Tensor) -> bool:
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return False
        tensor = get_unwrapped(tensor)
    traced_by = get_proxy_mode()
    is_traced = traced_by is not None and has_proxy_slot(tensor, traced_by.tracer)
    if is_traced or not has_values(tensor):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
