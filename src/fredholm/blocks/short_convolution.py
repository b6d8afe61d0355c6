"""A short causal depthwise convolution, with the buffer that carries it from chunk to chunk."""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count


@final
class ShortConvolution(nn.Module):
    """v_t = b + Σ_k w_k ⊙ u_{t-k}, k = 0 … width - 1: one filter per channel over the present and the last points.

    Points that do not exist are skipped: u_{t-k} is the k-th point before t among those that exist, and 0 where
    there is none.

    Args:
        channels: of the signal.
        width: taps, >= 1.

    Attributes:
        weight: `(channels, width)`, the tap of the present point last.
        bias: `(channels,)`.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        for what, size in (("channels", channels), ("width", width)):
            check_count("ShortConvolution", what, size)
        self.channels, self.width = channels, width
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(channels, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))

    def initial_buffer(self, batch_size: int) -> Tensor:
        """The last `width - 1` points before the first, all 0: `(B, width - 1, channels)`."""
        return self.weight.new_zeros(batch_size, self.width - 1, self.channels)

    def forward(
        self, u: Tensor, buffer: Tensor, mask: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Filters a sequence, or the next chunk of one.

        Args:
            u: `(B, T, channels)`.
            buffer: the points before it, as returned by `initial_buffer` or for the previous chunk.
            mask: `(T,)` or `(B, T)` bool, True = this point exists.
            reset: `(B, T)` bool, True = the points before this one are forgotten.

        Returns:
            `(B, T, channels)`, with arbitrary values at points that do not exist, and the buffer after it.
        """
        self._check(u, buffer, mask, reset)
        known = torch.cat([buffer.to(u.dtype), u], dim=1)
        if mask is None and reset is None and u.shape[1]:
            out = nn.functional.conv1d(known.mT, self.weight[:, None], self.bias, groups=self.channels).mT
            return out, known[:, known.shape[1] - self.width + 1 :]
        return self._passing_over(known, mask, reset)

    def _check(self, u: Tensor, buffer: Tensor, mask: Tensor | None, reset: Tensor | None) -> None:
        expected = (u.shape[0], self.width - 1, self.channels)
        if u.ndim != 3 or u.shape[-1] != self.channels:
            raise ValueError(f"ShortConvolution: u must be (batch, points, {self.channels}); got {tuple(u.shape)}")
        if not isinstance(buffer, Tensor) or tuple(buffer.shape) != expected:
            got = tuple(buffer.shape) if isinstance(buffer, Tensor) else type(buffer).__name__
            raise ValueError(
                f"ShortConvolution: buffer must be {expected}, as initial_buffer({u.shape[0]}) gives; got {got}"
            )
        for name, part in (("mask", mask), ("reset", reset)):
            if part is None:
                continue
            # a mask may be shared by the batch
            wanted = u.shape[1:2] if name == "mask" and part.ndim == 1 else u.shape[:2]
            if part.dtype != torch.bool or part.shape != wanted:
                raise ValueError(
                    f"ShortConvolution: {name} must be bool {tuple(wanted)}; got {tuple(part.shape)} {part.dtype}"
                )

    def _passing_over(self, known: Tensor, mask: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """Filters `known`, the buffer and the signal, after compacting the points that exist."""
        batch, before = known.shape[0], self.width - 1
        length = known.shape[1] - before
        exists = torch.ones(batch, length, dtype=torch.bool, device=known.device) if mask is None else mask
        exists = nn.functional.pad(exists.expand(batch, length), (before, 0), value=True)
        era = torch.zeros_like(exists, dtype=torch.long)
        if reset is not None:
            era = nn.functional.pad(reset.long(), (before, 0)).cumsum(1)
        order = torch.argsort(~exists, dim=1, stable=True)
        points, eras = known.gather(1, order[..., None].expand_as(known)), era.gather(1, order)
        rank = exists.cumsum(1) - 1  # index of the last existing point after compaction

        def back(k: int, rank: Tensor, era: Tensor) -> Tensor:
            at = (rank - k).clamp_min(0)
            found = points.gather(1, at[..., None].expand(-1, -1, self.channels))
            return torch.where((eras.gather(1, at) == era)[..., None], found, 0.0)

        out = self.bias
        for k in range(self.width):
            out = out + self.weight[:, before - k] * back(k, rank[:, before:], era[:, before:])
        if before == 0:
            return out, known[:, :0]
        last = [back(k, rank[:, -1:], era[:, -1:]) for k in reversed(range(before))]
        return out, torch.cat(last, dim=1)
