"""Dtypes of computations: at least float32 for sums, phases and normalisers, autocast's dtype for products."""

import contextlib
import functools

import torch
from torch import Tensor


def wide_dtype(*tensors: Tensor) -> torch.dtype:
    """Accumulation dtype: the dtype that the tensors promote to, float32 at least."""
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in `wide_dtype`."""
    return tensor.to(wide_dtype(tensor))


def autocast_dtype(like: Tensor) -> torch.dtype | None:
    """Autocast's dtype on the device of a tensor; None where autocast is off or not available (as on meta)."""
    kind = like.device.type
    # torch has neither an autocast state nor a dtype for devices without autocast
    is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_on else None


def product_dtype(factor: Tensor) -> torch.dtype:
    """The dtype of products with a tensor: its own, or autocast's, which leaves float64 as it is."""
    return factor.dtype if factor.dtype == torch.float64 else autocast_dtype(factor) or factor.dtype


def under_autocast(dtype: torch.dtype | None, like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Context that restores autocast on the device of a tensor as it was when `autocast_dtype` returned `dtype`."""
    kind = like.device.type
    # an exported graph may run under another autocast; entering a context takes as long as a small kernel
    stays = autocast_dtype(like) == dtype and not torch.compiler.is_exporting()
    if stays or not torch.amp.is_autocast_available(kind):
        return contextlib.nullcontext()
    return torch.autocast(kind, dtype, enabled=dtype is not None)


def without_autocast(like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Context that disables autocast on the device of a tensor."""
    return under_autocast(None, like)
