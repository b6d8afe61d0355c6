"""An attention operator that is called as torch's multi-head attention is."""

from collections.abc import Iterator
from typing import Self, final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, Sequence
from fredholm.evaluation import FusedAttention
from fredholm.kernels import Attention
from fredholm.operators.integral import IntegralOperator


@final
class AttentionLayer(nn.Module):
    """An `IntegralOperator` with an attention kernel, called with query, key and value.

    Args:
        kernel: the attention kernel, not causal: causality is an `attn_mask` here, as it is in torch.
        bias: whether the output projection W^O has a constant.
        batch_first: signals are `(B, N, C)` instead of torch's default `(N, B, C)`.
        dropout: probability with which torch's layer drops attention weights while training. A kernel is not random, so
            such a layer runs in evaluation mode only.

    Attributes:
        operator: the integral operator; W^O is its output projection.
    """

    def __init__(
        self, kernel: Attention, *, bias: bool = True, batch_first: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if not isinstance(kernel, Attention):
            raise TypeError(f"AttentionLayer: kernel must be a kernels.Attention; got {type(kernel).__name__}")
        if kernel.is_causal:
            raise ValueError("AttentionLayer: the kernel must not be causal; pass an attn_mask to each call instead")
        self.operator = IntegralOperator(kernel, residual=False, bias=bias)
        self.batch_first, self.dropout = batch_first, dropout
        # torch's encoder layers read the packed weights themselves unless they find no such constant
        self.in_proj_bias = None

    @property
    def kernel(self) -> Attention:
        """The attention kernel."""
        assert isinstance(self.operator.kernel, Attention)
        return self.operator.kernel

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Applies the layer; arguments, shapes and the meaning of masks are those of `torch.nn.MultiheadAttention`.

        Args:
            query: `(B, Nq, E)`, `(Nq, B, E)` unless `batch_first`, or `(Nq, E)` without a batch.
            key, value: the same with N points and their own channels.
            key_padding_mask: `(B, N)` or `(N,)`; bool, True = ignore (torch's meaning, the opposite of this library's),
                or float, added to the scores.
            need_weights: whether to return the attention weights too.
            attn_mask: `(Nq, N)` or `(B·H, Nq, N)`; bool, True = ignore, or float, added to the scores.
            average_attn_weights: whether the weights are averaged over heads.
            is_causal: promises that `attn_mask` is the causal mask; it must be given all the same.

        Returns:
            The result, shaped like `query`, and the weights `(B, Nq, N)`, `(B, H, Nq, N)` or None. A query that sees
            nothing gets W^O 0 + b (torch: NaN).

        Raises:
            ValueError, TypeError: on shapes that do not fit, and in training mode with dropout.
        """
        if self.training and self.dropout > 0:
            raise ValueError(
                f"AttentionLayer: dropout of attention weights (p = {self.dropout}) is no integral; call .eval(), or "
                "set .dropout = 0 to train without it"
            )
        if is_causal and attn_mask is None:
            raise ValueError("AttentionLayer: is_causal only describes attn_mask; pass the causal mask as attn_mask")
        self._check_signals(query, key, value)
        has_batch = query.ndim == 3
        if key is value and not self.kernel.projections.separate_values:
            operator = self.operator
            query, u = (self._batched(part) for part in (query, key))
        else:
            operator = self._on_pairs()
            query, key, value = (self._batched(part) for part in (query, key, value))
            if key.shape[:2] != value.shape[:2]:
                raise ValueError(
                    f"AttentionLayer: key and value must hold the same points; "
                    f"got {tuple(key.shape)} and {tuple(value.shape)} (batch, points, channels)"
                )
            u = torch.cat([key, value], dim=-1)
        domain = self._domain(query, u, key_padding_mask, attn_mask)
        same_points = query.shape[1] == domain.num_points
        query_domain = domain if same_points else Sequence(query.shape[1]).to(query.device)
        weights = None
        if need_weights:
            out, weights = self._with_weights(operator, u, domain, query, query_domain)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            out = operator(u, domain, query=query, query_domain=query_domain)
        if not has_batch:
            return out[0], None if weights is None else weights[0]
        return (out if self.batch_first else out.transpose(0, 1)), weights

    @staticmethod
    def _with_weights(
        operator: IntegralOperator, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain
    ) -> tuple[Tensor, Tensor]:
        """The operator's result and the coefficients of the mean, which the fused route does not form."""
        integral = operator.prepare(u, domain, query=query, query_domain=query_domain)
        out, coefficients = FusedAttention().with_coefficients(integral)
        return operator.around(out, integral.query), coefficients

    def _check_signals(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        own = self.kernel.projections
        for name, signal, channels in (
            ("query", query, own.query_dim),
            ("key", key, own.key_dim),
            ("value", value, own.value_dim),
        ):
            if signal.ndim not in (2, 3) or signal.ndim != query.ndim or signal.shape[-1] != channels:
                order = "(batch, points, {0})" if self.batch_first else "(points, batch, {0})"
                raise ValueError(
                    f"AttentionLayer: {name} must be {order.format(channels)} or (points, {channels}), "
                    f"all three with or without a batch; got {tuple(signal.shape)}"
                )

    def _batched(self, signal: Tensor) -> Tensor:
        """`(B, N, C)` from the layer's own order, or without a batch."""
        if signal.ndim == 2:
            return signal[None]
        return signal if self.batch_first else signal.transpose(0, 1)

    def _domain(self, query: Tensor, key: Tensor, padding: Tensor | None, attn_mask: Tensor | None) -> Domain:
        """The keys, with what the masks hide or weigh."""
        batch, length = key.shape[:2]
        domain = Sequence(length).to(key.device)
        heads = self.kernel.num_heads
        bias = None
        if attn_mask is not None:
            expected = [(query.shape[1], length), (batch * heads, query.shape[1], length)]
            if tuple(attn_mask.shape) not in expected:
                raise ValueError(
                    f"AttentionLayer: attn_mask must be {expected[0]} or {expected[1]}; got {tuple(attn_mask.shape)}"
                )
            bias = _kept(attn_mask)
            bias = bias[None, None] if bias.ndim == 2 else bias.unflatten(0, (batch, heads))
        if padding is not None:
            padding = padding[None] if padding.ndim == 1 else padding
            if tuple(padding.shape) != (batch, length):
                raise ValueError(
                    f"AttentionLayer: key_padding_mask must be {(batch, length)}; got {tuple(padding.shape)}"
                )
            hidden = _kept(padding)[:, None, None].expand(-1, 1, query.shape[1], -1)
            bias = hidden if bias is None else _both(hidden, bias)
        return domain if bias is None else domain.weigh_pairs(bias)

    def _on_pairs(self) -> IntegralOperator:
        """The operator on signals [key; value], with the same parameters."""
        if self.kernel.projections.separate_values:
            return self.operator
        with torch.device("meta"):
            operator = IntegralOperator(self.kernel.with_separate_values(), residual=False)
        operator.output_weight, operator.bias = self.operator.output_weight, self.operator.bias
        return operator

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> Self:
        """The same layer as an operator, with copies of its parameters.

        Returns:
            A layer with the module's values, dtype, device, training mode and `requires_grad`.

        Raises:
            ValueError: for `add_bias_kv` and `add_zero_attn`.
            TypeError: for any other module, subclasses included.
        """
        if type(module) is not nn.MultiheadAttention:
            raise TypeError(
                f"AttentionLayer.from_torch: converts nn.MultiheadAttention itself; got {type(module).__name__}"
            )
        out = module.out_proj
        layer = cls(
            Attention.from_torch(module),
            bias=out.bias is not None,
            batch_first=module.batch_first,
            dropout=module.dropout,
        )
        layer.operator.to(device=out.weight.device, dtype=out.weight.dtype)
        assert layer.operator.output_weight is not None
        with torch.no_grad():
            layer.operator.output_weight.copy_(out.weight)
            if layer.operator.bias is not None:
                layer.operator.bias.copy_(out.bias)
        for mine, theirs in layer._beside(module):
            mine.requires_grad_(theirs.requires_grad)
        return layer.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """A `torch.nn.MultiheadAttention` with copies of the parameters.

        Raises:
            ValueError: for grouped queries and scales that torch's layer does not have.
        """
        own, operator = self.kernel.projections, self.operator
        if own.num_kv_heads != own.num_heads:
            raise ValueError(
                f"AttentionLayer.to_torch: torch's layer has as many key heads as query heads; "
                f"this kernel has {own.num_kv_heads} for {own.num_heads}"
            )
        if self.kernel.scale != own.head_dim**-0.5:
            raise ValueError(
                f"AttentionLayer.to_torch: torch's layer scales scores by 1/sqrt({own.head_dim}); "
                f"this kernel by {self.kernel.scale:.4g}"
            )
        assert operator.output_weight is not None
        like = operator.output_weight
        module = nn.MultiheadAttention(
            own.query_dim,
            own.num_heads,
            self.dropout,
            bias=own.query_bias is not None,
            kdim=own.key_dim,
            vdim=own.value_dim,
            batch_first=self.batch_first,
            device=like.device,
            dtype=like.dtype,
        )
        weights = (own.query_weight, own.key_weight, own.value_weight)
        biases = (own.query_bias, own.key_bias, own.value_bias)
        with torch.no_grad():
            if module.in_proj_weight is not None:
                module.in_proj_weight.copy_(torch.cat(weights))
            else:
                theirs = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
                for mine, weight in zip(weights, theirs, strict=True):
                    weight.copy_(mine)
            if module.in_proj_bias is not None:
                module.in_proj_bias.copy_(torch.cat([bias for bias in biases if bias is not None]))
            module.out_proj.weight.copy_(like)
            if module.out_proj.bias is not None:
                module.out_proj.bias.copy_(torch.zeros_like(like[0]) if operator.bias is None else operator.bias)
        for mine, theirs in self._beside(module):
            theirs.requires_grad_(mine.requires_grad)
        return module.train(self.training)

    def _beside(self, module: nn.MultiheadAttention) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Each parameter, and that of torch's layer which it is part of or stands for."""
        own, operator = self.kernel.projections, self.operator
        packed = module.in_proj_weight
        apart = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight) if packed is None else (packed,) * 3
        pairs = [*zip((own.query_weight, own.key_weight, own.value_weight), apart, strict=True)]
        pairs += [(bias, module.in_proj_bias) for bias in (own.query_bias, own.key_bias, own.value_bias)]
        pairs += [(operator.output_weight, module.out_proj.weight), (operator.bias, module.out_proj.bias)]
        for mine, theirs in pairs:
            if mine is not None and theirs is not None:
                yield mine, theirs

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"batch_first={self.batch_first}, dropout={self.dropout}"


def _kept(mask: Tensor) -> Tensor:
    """torch's mask, True = ignore, in this library's meaning; a float mask is added to scores in both."""
    return ~mask if mask.dtype == torch.bool else mask


def _both(one: Tensor, other: Tensor) -> Tensor:
    """What two masks hide or add together."""
    if one.dtype == other.dtype == torch.bool:
        return one & other
    return _added(one) + _added(other)


def _added(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=torch.get_default_dtype(), device=mask.device).masked_fill(~mask, -torch.inf)
