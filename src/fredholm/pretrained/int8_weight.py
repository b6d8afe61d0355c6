"""The weight of a linear map as 8-bit integers with one scale per row.

Legend
    W   the weight (d_out, d_in)          q_o = round(W_o / s_o) in -127 … 127,  s_o = max_i |W_oi| / 127
    x   a row of the signal               a   = round(x / t) in -63 … 63,        t   = max_i |x_i| / 63

    W x ≈ s ⊙ q x           the weight alone is rounded
    W x ≈ t s ⊙ q a         the signal is rounded too, each row with its own t, so that rows stay independent

On a CPU a is stored as a + 64 in 0 … 127: sums of two products then fit into the 16-bit accumulators of processors
without VNNI.
"""

from collections.abc import Sequence
from typing import Any, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

from fredholm._precision import autocast_dtype, without_autocast

DTYPES = (torch.float32, torch.bfloat16)
"""Supported dtypes of weights and of signals."""

LARGEST, LARGEST_ACTIVATION = 127, 63
FEW_ROWS = 8
"""Most rows for which the integer kernel is faster than dequantising first."""
BLOCK = 32
"""Channels that the integer kernel reads at once; it reads past the end unless they divide d_in."""

aten = torch.ops.aten


@final
class Int8Weight(Tensor):
    """W stored as int8 in place of a parameter; frozen, without gradients for itself or for signals.

    `F.linear` and `F.embedding` read the integers. Every other function gets `dequantised()`.

    Attributes:
        whole: q, int8 `(d_out, d_in)`; packed for oneDNN where signals are rounded on a CPU.
        scale: s, float32 `(d_out,)`.
        rounds_signals: whether signals are rounded too.
    """

    whole: Tensor
    scale: Tensor
    rounds_signals: bool

    @staticmethod
    def __new__(
        cls, whole: Tensor, scale: Tensor, size: Sequence[int], dtype: torch.dtype, rounds_signals: bool
    ) -> "Int8Weight":
        """Creates a wrapper tensor without storage."""
        made = Tensor._make_wrapper_subclass(cls, size, dtype=dtype, device=scale.device)  # type: ignore[attr-defined]
        made.whole, made.scale, made.rounds_signals = whole, scale, rounds_signals
        return made

    @classmethod
    def of(cls, weight: Tensor, *, rounds_signals: bool = False) -> "Int8Weight":
        """Quantises a weight.

        Args:
            weight: `(d_out, d_in)`, finite, of a dtype in `DTYPES`.
            rounds_signals: whether signals are rounded too.
        """
        wide = weight.detach().float().contiguous()  # the integer kernels take no other layout
        scale = (wide.abs().amax(1) / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
        whole = (wide / scale[:, None]).round_().to(torch.int8)
        return cls(_packed(whole, rounds_signals), scale, weight.shape, weight.dtype, rounds_signals)

    @property
    def plain(self) -> Tensor:
        """q, unpacked."""
        return self.whole.to_dense().t().contiguous() if self.whole.is_mkldnn else self.whole

    def dequantised(self) -> Tensor:
        """Returns s q, `(d_out, d_in)`, in the dtype of the original weight."""
        return (self.plain * self.scale[:, None]).to(self.dtype)

    def times(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Returns W x + b for rows x, `(..., d_in)` to `(..., d_out)`.

        Raises:
            RuntimeError: a gradient is recorded.
            ModuleNotFoundError: on a GPU, where torchao is missing.
        """
        cast = autocast_dtype(x)
        x = x if cast is None else x.to(cast)
        if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
            raise RuntimeError(
                "a quantised model is for inference, and a gradient would go through its weights; call it under "
                "torch.no_grad(), or train the model that it was made from"
            )
        if x.device.type != "cpu":
            return F.linear(x, self.of_torchao(), bias)
        # a custom operator costs 0.1 ms a call, and only the compiler needs it
        product = int8_linear if torch.compiler.is_compiling() else _product
        out = product(x, self.whole, self.scale)
        return out if bias is None else out + bias.to(out.dtype)

    def of_torchao(self) -> Tensor:
        """The same weight as a tensor of torchao, which has kernels for GPUs; it rounds signals to 8 bits."""
        try:
            from torchao.quantization import Int8Tensor, PerRow
            from torchao.quantization.quantize_.workflows import QuantizeTensorToInt8Kwargs
        except ImportError as error:
            raise ModuleNotFoundError(
                "quantised weights on a GPU need torchao; pip install 'fredholm[quantise]'"
            ) from error
        signals = QuantizeTensorToInt8Kwargs(granularity=PerRow()) if self.rounds_signals else None
        block = [1, self.shape[1]]
        return Int8Tensor(self.plain, self.scale[:, None], block, self.dtype, act_quant_kwargs=signals)

    def _moved(self, dtype: torch.dtype | None, device: torch.device | None) -> "Int8Weight":
        dtype = self.dtype if dtype is None else dtype
        if dtype not in DTYPES:
            raise TypeError(f"quantised weights serve float32 and bfloat16; got {dtype}: convert the model before")
        whole, scale = (each.to(device or self.device) for each in (self.plain, self.scale))
        return Int8Weight(_packed(whole, self.rounds_signals), scale, self.shape, dtype, self.rounds_signals)

    def __tensor_flatten__(self) -> tuple[list[str], tuple[torch.dtype, bool]]:
        """Inner tensors and metadata, for torch.compile."""
        return ["whole", "scale"], (self.dtype, self.rounds_signals)

    @classmethod
    def __tensor_unflatten__(
        cls, inner: dict[str, Tensor], meta: tuple[torch.dtype, bool], size: Any, stride: Any
    ) -> Self:
        """Restores the tensor from its parts, for torch.compile."""
        return cls(inner["whole"], inner["scale"], size, *meta)

    def _stable_hash_for_caching(self) -> str:
        """Key of the compiler's caches: everything but the values."""
        return repr((*self.__tensor_flatten__(), (*self.shape,), self.device, self.whole.layout))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes linear maps with the integers; refuses gradients."""
        kwargs = kwargs or {}
        if func is F.linear:
            x, weight, bias = linear_arguments(*args, **kwargs)
            if isinstance(weight, cls) and not isinstance(x, cls) and not isinstance(bias, cls):
                return weight.times(x, bias)
        if func is Tensor.requires_grad_ and _wants_gradient(*args, **kwargs):
            raise TypeError(
                "quantised weights do not learn: train the model that they were made from; and a model that is given "
                "some by load_state_dict has to be frozen before, by requires_grad_(False)"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Copies and look-ups use the integers; any other operation gets the dequantised weight."""
        kwargs = kwargs or {}
        own = args[0] if args and isinstance(args[0], cls) else None
        if own is not None and func in (aten.detach.default, aten.alias.default, aten.clone.default):
            whole, scale = (
                part.clone() if func is aten.clone.default else part.detach() for part in (own.whole, own.scale)
            )
            made = cls(whole, scale, own.shape, own.dtype, own.rounds_signals)
            return return_and_correct_aliasing(func, args, kwargs, made)
        if own is not None and func is aten._to_copy.default:
            return own._moved(kwargs.get("dtype"), kwargs.get("device"))
        if own is not None and func is aten.embedding.default:
            places = args[1]
            return (own.plain[places] * own.scale[places][..., None]).to(own.dtype)
        if own is not None and func._schema.name.startswith("aten::new_"):
            return func(own.scale.to(own.dtype), *args[1:], **kwargs)
        if own is not None and func._schema.is_mutable:
            raise TypeError(
                f"quantised weights do not change ({func._schema.name.removeprefix('aten::')}); change the model that "
                "this one was made from, or load_state_dict(..., assign=True)"
            )
        args, kwargs = tree_map_only(cls, lambda weight: weight.dequantised(), (args, kwargs))
        return func(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickles the unpacked integers with scale and dtype."""
        parts = (self.plain, self.scale, self.dtype, self.rounds_signals, isinstance(self, nn.Parameter))
        return restored, parts

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A deep copy."""
        made = self.clone()
        memo[id(self)] = made = frozen(made) if isinstance(self, nn.Parameter) else made
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """Shape, dtype and device."""
        rounded = ", rounds signals" if self.rounds_signals else ""
        return f"Int8Weight({tuple(self.shape)}, for {self.dtype}, on {self.device}{rounded})"


def frozen(weight: Tensor) -> nn.Parameter:
    """The weight as a parameter without gradient."""
    return nn.Parameter(weight, requires_grad=False)


def restored(
    whole: Tensor, scale: Tensor, dtype: torch.dtype, rounds_signals: bool, is_parameter: bool
) -> Int8Weight | nn.Parameter:
    """Unpickles a weight from its parts."""
    made = Int8Weight(_packed(whole, rounds_signals), scale, whole.shape, dtype, rounds_signals)
    return frozen(made) if is_parameter else made


torch.serialization.add_safe_globals([restored])


@torch.library.custom_op("fredholm::int8_linear", mutates_args=())
def int8_linear(x: Tensor, whole: Tensor, scale: Tensor) -> Tensor:
    """W x of `Int8Weight` on a CPU, `(..., d_in)` to `(..., d_out)`, in the dtype of x."""
    return _product(x, whole, scale)


@int8_linear.register_fake
def _(x: Tensor, whole: Tensor, scale: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], scale.shape[0])


def _product(x: Tensor, whole: Tensor, scale: Tensor) -> Tensor:
    rows, count = x.reshape(-1, x.shape[-1]), scale.shape[0]
    if whole.is_mkldnn:
        out = _rounded_product(rows.float(), whole, scale).to(x.dtype)
    elif 0 < rows.shape[0] <= FEW_ROWS and rows.shape[1] % BLOCK == 0:
        ones = torch.ones_like(scale, dtype=torch.bfloat16)  # the scale itself stays in float32
        out = (torch.ops.aten._weight_int8pack_mm(rows.bfloat16(), whole, ones) * scale).to(x.dtype)
    else:
        # float16, which autocast would use, overflows in sums of signals times integers
        dtype = torch.float32 if x.dtype == torch.float16 else x.dtype
        with without_autocast(rows):
            out = (F.linear(rows.to(dtype), whole.to(dtype)) * scale.to(dtype)).to(x.dtype)
    return out.view(*x.shape[:-1], count)


def _rounded_product(rows: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """t s ⊙ q a, of float32 rows `(m, d_in)`."""
    step = (rows.abs().amax(-1, keepdim=True) / LARGEST_ACTIVATION).clamp_min(torch.finfo(torch.float32).tiny)
    shift = LARGEST_ACTIVATION + 1
    shifted = (rows / step).round_().add_(shift).to(torch.uint8)
    zeros = torch.zeros_like(scale, dtype=torch.int32)
    product = torch.ops.onednn.qlinear_pointwise(
        shifted, 1.0, shift, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product * step


def _packed(whole: Tensor, rounds_signals: bool) -> Tensor:
    return torch.ops.onednn.qlinear_prepack(whole, None) if rounds_signals and whole.device.type == "cpu" else whole


def linear_arguments(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arguments of `F.linear`, in order."""
    return input, weight, bias


def _wants_gradient(tensor: Tensor, requires_grad: bool = True) -> bool:
    return requires_grad
