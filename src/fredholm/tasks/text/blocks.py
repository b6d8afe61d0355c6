"""Blocks of a token stream: inputs and their next tokens as targets."""

import math
from typing import final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.mapped import is_mapped, shards_of

IGNORED = -100
"""Target without a loss, which `torch.nn.functional.cross_entropy` ignores."""


@final
class TokenStream:
    """A sequence of tokens; each but the first is a target, predicted from the tokens before it.

    Args:
        tokens: integers `(n + 1,)`, of which n >= 1 are targets; they may be memory-mapped.

    Raises:
        ValueError: fewer than two tokens.
    """

    def __init__(self, tokens: np.ndarray) -> None:
        if tokens.ndim != 1 or len(tokens) < 2:
            raise ValueError(f"a stream of shape {tokens.shape} has nothing to predict; pass at least 2 tokens")
        self._tokens = tokens

    @property
    def tokens(self) -> np.ndarray:
        """All tokens, `(n + 1,)`."""
        return self._tokens

    @property
    def num_targets(self) -> int:
        """Number of targets n."""
        return len(self._tokens) - 1

    def num_blocks(self, size: int) -> int:
        """Returns the number of blocks of `size` targets that cover every target once; the last may be smaller."""
        return math.ceil(self.num_targets / size)

    def shards(self, size: int) -> Tensor | None:
        """Returns the sizes of shards of contiguous blocks on the disk, see `Task.train_shards`; None in memory."""
        whole = self._tokens
        return shards_of(self.num_blocks(size), size * whole.itemsize) if is_mapped(whole) else None

    def blocks(self, indices: Tensor, context: int, offset: int = 0) -> tuple[Tensor, Tensor]:
        """Returns blocks of the stream rolled to start at `offset`, so that every target is in exactly one block.

        At the end of the stream a block continues at its start, which is the start of a document.

        Args:
            indices: int64 `(B,)`, in 0 to `num_blocks(context)` - 1.
            context: tokens per block.
            offset: start of block 0, from 0 to n - 1.

        Returns:
            inputs and targets, int64 `(B, context)`; target i follows input i. After the end of the last block, the
            targets are `IGNORED` and the inputs the stream's first token.
        """
        place = indices[:, None] * context + torch.arange(context)
        at = (place + offset) % self.num_targets
        return self._cut(at, inside=place < self.num_targets, counted=place < self.num_targets)

    def windows(self, indices: Tensor, context: int, stride: int) -> tuple[Tensor, Tensor]:
        """Returns windows that end `stride` targets apart; each scores its last `stride` targets, the rest is context.

        Args:
            indices: int64 `(B,)`, in 0 to `num_blocks(stride)` - 1.
            context: tokens per window.
            stride: targets that a window scores, 1 to `context`; after the first window, each is predicted from at
                least `context - stride` tokens before its input.

        Returns:
            as `blocks`; targets of other windows are `IGNORED`.
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
        """Returns the `count` tokens before each of `windows`, int64 `(B, count)`; -1 before the stream begins."""
        place = self._first(indices, context, stride) - torch.arange(count, 0, -1)
        return torch.where(place >= 0, self._at(place.clamp(min=0)), -1)

    @staticmethod
    def _first(indices: Tensor, context: int, stride: int) -> Tensor:
        """Returns the start positions of windows, `(B, 1)`."""
        return ((indices[:, None] + 1) * stride - context).clamp(min=0)

    def _cut(self, at: Tensor, *, inside: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.where(inside, self._at(at), int(self._tokens[0]))
        return inputs, torch.where(counted, self._at(at + 1), IGNORED)

    def _at(self, places: Tensor) -> Tensor:
        return torch.from_numpy(self._tokens[places.numpy()].astype(np.int64))
