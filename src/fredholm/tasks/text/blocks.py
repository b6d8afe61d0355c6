"""Blocks of a token stream: inputs and the tokens that follow them."""

import math
from typing import final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.mapped import is_mapped, shards_of

IGNORED = -100
"""A target that no loss counts; what `torch.nn.functional.cross_entropy` leaves out."""


@final
class TokenStream:
    """Tokens in a row, each but the first a target: to be predicted from those before it.

    Args:
        tokens: integers `(n + 1,)`, of which n are targets, n >= 1; they may be mapped from a file.

    Raises:
        ValueError: fewer than two tokens.
    """

    def __init__(self, tokens: np.ndarray) -> None:
        if tokens.ndim != 1 or len(tokens) < 2:
            raise ValueError(f"a stream of shape {tokens.shape} has nothing to predict; pass at least 2 tokens")
        self._tokens = tokens

    @property
    def tokens(self) -> np.ndarray:
        """All, `(n + 1,)`."""
        return self._tokens

    @property
    def num_targets(self) -> int:
        """n."""
        return len(self._tokens) - 1

    def num_blocks(self, size: int) -> int:
        """Blocks of `size` targets that hold every target once; the last may be smaller."""
        return math.ceil(self.num_targets / size)

    def shards(self, size: int) -> Tensor | None:
        """Blocks of `size` targets that lie together on the disk, see `Task.train_shards`; None in memory."""
        whole = self._tokens
        return shards_of(self.num_blocks(size), size * whole.itemsize) if is_mapped(whole) else None

    def blocks(self, indices: Tensor, context: int, offset: int = 0) -> tuple[Tensor, Tensor]:
        """Blocks of the stream rolled round, so that they start at `offset`: every target is in exactly one.

        At the end of the stream a block goes on at its start, which is the start of a document.

        Args:
            indices: int64 `(B,)`, in 0 to `num_blocks(context)` - 1.
            context: tokens a block.
            offset: where block 0 starts, 0 to n - 1.

        Returns:
            inputs and targets, int64 `(B, context)`; target i follows input i. Where the last block has ended, the
            targets are `IGNORED` and the inputs the stream's first token.
        """
        place = indices[:, None] * context + torch.arange(context)
        at = (place + offset) % self.num_targets
        return self._cut(at, inside=place < self.num_targets, counted=place < self.num_targets)

    def windows(self, indices: Tensor, context: int, stride: int) -> tuple[Tensor, Tensor]:
        """Windows that end `stride` targets apart and count those alone, with as much before them as fits.

        Args:
            indices: int64 `(B,)`, in 0 to `num_blocks(stride)` - 1.
            context: tokens a window.
            stride: targets that a window counts, 1 to `context`; from the first window on, each is predicted from at
                least `context - stride` tokens before its input.

        Returns:
            as `blocks`; targets that other windows count are `IGNORED`.
        """
        first = indices[:, None] * stride
        place = self._first(indices, context, stride) + torch.arange(context)
        inside = place < self.num_targets
        return self._cut(
            place.clamp(max=self.num_targets - 1),
            inside=inside,
            counted=inside & (place >= first) & (place < first + stride),
        )

    def before(self, indices: Tensor, context: int, stride: int, count: int) -> Tensor:
        """The `count` tokens before each of `windows`, int64 `(B, count)`; -1 stands before the stream begins."""
        place = self._first(indices, context, stride) - torch.arange(count, 0, -1)
        return torch.where(place >= 0, self._at(place.clamp(min=0)), -1)

    @staticmethod
    def _first(indices: Tensor, context: int, stride: int) -> Tensor:
        """Where windows begin, `(B, 1)`."""
        return ((indices[:, None] + 1) * stride - context).clamp(min=0)

    def _cut(self, at: Tensor, *, inside: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.where(inside, self._at(at), int(self._tokens[0]))
        return inputs, torch.where(counted, self._at(at + 1), IGNORED)

    def _at(self, places: Tensor) -> Tensor:
        return torch.from_numpy(self._tokens[places.numpy()].astype(np.int64))
