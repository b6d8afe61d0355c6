"""Semiseparable kernels: what every recurrence is, written as an integral.

Legend
    h_t = A_t h_{t-1} + B_t ũ_t,   y_t = C_t h_t + D_t ũ_t        n state variables, ũ = u, or [u; 1] (affine kernels)

    κ(t, s) = 1[s ≤ t] C_t (∏_{s<τ≤t} A_τ) B_s + 1[s = t] D_t,    with h_{-1} = 0

Source: ITNet (arXiv 2606.19538), eq. 109 and E.4-E.8; the sum runs over samples, so these kernels count points.
"""

import abc
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels.kernel import Stateful


class StateSpace(NamedTuple):
    """The matrices of a recurrence at every point, real or complex; the kernel is the real part. B' is 1 or B."""

    transition: Tensor  # A: (B', T, n, n), or (B', T, n) where diagonal
    input: Tensor  # B: (B', T, n, d_in), or d_in + 1
    output: Tensor  # C: (B', T, d_out, n)
    feedthrough: Tensor | None = None  # D: (B', T, d_out, d_in), or d_in + 1


class SemiSeparable(Stateful):
    """Marker: a recurrence with a linear, perhaps time-varying, transition of the state."""

    is_causal = True
    reads_query = False
    counts_points = True
    is_pairwise = False

    @abc.abstractmethod
    def state_space(self, u: Tensor, domain: Domain) -> StateSpace:
        """The recurrence on this signal, `(B, T, d_in)`; what it says at points that do not exist is not read."""

    @final
    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, T, T, d_out, d_in)`, by the products of transitions; see `Kernel.matrix`.

        Raises:
            ValueError: for queries that are not the points of u.
        """
        check_ordered(type(self).__name__, domain, query_domain)
        system = self.state_space(u, domain)
        batch, length = u.shape[:2]
        transition, read_in, read_out = (
            part.expand(batch, *part.shape[1:]) for part in (system.transition, system.input, system.output)
        )
        dense = torch.diag_embed(transition) if transition.ndim == 3 else transition
        if domain.mask is not None:
            identity = torch.eye(dense.shape[-1], dtype=dense.dtype, device=dense.device)
            dense = torch.where(domain.mask[..., None, None], dense, identity)
        carried = read_in.new_zeros(batch, 0, *read_in.shape[2:])  # (B, t, n, d_in): what is left of each B_s
        rows = []
        for t in range(length):
            carried = torch.cat([dense[:, t, None] @ carried, read_in[:, t, None]], dim=1)
            row = read_out[:, t, None] @ carried
            rows.append(torch.nn.functional.pad(row, (0, 0, 0, 0, 0, length - 1 - t)))
        kappa = torch.stack(rows, dim=1) if rows else read_in.new_zeros(batch, 0, 0, self.out_dim, read_in.shape[-1])
        if kappa.is_complex():
            kappa = kappa.real
        if system.feedthrough is not None:
            here = torch.eye(length, dtype=kappa.dtype, device=kappa.device)[..., None, None]
            kappa = kappa + here * system.feedthrough[:, :, None]
        return kappa


def check_ordered(name: str, domain: Domain, query_domain: Domain | None) -> None:
    """Raises ValueError, in the name of a recurrent kernel, unless the past of each query is a run of points of u."""
    if domain.pos_dim != 1:
        raise ValueError(
            f"{name} integrates over the past, which {domain!r} does not order; give a Sequence, or use a kernel "
            "without a direction (MLP, Attention, Convolution)"
        )
    if query_domain is not None and not query_domain.has_points_of(domain):
        raise ValueError(
            f"{name} gives its result at the points of the signal; got other queries, {query_domain!r}; "
            "leave query_domain out, and run over the reversed signal as well for what comes after a point"
        )
