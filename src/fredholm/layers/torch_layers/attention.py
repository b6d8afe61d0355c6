"""An attention operator that is called as torch's multi-head attention is."""

from typing import NamedTuple, Self, final

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import dropout, scaled_dot_product_attention

from fredholm.domains import Domain, Sequence
from fredholm.evaluation import AUTO
from fredholm.kernels import Attention, Sum
from fredholm.kernels.attention.attention import DotProductForm
from fredholm.layers.torch_layers.layer import LayoutConverter, TorchLayer, check_format, hand_over, is_direct, lowered
from fredholm.operators.integral import IntegralOperator

APART = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
PROJECTIONS = "kernel.projections"


class OutputProjection(NamedTuple):
    """W^O and its constant, by the names of `torch.nn.Linear`."""

    weight: Tensor
    bias: Tensor | None
    in_features: int
    out_features: int


@final
class AttentionLayer(TorchLayer[nn.MultiheadAttention]):
    """An `IntegralOperator` with an attention kernel, called with query, key and value.

    Args:
        kernel: the attention kernel, not causal: causality is an `attn_mask` here, as it is in torch.
        bias: whether the output projection W^O has a constant.
        batch_first: signals are `(B, N, C)` instead of torch's default `(N, B, C)`.
        dropout: probability in [0, 1] with which attention weights are zeroed in training mode, while the others are
            scaled up; drawn as torch draws them.

    Attributes:
        operator: the integral operator; W^O is its output projection. Its kernel may become a sum of the attention
            kernel and others, `layer.operator.kernel += g * kernel`, to which the masks apply too; returned weights are
            those of the attention. While the attention kernel is the only one, and the operator has neither a fixed
            route nor hooks, torch's attention computes the result. The operator cannot take keys and values that are
            two signals of one width, nor drop weights: with a route or hooks such calls raise an error.
        q_proj_weight, k_proj_weight, v_proj_weight, out_proj: as in torch's layer, the parameters themselves.
        in_proj_weight, in_proj_bias: those of queries, keys and values concatenated, computed at each access.

    Raises:
        ValueError: for a causal kernel, and a dropout outside [0, 1].
    """

    q_proj_weight: Parameter
    k_proj_weight: Parameter
    v_proj_weight: Parameter
    natives = (nn.MultiheadAttention,)
    # torch's encoder layers would hand packed weights to a fused function if this were True
    _qkv_same_embed_dim = False
    bias_k = bias_v = None
    add_zero_attn = False

    def __init__(
        self, kernel: Attention, *, bias: bool = True, batch_first: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(
            {f"{name[0]}_proj_weight": f"{PROJECTIONS}.{name}_weight" for name in ("query", "key", "value")}
        )
        if not isinstance(kernel, Attention):
            raise TypeError(f"AttentionLayer: kernel must be a kernels.Attention; got {type(kernel).__name__}")
        if kernel.is_causal:
            raise ValueError("AttentionLayer: the kernel must not be causal; pass an attn_mask to each call instead")
        if not 0 <= dropout <= 1:
            raise ValueError(f"AttentionLayer: dropout is a probability in [0, 1]; got {dropout}")
        self.operator = IntegralOperator(kernel, residual=False, bias=bias)
        self.batch_first, self.dropout = batch_first, dropout

    @property
    def kernel(self) -> Attention:
        """The attention kernel, which may be one term of a sum.

        Raises:
            TypeError: the operator has none, or several.
        """
        found = self.operator.kernel
        terms = [term for term in found.kernels if isinstance(term, Attention)] if isinstance(found, Sum) else [found]
        if len(terms) != 1 or not isinstance(terms[0], Attention):
            raise TypeError(
                "AttentionLayer: its operator needs one kernels.Attention, alone or as a term of a sum; got "
                f"{type(found).__name__}; for another kernel put an IntegralOperator in place of the layer"
            )
        return terms[0]

    @property
    def embed_dim(self) -> int:
        """Channels of queries and of the result."""
        return self.kernel.out_dim

    @property
    def kdim(self) -> int:
        """Channels of keys."""
        return self.kernel.projections.key_dim

    @property
    def vdim(self) -> int:
        """Channels of values."""
        return self.kernel.projections.value_dim

    @property
    def num_heads(self) -> int:
        """Heads of queries."""
        return self.kernel.num_heads

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.kernel.projections.head_dim

    @property
    def in_proj_weight(self) -> Tensor | None:
        """Weights of queries, keys and values concatenated; None, as in torch, if their inputs differ in width."""
        own = self.kernel.projections
        if own.key_dim != own.query_dim or own.value_dim != own.query_dim:
            return None
        return torch.cat([own.query_weight, own.key_weight, own.value_weight])

    @property
    def in_proj_bias(self) -> Tensor | None:
        """Biases of queries, keys and values concatenated; None if there are none."""
        own = self.kernel.projections
        biases = tuple(bias for bias in (own.query_bias, own.key_bias, own.value_bias) if bias is not None)
        return torch.cat(biases) if biases else None

    @property
    def out_proj(self) -> OutputProjection:
        """W^O and its constant."""
        weight = self.operator.output_weight
        assert weight is not None
        return OutputProjection(weight, self.operator.bias, weight.shape[1], weight.shape[0])

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
            The result, shaped like `query`, and the weights `(B, Nq, N)`, `(B, H, Nq, N)` or None. A
            fully masked query gets W^O 0 + b (torch: NaN).

        Raises:
            ValueError, TypeError: on shapes, devices and dtypes that do not fit, and where the operator's route or
                hooks cannot serve the call.
        """
        if is_causal and attn_mask is None:
            raise ValueError("AttentionLayer: is_causal only describes attn_mask; pass the causal mask as attn_mask")
        self._check_signals(query, key, value)
        has_batch, is_one = query.ndim == 3, key is value
        query, key, value = (self._batched(part) for part in (query, key, value))
        if key.shape[:2] != value.shape[:2] or key.shape[0] != query.shape[0]:
            raise ValueError(
                "AttentionLayer: key and value must hold the same points, in the batch of query; got "
                f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)} (batch, points, channels)"
            )
        bias = self._pair_bias(query, key, key_padding_mask, attn_mask)
        drop = self.dropout if self.training else 0.0
        operator, own = self.operator, self.kernel.projections
        if is_direct(operator) and isinstance(operator.kernel, Attention):
            out, weights = self._direct(query, key, value, bias, drop, need_weights)
        else:
            self._check_operator_serves(is_one or own.separate_values, drop)
            weights = self._direct(query, key, value, bias, drop, True)[1] if need_weights else None
            u = torch.cat([key, value], dim=-1) if own.separate_values else key
            domain, query_domain = _domains(query, u, bias)
            out = operator(u, domain, query=query, query_domain=query_domain).transpose(0, 1)
        out = lowered(out)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not has_batch:
            return out[:, 0], None if weights is None else weights[0]
        return (out.transpose(0, 1) if self.batch_first else out), weights

    def _direct(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, drop: float, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The result by torch's own attention, `(Nq, B, C)`, and the weights if needed."""
        form = DotProductForm(*self.kernel.projections.of_signals(query, key, value), self.kernel.scale)
        integral, weights = _attend(form, bias, drop, need_weights)
        return self.operator.around(integral, query), weights

    def _check_operator_serves(self, is_one: bool, drop: float) -> None:
        """Raises an error if a call needs the operator, for its route or hooks, but the operator cannot compute it."""
        route = self.operator.evaluation
        reason = "hooks on .operator" if route == AUTO else f"the route {route.name}"
        instead = "put them on the layer" if route == AUTO else "set .operator.evaluation = evaluation.AUTO"
        if not isinstance(self.operator.kernel, Attention):
            reason, instead = "the kernels beside the attention", "set .dropout = 0" if drop else "make them one signal"
        if drop:
            raise ValueError(f"AttentionLayer: {reason} cannot see dropout of weights; {instead}, or call .eval()")
        if not is_one:
            raise ValueError(
                f"AttentionLayer: {reason} cannot see key and value as two signals of one width; {instead}"
            )

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
            check_format(self, name, signal, own.query_weight)

    def _batched(self, signal: Tensor) -> Tensor:
        """Converts a signal in the layer's own order, or without a batch, to `(B, N, C)`."""
        if signal.ndim == 2:
            return signal[None]
        return signal if self.batch_first else signal.transpose(0, 1)

    def _pair_bias(self, query: Tensor, key: Tensor, padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        """The combined masks: pairs to keep (bool) or numbers added to scores, `(B or 1, H or 1, Nq, N)`."""
        (batch, length), heads, bias = key.shape[:2], self.num_heads, None
        if attn_mask is not None:
            expected = [(query.shape[1], length), (batch * heads, query.shape[1], length)]
            if tuple(attn_mask.shape) not in expected:
                raise ValueError(
                    f"AttentionLayer: attn_mask must be {expected[0]} or {expected[1]}; got {tuple(attn_mask.shape)}"
                )
            bias = _kept("attn_mask", attn_mask)
            bias = bias[None, None] if bias.ndim == 2 else bias.unflatten(0, (batch, heads))
        if padding is not None:
            padding = padding[None] if padding.ndim == 1 else padding
            if tuple(padding.shape) != (batch, length):
                raise ValueError(
                    f"AttentionLayer: key_padding_mask must be {(batch, length)}; got {tuple(padding.shape)}"
                )
            hidden = _kept("key_padding_mask", padding)[:, None, None].expand(-1, 1, query.shape[1], -1)
            bias = hidden if bias is None else _both(hidden, bias)
        return bias

    @classmethod
    def _blank(cls, module: nn.Module) -> nn.Module:
        assert isinstance(module, nn.MultiheadAttention)
        return nn.MultiheadAttention(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            bias=module.in_proj_bias is not None,
            add_bias_kv=module.bias_k is not None,
            add_zero_attn=module.add_zero_attn,
            kdim=module.kdim,
            vdim=module.vdim,
            batch_first=module.batch_first,
        )

    @classmethod
    def _shaped_like(cls, blank: nn.Module) -> Self:
        assert isinstance(blank, nn.MultiheadAttention)
        has_bias = blank.out_proj.bias is not None
        return cls(Attention.from_torch(blank), bias=has_bias, batch_first=blank.batch_first, dropout=blank.dropout)

    def _native(self) -> nn.MultiheadAttention:
        own = self.kernel.projections
        if not isinstance(self.operator.kernel, Attention):
            raise ValueError("torch's layer has attention alone; this one has further kernels beside it")
        if own.num_kv_heads != own.num_heads:
            raise ValueError(
                "torch's layer has as many key heads as query heads; this kernel has "
                f" {own.num_kv_heads} for {own.num_heads}"
            )
        if self.kernel.scale != own.head_dim**-0.5:
            raise ValueError(
                f"torch's layer scales scores by 1/sqrt({own.head_dim}); this kernel by {self.kernel.scale:.4g}"
            )
        return nn.MultiheadAttention(
            own.query_dim,
            own.num_heads,
            self.dropout,
            bias=own.query_bias is not None or self.operator.bias is not None,
            kdim=own.key_dim,
            vdim=own.value_dim,
            batch_first=self.batch_first,
        )

    def _take(self, module: nn.Module, relaid: LayoutConverter) -> None:
        own, packed = self.kernel.projections, module._parameters["in_proj_weight"]
        if packed is None:
            hand_over(APART, module, self)
        else:
            parts = relaid("in_proj_weight", [packed], lambda whole: whole.chunk(3))
            own.query_weight, own.key_weight, own.value_weight = parts
        constants = module._parameters["in_proj_bias"]
        if constants is not None:
            parts = relaid("in_proj_bias", [constants], lambda whole: whole.chunk(3))
            own.query_bias, own.key_bias, own.value_bias = parts
        projection = module.get_submodule("out_proj")._parameters
        self.operator.output_weight, self.operator.bias = projection["weight"], projection["bias"]

    def _give(self, module: nn.Module, relaid: LayoutConverter) -> None:
        own, operator = self.kernel.projections, self.operator
        assert isinstance(module, nn.MultiheadAttention)
        weights, packs = [own.query_weight, own.key_weight, own.value_weight], lambda *parts: (torch.cat(parts),)
        if module.in_proj_weight is None:
            hand_over(APART, self, module)
        else:
            [module.in_proj_weight] = relaid("in_proj_weight", weights, packs)
        assert operator.output_weight is not None
        module.out_proj.weight = operator.output_weight
        if module.in_proj_bias is not None:  # torch has all constants or none: those that are missing stay 0
            biases = [bias for bias in (own.query_bias, own.key_bias, own.value_bias) if bias is not None]
            zeros = Parameter(own.query_weight.new_zeros(3 * own.query_dim), requires_grad=False)
            [module.in_proj_bias] = relaid("in_proj_bias", biases, packs) if biases else [zeros]
            missing = Parameter(own.query_weight.new_zeros(own.query_dim), requires_grad=False)
            module.out_proj.bias = missing if operator.bias is None else operator.bias

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"batch_first={self.batch_first}, dropout={self.dropout}"


def _domains(query: Tensor, u: Tensor, bias: Tensor | None) -> tuple[Domain, Domain]:
    """The domains of the keys, with masks as pair weights, and of the queries."""
    domain = Sequence(u.shape[1], device=u.device)
    domain = domain if bias is None else domain.weigh_pairs(bias)
    same_points = query.shape[1] == domain.num_points
    return domain, domain if same_points else Sequence(query.shape[1], device=query.device)


def _attend(form: DotProductForm, bias: Tensor | None, drop: float, need_weights: bool) -> tuple[Tensor, Tensor | None]:
    """The means of values `(Nq, B, C)` and, if needed, the weights `(B, H, Nq, N)`, after dropout.

    Operations and memory layout are those of torch's layer, so that the same seed drops the same weights, here and in
    later calls.
    """
    query, key, value, scale = form
    shared = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(shared, dim=1) if shared > 1 else part for part in (key, value))
    some = None
    if bias is not None:
        is_kept = bias.dtype == torch.bool
        visible = bias if is_kept else bias > -torch.inf
        some = visible.any(-1, keepdim=True)
        # a fully masked query is unmasked, since its softmax would be NaN; its result is set to 0
        bias = visible | ~some if is_kept else torch.where(some, bias, 0.0).to(query.dtype)
    if not need_weights and key.shape[2] > 0:
        means = scaled_dot_product_attention(query, key, value, bias, drop, scale=scale)
        means, weights = means if some is None else torch.where(some, means, 0.0), None
    else:
        scores = (scale * query) @ key.mT
        if bias is not None:
            scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
        weights = torch.softmax(scores, dim=-1)
        weights = weights if some is None else torch.where(some, weights, 0.0)
        weights = dropout(weights, drop) if drop else weights
        means = weights @ value
    return means.permute(2, 0, 1, 3).flatten(2), weights if need_weights else None


def _kept(name: str, mask: Tensor) -> Tensor:
    """A bool mask inverted from torch's meaning, True = ignore, to True = keep; a float mask as it is."""
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise TypeError(f"AttentionLayer: {name} must be bool, True = ignore, or float; got {mask.dtype}")
    return ~mask if mask.dtype == torch.bool else mask


def _both(one: Tensor, other: Tensor) -> Tensor:
    """Combines two masks."""
    if one.dtype == other.dtype == torch.bool:
        return one & other
    return _added(one) + _added(other)


def _added(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=torch.get_default_dtype(), device=mask.device).masked_fill(~mask, -torch.inf)
