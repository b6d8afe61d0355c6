"""What every domain asks of the tensors that it is given."""

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import is_fake
from torch.fx.experimental.proxy_tensor import get_proxy_mode, has_proxy_slot


def values_can_be_read(*tensors: Tensor | None) -> bool:
    """Whether a decision in Python may depend on what these tensors hold.

    Not while a graph is traced, for tensors that are shapes only (meta and fake ones), nor under `torch.func.vmap`.
    Checks of values are left out there, and routes take what holds for any values.
    """
    return not torch.compiler.is_compiling() and all(tensor is None or _holds_values(tensor) for tensor in tensors)


def _holds_values(tensor: Tensor) -> bool:
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return False
        tensor = get_unwrapped(tensor)
    traced_by = get_proxy_mode()
    is_traced = traced_by is not None and has_proxy_slot(tensor, traced_by.tracer)
    return not (tensor.is_meta or is_fake(tensor) or is_traced)


def check_tensor(name: str, what: str, value: object) -> None:
    """Raises TypeError, in the name of `name`, unless `value` is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: {what} must be a tensor; got {type(value).__name__}")


def device_of(*given: Tensor | None) -> torch.device | None:
    """Device of the first of `given` that is a tensor."""
    return next((value.device for value in given if isinstance(value, Tensor)), None)


def check_mask(name: str, mask: Tensor | None, pos: Tensor) -> None:
    """Raises, in the name of `name`, unless `mask` is None or says of each point of `pos` whether it exists."""
    check_points(name, "mask", mask, pos)
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"{name}: mask must be bool, True = this point exists; got {mask.dtype}")


def check_points(name: str, what: str, value: Tensor | None, pos: Tensor) -> None:
    """Raises, in the name of `name`, unless `value` is None or has one entry a point of `pos`."""
    if value is None:
        return
    check_tensor(name, what, value)
    num_points, shape = pos.shape[-2], tuple(value.shape)
    batch = str(pos.shape[0]) if pos.ndim == 3 else "B"
    batch_fits = len(shape) == 1 or (len(shape) == 2 and (pos.ndim == 2 or shape[0] == pos.shape[0]))
    if not batch_fits or shape[-1] != num_points:
        raise ValueError(
            f"{name}: {what} must have one entry a point, ({num_points},) or ({batch}, {num_points}); "
            f"got shape {shape} for pos of shape {tuple(pos.shape)}"
        )
    if value.device != pos.device:
        raise ValueError(f"{name}: {what} is on {value.device} but pos is on {pos.device}; move them to one device")


def check_one_batch(name: str, mask: Tensor | None, weights: Tensor | None) -> None:
    """Raises ValueError, in the name of `name`, where mask and weights have two different batch sizes."""
    if mask is None or weights is None or min(mask.ndim, weights.ndim) < 2:
        return
    if mask.shape[0] != weights.shape[0]:
        raise ValueError(
            f"{name}: mask {tuple(mask.shape)} has another batch size than the points' weights {tuple(weights.shape)}"
        )


def dropped(weights: Tensor, mask: Tensor | None) -> Tensor:
    """The weights, 0 where no point exists."""
    if mask is None:
        return weights
    return torch.where(mask, weights, 0.0)


def checked_weights(name: str, weights: Tensor, mask: Tensor | None) -> Tensor:
    """Weights that were given, 0 where no point exists; raises unless they are finite masses >= 0."""
    if not weights.dtype.is_floating_point:
        raise TypeError(f"{name}: weights must be a float tensor; got {weights.dtype}")
    weights = dropped(weights, mask)
    if values_can_be_read(weights):
        if not bool(torch.isfinite(weights).all()):
            raise ValueError(f"{name}: weights hold NaN or infinite values at points that exist")
        if bool((weights < 0).any()):
            raise ValueError(f"{name}: weights are masses and must be >= 0; got {weights.min().item():.4g}")
    return weights
