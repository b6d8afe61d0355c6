"""The Mamba block: a selective state space behind a short convolution, and a gate.

    [v, z] = W_in u,   v ← SiLU(short convolution of v),   out = W_out (S[v] ⊙ SiLU(z))

S is the integral operator with the kernel `SelectiveStateSpace`.

Source: Gu and Dao, "Mamba" (arXiv 2312.00752), Figure 3.
"""

import math
from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, refuse_idle
from fredholm.blocks.short_convolution import ShortConvolution
from fredholm.domains import Domain, Sequence
from fredholm.kernels import SelectiveStateSpace, State
from fredholm.operators import IntegralOperator


@final
class MambaBlock(nn.Module):
    """One Mamba layer, without the norm and the residual round it.

    Args:
        embed_dim: channels of the signal, in and out.
        expand: inner channels as a multiple of `embed_dim`.
        state_dim: state variables per inner channel; refused with a kernel, which has its own.
        conv_width: taps of the short convolution.
        kernel: the selective kernel, for settings beyond these; None:
            `SelectiveStateSpace(expand * embed_dim, state_dim, rank=ceil(embed_dim / 16))`, the rank as in the paper,
            of the block's own channels.

    The state is (the last conv_width - 1 inner points, `(B, conv_width - 1, inner)`; the kernel's h, `(B, n, inner)`).

    Raises:
        ValueError: on sizes below 1, or a kernel with other channels.
    """

    def __init__(
        self,
        embed_dim: int,
        expand: int = 2,
        state_dim: int = 16,
        conv_width: int = 4,
        *,
        kernel: SelectiveStateSpace | None = None,
    ) -> None:
        super().__init__()
        for what, size in (("embed_dim", embed_dim), ("expand", expand)):
            check_count("MambaBlock", what, size)
        inner = expand * embed_dim
        if kernel is None:
            kernel = SelectiveStateSpace(inner, state_dim, rank=math.ceil(embed_dim / 16))
        else:
            refuse_idle("MambaBlock", MambaBlock, "a kernel of its own", "give it to the kernel", state_dim=state_dim)
        if kernel.in_dim != inner:
            raise ValueError(
                f"MambaBlock: the kernel has {kernel.in_dim} channels, the block expand * embed_dim = {inner}"
            )
        self.embed_dim = embed_dim
        self.in_projection = nn.Linear(embed_dim, 2 * inner, bias=False)
        self.convolution = ShortConvolution(inner, conv_width)
        self.operator = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
        self.out_projection = nn.Linear(inner, embed_dim, bias=False)

    def forward(self, u: Tensor, domain: Domain | None = None, key_padding_mask: Tensor | None = None) -> Tensor:
        """Applies the block to whole sequences.

        Args:
            u: `(B, N, embed_dim)`.
            domain: N points in order; None: `Sequence(N)`.
            key_padding_mask: `(N,)` or `(B, N)` bool, True = keep, on top of the domain's own mask.

        Returns:
            `(B, N, embed_dim)`, 0 at points that do not exist.

        Raises:
            ValueError: on another shape, or a domain of which other processes hold a part.
        """
        self._check(u, 3)
        if domain is not None and domain.whole is not None:
            raise ValueError(
                "MambaBlock: its short convolution reads the points before, and other processes hold some of "
                f"{domain!r}; give the whole sequence"
            )
        domain = (Sequence(u.shape[1], device=u.device) if domain is None else domain).restrict(key_padding_mask)
        v, z = self._enter(u, domain)
        v, _ = self.convolution(v, self.convolution.initial_buffer(u.shape[0]), domain.mask)
        return self._leave(self.operator(nn.functional.silu(v), domain), z)

    def initial_state(self, batch_size: int) -> State:
        """The state before the first point."""
        return self.convolution.initial_buffer(batch_size), *self.operator.initial_state(batch_size)

    def step(self, u: Tensor, state: State) -> tuple[Tensor, State]:
        """Advances by one point; the results equal those of `forward` on the whole sequence.

        Args:
            u: the next point, `(B, embed_dim)`.
            state: the state that `initial_state` or the previous step returned.

        Returns:
            `(B, embed_dim)`, and the new state.
        """
        self._check(u, 2)
        self._check_state(state, u.shape[0])
        v, z = self.in_projection(u[:, None]).chunk(2, dim=-1)
        v, buffer = self.convolution(v, state[0])
        v, following = self.operator.step(nn.functional.silu(v)[:, 0], state[1:])
        return self._leave(v, z[:, 0]), (buffer, *following)

    def scan(
        self, u: Tensor, domain: Domain | None = None, *, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Processes a sequence, or its next chunk, from a state to a state; gradients flow through both.

        Args:
            u: `(B, N, embed_dim)`.
            domain: as in `forward`; a point that does not exist leaves the state as it is.
            state: the state at the end of the previous chunk; None: `initial_state`.
            reset: `(B, N)` bool, True = the state is cleared before this point.

        Returns:
            `(B, N, embed_dim)`, and the state at the end.
        """
        self._check(u, 3)
        domain = Sequence(u.shape[1], device=u.device) if domain is None else domain
        state = self.initial_state(u.shape[0]) if state is None else state
        self._check_state(state, u.shape[0])
        if reset is not None and (reset.shape != u.shape[:2] or reset.dtype != torch.bool):
            raise ValueError(
                f"MambaBlock: reset must be {tuple(u.shape[:2])} bool, True = start anew here; "
                f"got {tuple(reset.shape)} {reset.dtype}"
            )
        v, z = self._enter(u, domain)
        v, buffer = self.convolution(v, state[0], domain.mask, reset)
        v, following = self.operator.scan(nn.functional.silu(v), domain, state=state[1:], reset=reset)
        return self._leave(v, z), (buffer, *following)

    def _enter(self, u: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
        if u.shape[1] != domain.num_points or domain.batch_size not in (None, u.shape[0]):
            raise ValueError(f"MambaBlock: the domain {domain!r} does not fit u of shape {tuple(u.shape)}")
        u = u if domain.mask is None else torch.where(domain.mask.to(u.device)[..., None], u, 0.0)
        v, z = self.in_projection(u).chunk(2, dim=-1)
        return v, z

    def _leave(self, v: Tensor, z: Tensor) -> Tensor:
        return self.out_projection(v * nn.functional.silu(z))

    def _check(self, u: Tensor, ndim: int) -> None:
        if not isinstance(u, Tensor) or u.ndim != ndim or u.shape[-1] != self.embed_dim:
            expected = "(batch, points, channels)" if ndim == 3 else "(batch, channels), one point"
            raise ValueError(
                f"MambaBlock: u must be {expected} with {self.embed_dim} channels; "
                f"got {tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__}"
            )

    def _check_state(self, state: State, batch_size: int) -> None:
        expected = self.initial_state(batch_size)
        if not isinstance(state, tuple) or [tuple(part.shape) for part in state] != [
            tuple(part.shape) for part in expected
        ]:
            raise ValueError(
                f"MambaBlock: the state must hold tensors of shapes {[tuple(part.shape) for part in expected]}, as "
                f"initial_state({batch_size}) gives; got "
                f"{[tuple(part.shape) for part in state] if isinstance(state, tuple) else type(state).__name__}"
            )
