"""Integrals of `Neumann` kernels through the operator `hops`: what all their routes share."""

import torch
from torch import Tensor

from fredholm.evaluation.evaluation import stateful
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.neumann.inputs import ACTIVATIONS, NORMS, HopInputs, HopPlan, continued, gathered
from fredholm.evaluation.neumann.op import hops
from fredholm.kernels import Neumann, State
from fredholm.kernels.heads import each_query_head


def common_refusals(integral: Integral[Neumann]) -> list[str]:
    """What every tiled route says against a kernel and where it is asked."""
    kernel = integral.kernel
    reasons = kernel.elsewhere(integral.domain, None if integral.at_points else integral.query_domain)
    if type(kernel.norm) not in NORMS:
        reasons.append(f"tiles do not know the norm {type(kernel.norm).__name__}")
    return reasons


def plan_of(kernel: Neumann, solver: int = 0, tolerance: float = 0.0, limit: int = 0, restart: int = 0) -> HopPlan:
    """The kernel's activation and norm, and how to solve."""
    return HopPlan(
        ACTIVATIONS.index(kernel.activation), NORMS.index(type(kernel.norm)), solver, tolerance, limit, restart
    )


def integrate_hops(integral: Integral[Neumann], plan: HopPlan, elements: int | None) -> Tensor:
    """The integral, `(B, Nq, H·d)`."""
    kernel = integral.kernel
    form = kernel.hop_form(integral.u, None if integral.own_queries else integral.query)
    out, _ = _computed(gathered(kernel, form, integral.domain, integral.query_domain), plan, elements)
    return out.to(form.value.dtype).transpose(1, 2).flatten(2)


def continue_hops(
    integral: Integral[Neumann], state: State | None, plan: HopPlan, elements: int | None
) -> tuple[Tensor, State]:
    """The integral along a sequence that goes on from a state, as in `StatefulRoute.advance`."""
    kernel, u = integral.kernel, integral.u
    state = stateful(kernel).initial_state(len(u)) if state is None else state
    if u.shape[1] == 0:
        return u.new_zeros(len(u), 0, kernel.out_dim), state
    form = kernel.hop_form(u, None)
    keys = torch.cat([state[0].to(form.key.dtype), form.key], dim=2)
    value = form.value.to(state[1].dtype)
    if kernel.discount is not None:
        value = each_query_head(value, kernel.num_heads)
    inputs, unit = continued(kernel, form, keys, torch.cat([state[1], value], dim=2), state[2])
    out, norm = _computed(inputs, plan, elements)
    carried = value if kernel.discount is None else value + out
    state = keys, torch.cat([state[1], carried], dim=2), (norm[..., -1] * unit).to(state[2].dtype)
    return out.to(form.value.dtype).transpose(1, 2).flatten(2), state


def _computed(inputs: HopInputs, plan: HopPlan, elements: int | None) -> tuple[Tensor, Tensor]:
    """The integral `(B, H, Nq, c)` and the norms `(B, H, Nq)`."""
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    return hops(list(inputs), plan.encoded(), elements, keep)[:2]
