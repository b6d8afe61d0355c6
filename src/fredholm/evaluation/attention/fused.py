"""Softmax attention by PyTorch's fused kernel."""

import contextlib
import dataclasses
from typing import final

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, is_gradtrackingtensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fredholm.domains import Domain
from fredholm.domains.checks import values_are_at_hand, values_can_be_read
from fredholm.evaluation.evaluation import StatefulRoute, cache_refusals
from fredholm.evaluation.integral import Integral
from fredholm.kernels import State
from fredholm.kernels.attention.attention import DotProduct, DotProductForm

REACH = 128.0
"""Largest float32 score for which exp(s - log Σ exp s) has the accuracy of a route, 1e-5."""


@final
@dataclasses.dataclass(frozen=True)
class FusedAttention(StatefulRoute[DotProduct]):
    """For `DotProduct` kernels: `scaled_dot_product_attention`, with masses and pair weights as an additive mask.

    On hardware with a flash kernel memory is O(N·d) where no masses, masks or pair weights are given.

    The backward pass of a flash kernel recomputes a row as exp(s - log Σ exp s), with a float32 error of 6e-8 times the
    size of s, even in a row with all its weight on one point, where the definition is exact. On a CPU a float32 signal
    is therefore computed in float64 where scores may exceed `REACH`, which costs O(N·d) to check. On a GPU, and where
    values cannot be read, as under `torch.compile`, it stays in float32.
    """

    marker = DotProduct
    weighs_pairs = True
    differentiable_twice = False

    def refusals(self, integral: Integral[DotProduct]) -> list[str]:
        """Refuses nothing; see `Route.refusals`."""
        return []

    def compute(self, integral: Integral[DotProduct]) -> Tensor:
        """See `Route.compute`."""
        kernel, domain, query_domain = integral.kernel, integral.domain, integral.query_domain
        form = kernel.dot_product_form(integral.u, domain, integral.query, query_domain)
        if domain.is_plain and (not kernel.is_causal or _counts_indices(domain, query_domain)):
            return _attend(form, None, kernel.is_causal)
        mask, some = _mask(kernel, domain, query_domain, form.query.dtype)
        out = _attend(form, mask, is_causal=False)
        return out if some is None else torch.where(_by_channel(some, out, kernel.num_heads), out, 0.0)

    def run_refusals(self, integral: Integral[DotProduct], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses resets, masks and weights, which a cache of keys does not keep."""
        return cache_refusals(integral, reset)

    def advance(
        self, integral: Integral[DotProduct], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`: the state is every key and value so far."""
        query, key, value, *_ = integral.kernel.continued_form(integral.u, integral.domain, state)
        length, total = query.shape[2], key.shape[2]
        mask = None if length in (1, total) else _past(length, total, key.device)
        form = DotProductForm(query, key, value, scale=1.0)
        return _attend(form, mask, is_causal=length == total), (key, value)


def _is_differentiated_otherwise(tensor: Tensor) -> bool:
    """Whether a tensor has a forward-mode derivative, or several nested derivatives of `torch.func`."""
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    count = 0
    while is_functorch_wrapped_tensor(tensor):
        count += is_gradtrackingtensor(tensor)
        tensor = get_unwrapped(tensor)
    return count > 1


def _past(length: int, total: int, device: torch.device) -> Tensor:
    """Bottom-right causal mask of the last `length` points among `total` keys; torch's own is aligned top-left."""
    return torch.ones(length, total, dtype=torch.bool, device=device).tril(total - length)


def _attend(form: DotProductForm, mask: Tensor | None, is_causal: bool) -> Tensor:
    query, key, value, scale = form
    if key.shape[2] == 0:
        # fused kernels refuse sums over no points, whose value and gradients are 0
        key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
        return (query @ key.mT @ value).transpose(1, 2).flatten(2)
    dtype = query.dtype
    if _is_out_of_reach(query, key, value, scale):
        query, key, value = query.double(), key.double(), value.double()
        mask = mask.double() if mask is not None and mask.dtype != torch.bool else mask
    # fused kernels support only first derivatives, in reverse mode
    is_traced = torch.compiler.is_compiling()
    by_parts = not is_traced and any(map(_is_differentiated_otherwise, (query, key, value)))
    with sdpa_kernel(SDPBackend.MATH) if by_parts else contextlib.nullcontext():
        out = scaled_dot_product_attention(
            query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        ).to(dtype)
    if out.device.type == "cpu":
        # torch's kernel for few points returns 0 for a NaN query
        out = out.add(query.sum(-1, keepdim=True).to(dtype), alpha=0.0)
    return out.transpose(1, 2).flatten(2)


def _is_out_of_reach(query: Tensor, key: Tensor, value: Tensor, scale: float) -> bool:
    """Whether a float32 score on a CPU may exceed `REACH`, by the norms of queries and keys.

    False without a backward pass.
    """
    is_narrow = query.dtype == torch.float32 and query.device.type == "cpu"
    is_recorded = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    if not is_narrow or not is_recorded or query.numel() == 0 or not values_can_be_read(query, key):
        return False
    query, key = (torch.linalg.vector_norm(part.detach(), dim=-1).amax() for part in (query, key))
    return bool(abs(scale) * query * key > REACH)


def _mask(kernel: DotProduct, domain: Domain, query_domain: Domain, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Bool or additive mask of scores, `(B', H', Nq or 1, N)`, and the mask of queries with a visible key, None if all.

    A fully masked query is unmasked, since fused kernels give NaN for it; its result must be set to 0.
    """
    visible = kernel.visible(domain, query_domain)
    some = visible.any(-1, keepdim=True)
    if values_are_at_hand(some) and bool(some.all()):
        some = None
    else:
        visible = visible | ~some
    if domain.is_even:
        return visible, some
    return torch.where(visible, _log_mass(kernel, domain, dtype), -torch.inf), some


def _by_channel(some: Tensor, out: Tensor, num_heads: int) -> Tensor:
    """`(B', H', Nq or 1, 1)`, expanded for a result `(B, Nq, H·d)`."""
    batch, num_queries, channels = out.shape
    by_head = some.expand(batch, num_heads, num_queries, channels // num_heads)
    return by_head.transpose(1, 2).flatten(2)


def _counts_indices(domain: Domain, query_domain: Domain) -> bool:
    """Whether the i-th query sees exactly the points up to the i-th."""
    by_time = domain.times is not None and query_domain.times is not None
    return query_domain.num_points == domain.num_points and not by_time


def _log_mass(kernel: DotProduct, domain: Domain, dtype: torch.dtype) -> Tensor:
    """log(ω_j m_ij), `(B', H', Nq or 1, N)`; 0 in place of log 0, since such pairs are masked."""
    mass = kernel.measure(domain)
    log_mass = torch.where(mass > 0, mass, 1.0).log()
    log_mass = (log_mass if log_mass.ndim == 2 else log_mass[None])[:, None, None]
    if domain.pair_bias is not None and domain.pair_bias.dtype != torch.bool:
        log_mass = log_mass + torch.where(domain.pair_bias > -torch.inf, domain.pair_bias, 0.0)
    return log_mass.to(dtype)
