"""Causal series of hops that split over the two points of a pair: chunk by chunk, a triangular solve in each.

Legend (a chunk has L points; mass ω; features φ, ψ; norms c; values v)
    G      lower triangle of φ ψᵀ, its diagonal included, (L, L)          s_t    γ / c_t
    S      Σ ω ψ ⊗ (v + y) over the points before a chunk, (r, d)         y      the integral

    y = s G Ω (v + y) + s φ S   within a chunk, so with T = I - s G Ω:   y = T⁻¹ s G Ω v + (T⁻¹ s φ) S = y⁰ + P S,
    S after it  =  S + Σ ω ψ ⊗ (v + y)  =  S + (ψᵀ Ω P) S + ψᵀ Ω (v + y⁰)

y⁰ and P of all chunks are computed at once; only S is carried from chunk to chunk, by an operator opaque to the
compiler:

    S_{c+1} = S_c + E_c S_c + F_c;   from the gradients Ṡ of all states, backwards: g_c = Ṡ_c + g_{c+1} + E_cᵀ g_{c+1}
"""

import dataclasses
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from fredholm._precision import without_autocast
from fredholm.domains import is_ordered_by_index
from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.evaluation import Queries, StatefulRoute
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.running_sums import reset_refusals
from fredholm.kernels import RowNorm, State
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.kernel import divided, stateful
from fredholm.kernels.neumann.factorised_infinite_attention import FactorisedNeumann
from fredholm.kernels.neumann.infinite_attention import block_norm


@final
@dataclasses.dataclass(frozen=True)
class NeumannScan(StatefulRoute[FactorisedNeumann]):
    """For causal `FactorisedNeumann` kernels: O(N) time and memory, one triangular solve per chunk of points.

    Chunks are computed in float64 for every signal dtype: rows are divided by norms, and tiny scores and norms may be
    out of the range of float32.

    Args:
        chunk: number of points that are treated pair by pair at a time.
    """

    marker = FactorisedNeumann
    needs_fixed_sizes = True
    queries = Queries.OWN
    chunk: int = 64

    def refusals(self, integral: Integral[FactorisedNeumann]) -> list[str]:
        """Refuses kernels that look ahead, other queries, and points that share a time."""
        reasons = [] if integral.kernel.is_causal else ["the kernel looks ahead (is_causal is off)"]
        if not is_ordered_by_index(integral.domain):
            reasons.append("points that share a time see each other")
        return reasons

    def compute(self, integral: Integral[FactorisedNeumann]) -> Tensor:
        """See `Route.compute`."""
        return self.advance(integral)[0]

    def run_refusals(
        self, integral: Integral[FactorisedNeumann], state: State | None, reset: Tensor | None
    ) -> list[str]:
        """Refuses a reset, which sums by chunks do not support."""
        return reset_refusals(reset)

    def advance(
        self, integral: Integral[FactorisedNeumann], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        form = kernel.hop_form(u, None)
        mass = torch.atleast_2d(kernel.measure(domain)).double()[:, None, :, None]
        state = stateful(kernel).initial_state(u.shape[0]) if state is None else state
        with without_autocast(u):
            key = form.key if domain.mask is None and domain.uniform_parts else torch.where(mass > 0, form.key, 0.0)
            given = (form.query, key, each_query_head(form.value, kernel.num_heads), mass)
            parts = _Chunk(*(_by_chunks(part.double(), self.chunk) for part in given))
            out, end = _integral(kernel, parts, tuple(part.double() for part in state))
            state = tuple(part.to(own.dtype) for part, own in zip(end, state, strict=True))
        out = out.flatten(2, 3)[:, :, : u.shape[1]]
        return out.transpose(1, 2).flatten(2).to(form.value.dtype), state


class _Chunk(NamedTuple):
    """φ `(B, H, n, L, r)`, ψ `(B, H', n, L, r)`, v `(B, H, n, L, d)` and ω `(B', 1, n, L, 1)` of n chunks."""

    phi: Tensor
    psi: Tensor
    value: Tensor
    mass: Tensor


def _by_chunks(part: Tensor, most: int) -> Tensor:
    """`(B, H, N, …)` in chunks of `most` points or slightly fewer, the last one padded with zeros."""
    length = part.shape[2]
    chunks = max(1, -(-length // most))
    size = max(1, -(-length // chunks))
    # contiguous, as in `causal_sums`
    return pad(part.contiguous(), (0, 0, 0, chunks * size - length)).unflatten(2, (chunks, size))


def _integral(kernel: FactorisedNeumann, given: _Chunk, state: State) -> tuple[Tensor, State]:
    """y `(B, H, n, L, d)`, and the state after the last point; see the legend."""
    heads, (past, *sums) = kernel.num_heads, state
    phi_size, psi_size = (size.to(past.dtype) for size in _sizes(given, sums))
    own = given._replace(phi=given.phi / phi_size, psi=given.psi / psi_size)
    weighed = each_query_head(own.psi * own.mass, heads)
    pairs = (own.phi @ weighed.mT).tril()  # G Ω
    norm, sums = (_row_norms if isinstance(kernel.norm, RowNorm) else _running_norms)(
        own, pairs, sums, phi_size.double(), psi_size.double()
    )
    # rows are divided by their norms, which cancels in a hop: squares of tiny norms would underflow in the gradient of
    # s
    size = torch.where(norm > 0, norm, 1.0).detach()
    phi, pairs, norm = own.phi / size[..., None], pairs / size[..., None], norm / size
    assert kernel.discount is not None
    share = divided(kernel.discount().to(norm.dtype)[:, None, None], norm)[..., None]  # s
    hop = share * pairs
    identity = torch.eye(hop.shape[-1], dtype=hop.dtype, device=hop.device)
    known = torch.cat([share * phi, hop @ own.value], dim=-1)
    reads, alone = torch.linalg.solve_triangular(identity - hop, known, upper=False).split(
        (own.phi.shape[-1], own.value.shape[-1]), dim=-1
    )  # P and y⁰
    psi_size = each_query_head(psi_size[:, :, 0], heads)
    chunks = Chunks(
        (weighed.mT @ reads).flatten(0, 1),
        (weighed.mT @ (own.value + alone)).flatten(0, 1),
        (past / psi_size).flatten(0, 1),
    )
    states = chunk_states(chunks).states.unflatten(0, past.shape[:2])
    return alone + reads @ states[:, :, :-1], (states[:, :, -1] * psi_size, *sums)


def _sizes(given: _Chunk, sums: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Scales of φ `(B, H, 1, 1, 1)` and ψ `(B, H', 1, 1, 1)`, including the past: they cancel in a hop, and keep
    squares from overflow and underflow."""
    phi, psi = (part.detach().amax((-3, -2, -1)).double() for part in (given.phi, given.psi))
    before = sums[0].detach()
    psi = torch.maximum(psi, before.amax(-1) if before.ndim == 3 else before.diagonal(dim1=-2, dim2=-1).amax(-1).sqrt())
    psi = torch.where(psi > 0, psi, 1.0)
    if before.ndim > 3:
        phi = torch.maximum(phi, sums[1].detach().sqrt() / each_query_head(psi, phi.shape[1]))
    phi = torch.where(phi > 0, phi, 1.0)
    return phi[..., None, None, None], psi[..., None, None, None]


def _row_norms(
    own: _Chunk, pairs: Tensor, sums: list[Tensor], phi_size: Tensor, psi_size: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """c_t = φ_t·Σ_{j ≤ t} ω_j ψ_j `(B, H, n, L)`, and Σ ω ψ at the end; the state has units of its own."""
    size = psi_size[:, :, 0, 0]
    before, end = _running((own.psi * own.mass).sum(3), sums[0] / size)
    earlier = each_query_head(before, own.phi.shape[1]).to(pairs.dtype)
    return (own.phi @ earlier[..., None])[..., 0] + pairs.sum(-1), [end * size]


def _running_norms(
    own: _Chunk, pairs: Tensor, sums: list[Tensor], phi_size: Tensor, psi_size: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """c_t² = Σ_{i ≤ t} ω_i Σ_{j ≤ i} ω_j (φ_i·ψ_j)² as c `(B, H, n, L)`, and Σ ω ψ ⊗ ψ and c² at the end."""
    heads, size = own.phi.shape[1], psi_size[:, :, 0]
    whole = (phi_size * each_query_head(psi_size, heads))[:, :, 0, 0, 0].square()
    before, end = _running((own.psi * own.mass).mT @ own.psi, sums[0] / size.square())
    earlier = each_query_head(before, heads).to(pairs.dtype)
    scores = (own.phi @ each_query_head(own.psi, heads).mT).tril()
    rows = ((own.phi @ earlier) * own.phi).sum(-1) + (scores * pairs).sum(-1)
    squares = (rows * own.mass[..., 0]).double().flatten(2).cumsum(-1) + (sums[1] / whole)[..., None]
    return block_norm(squares).to(pairs.dtype).unflatten(2, rows.shape[2:]), [
        end * size.square(),
        squares[..., -1] * whole,
    ]


def _running(parts: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over all chunks before each one, `(B, H', n, …)`, and over all chunks, in float64."""
    after = parts.double().cumsum(2) + start[:, :, None]
    return torch.cat([start[:, :, None], after[:, :, :-1]], dim=2), after[:, :, -1]


class Chunks(NamedTuple):
    """Inputs of the recurrence of states."""

    transition: Tensor  # E: (M, n, r, r)
    driven: Tensor  # F: (M, n, r, d)
    start: Tensor  # S before the first chunk: (M, r, d)


class ChunkStates(NamedTuple):
    """The states."""

    states: Tensor  # S before every chunk and after the last: (M, n + 1, r, d)


def _like(chunks: Chunks) -> ChunkStates:
    count, length, *rest = chunks.driven.shape
    return ChunkStates(chunks.driven.new_empty(count, length + 1, *rest))


def _forward(chunks: Chunks) -> ChunkStates:
    (states,) = _like(chunks)
    states[:, 0] = chunks.start
    for c, (e, f) in enumerate(zip(chunks.transition.unbind(1), chunks.driven.unbind(1), strict=True)):
        torch.baddbmm(states[:, c] + f, e, states[:, c], out=states[:, c + 1])
    return ChunkStates(states)


def _plain(chunks: Chunks) -> ChunkStates:
    states = [chunks.start]
    for e, f in zip(chunks.transition.unbind(1), chunks.driven.unbind(1), strict=True):
        states.append(states[-1] + e @ states[-1] + f)
    return ChunkStates(torch.stack(states, dim=1))


def _backward(chunks: Chunks, outputs: ChunkStates, grads: ChunkStates, wanted: frozenset[str]) -> dict[str, Tensor]:
    total = _adjoint(chunks.transition, grads.states)
    found = {"driven": total[:, 1:], "start": total[:, 0]}
    if "transition" in wanted:
        found["transition"] = total[:, 1:] @ outputs.states[:, :-1].mT
    return found


def _adjoint(transition: Tensor, grad: Tensor) -> Tensor:
    """g, in differentiable operations."""
    *received, last = grad.unbind(1)
    found = [last]
    for e, given in zip(reversed(transition.unbind(1)), reversed(received), strict=True):
        found.append(torch.baddbmm(given + found[-1], e.mT, found[-1]))
    return torch.stack(found[::-1], dim=1)


chunk_states = Operator(
    "chunk_states",
    Chunks,
    ChunkStates,
    _forward,
    _like,
    _backward,
    keeps=("states",),
    forgets=("driven", "start"),
    plain=_plain,
    plain_backward=_backward,
)
