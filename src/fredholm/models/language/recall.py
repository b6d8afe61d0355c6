"""Recall: n-gram counts of the text being read."""

from itertools import pairwise
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.domains.checks import values_can_be_read
from fredholm.models.language.jelinek_mercer import NUM_BINS, bins, interpolation

NOTHING = -1
"""Filler before the first token of a text."""
LONGEST = 12
"""Length of the longest contexts, in tokens."""
_PLACES, _WINDOW = 1 << 16, 128
"""Most positions of a text by which weights are chosen, and length of the windows that they form."""


@final
class Recall(nn.Module):
    """Interpolates given probabilities of the next token with n-gram counts of the text being read.

        g_k(w | x) = λ_k(x) g_{k-1}(w | x) + (1 - λ_k(x)) n_k(w | x) / n_k(x),        k = 1, ..., 12

    with g_0 the given probabilities, n_k(w | x) the number of times that w follows an earlier occurrence of the last k
    tokens at x, which ends at one of the `reach` tokens before x, and n_k(x) the sum over w; λ_k(x) is 1 where n_k(x)
    is 0. So g_12 is a share of g_0 and a sum over the preceding tokens, Σ_y κ(x, m(x, y)) δ(w, t_{y+1}), with a kernel
    that depends on the number m(x, y) of equal tokens up to x and y.

    λ depends on k, on the count of the last k tokens, and on the number of distinct tokens after them.

    A text may repeat itself less than the text that λ was fitted to, so the result is r g_12 + (1 - r) g_0.

    Args:
        vocab_size: number of tokens V.
        reach: number of preceding tokens that are searched.

    Attributes:
        kept: float64 `(12, 60)`, λ of each length and bin; 1 before a fit.
        share: r, a float32 scalar in [0, 1]; initially 1.
    """

    kept: Tensor
    share: Tensor

    def __init__(self, vocab_size: int, reach: int) -> None:
        super().__init__()
        self.vocab_size, self.reach = vocab_size, reach
        self.register_buffer("kept", torch.ones(LONGEST, NUM_BINS, dtype=torch.float64))
        self.register_buffer("share", torch.ones(()))

    @property
    def length(self) -> int:
        """Number of preceding tokens that the result depends on."""
        return self.reach + LONGEST - 1

    @torch.no_grad()
    def fit(self, tokens: Tensor, given: Tensor, stretch: Tensor) -> None:
        """Chooses λ by maximum likelihood of the stretches of a text, each read from its beginning.

        Args:
            tokens: int64 `(N,)`.
            given: `(N - 1,)`, given probability of each token but the first, predicted from the other stretches.
            stretch: int64 `(N - 1,)`, stretch of each of these tokens, ascending from 0.
        """
        ends = stretch.bincount().cumsum(0).tolist()
        windows = [
            (begin, start, min(start + _WINDOW, end))
            for begin, end in pairwise((0, *ends))
            for start in range(begin, end, _WINDOW)
        ]
        rows = list[tuple[Tensor, Tensor, Tensor, Tensor]]()
        for begin, start, end in windows[:: max(1, -(-len(given) // _PLACES))]:
            text = tokens[max(begin, start - self.length) : end]
            seen = _Seen.of(text, end - start, self.vocab_size, self.reach)
            follows = seen.following == tokens[start + 1 : end + 1][seen.place]
            rows.append((seen.times, seen.kinds, seen.cumulative_counts(follows), given[start:end]))
        times, kinds, together, p = (torch.cat(each) for each in zip(*rows, strict=True))
        for k in range(LONGEST):
            is_known = times[:, k] > 0
            of_place = bins(times[:, k], kinds[:, k])
            share = together[:, k] / times[:, k].clamp(min=1)
            weight = interpolation(of_place[is_known], p[is_known], share[is_known])
            self.kept[k] = weight
            p = torch.where(is_known, weight[of_place] * p + (1 - weight[of_place]) * share, p)

    def forward(self, given: Tensor, text: Tensor, share: float | None = None) -> Tensor:
        """Returns the interpolated probabilities `(B, T, V)`.

        Args:
            given: `(B, T, V)`, given probabilities after each of the last T tokens of a text.
            text: int64 `(B, P + T)`, padded with NOTHING before a shorter text.
            share: r; None: the module's own.
        """
        if not values_can_be_read(text):
            return given.lerp(self._in_a_graph(given, text), self.share if share is None else share)
        share = float(self.share) if share is None else share
        if share == 0.0 or not len(given):
            return given
        found = torch.stack([self._of_one(*row) for row in zip(given, text, strict=True)])
        return found if share == 1.0 else given.lerp(found, share)

    def _of_one(self, given: Tensor, text: Tensor) -> Tensor:
        seen = _Seen.of(text[-len(given) - self.length :], len(given), self.vocab_size, self.reach)
        left, weight = self._weights(seen.times, seen.kinds)
        p = given * left[:, None]  # in float64, so that many small weights sum to 1
        added = weight[seen.place, seen.agreed]
        p = p.view(-1).index_add_(0, seen.place * self.vocab_size + seen.following, added).view_as(p)
        return p.to(given.dtype)

    def _weights(self, times: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        """Weight of the given probabilities `(...)`, and κ by the number of equal tokens, 0 to 12, `(..., 13)`."""
        of_length = torch.arange(LONGEST, device=times.device)
        kept = torch.where(times > 0, self.kept.double()[of_length, bins(times, kinds)], 1.0)
        left = [torch.ones_like(times[..., 0])]  # weight left to shorter lengths
        for k in reversed(range(LONGEST)):
            left.append(left[-1] * kept[..., k])
        after = torch.stack(left[LONGEST - 1 :: -1], -1)
        return left[LONGEST], F.pad((after * (1 - kept) / times.clamp(min=1)).cumsum(-1), (1, 0))

    def _in_a_graph(self, given: Tensor, text: Tensor) -> Tensor:
        """Computes `forward` without shapes that depend on values."""
        count, size = given.shape[1], text.shape[1]
        padded = F.pad(text, (LONGEST, 1), value=NOTHING)
        at = torch.arange(size, device=text.device)
        ago = at[size - count :, None] - at
        still = (ago >= 1) & (ago <= self.reach)
        agreed = torch.zeros(text.shape[0], count, size, dtype=torch.int64, device=text.device)
        for k in range(LONGEST):
            there = padded[:, LONGEST - k : LONGEST - k + size]
            still = still & (there[:, size - count :, None] == there[:, None]) & (there >= 0)[:, None]
            agreed = agreed + still
        tokens = torch.arange(self.vocab_size, device=text.device)
        following = (padded[:, LONGEST + 1 :, None] == tokens).to(given.dtype)
        longer = [agreed >= k for k in range(1, LONGEST + 1)]
        times = torch.stack([each.sum(-1) for each in longer], -1).double()
        kinds = torch.stack([((each.to(given.dtype) @ following) > 0).sum(-1) for each in longer], -1)
        left, weight = self._weights(times, kinds)
        return given * left.to(given.dtype)[..., None] + weight.gather(-1, agreed).to(given.dtype) @ following


class _Seen(NamedTuple):
    """Earlier occurrences of the token at each of the last T positions of a text.

    Args:
        place: `(n,)`, index of the position x, for each pair of x and an earlier position y with the same token.
        following: the token after y.
        agreed: number of equal tokens up to both positions, 1 to LONGEST.
        times: float64 `(T, LONGEST)`, counts of the last 1, 2, ... tokens.
        kinds: int64, numbers of distinct tokens after them.
    """

    place: Tensor
    following: Tensor
    agreed: Tensor
    times: Tensor
    kinds: Tensor

    @classmethod
    def of(cls, text: Tensor, count: int, vocab_size: int, reach: int) -> "_Seen":
        """Finds the occurrences for the last `count` positions of a text `(N,)`."""
        size = len(text)
        at = torch.arange(size, device=text.device)
        ago = at[size - count :, None] - at
        is_same = (text[size - count :, None] == text) & (text >= 0) & (ago >= 1) & (ago <= reach)
        place, earlier = is_same.nonzero(as_tuple=True)
        padded = F.pad(text, (LONGEST, 0), value=NOTHING)
        agreed, left = torch.ones_like(place), torch.arange(len(place), device=text.device)
        here, there = place + size - count + LONGEST, earlier + LONGEST
        for k in range(1, LONGEST):
            token = padded[there[left] - k]
            left = left[(token >= 0) & (token == padded[here[left] - k])]
            agreed[left] += 1
        following = text[earlier + 1]
        best = torch.zeros(count * vocab_size, dtype=torch.int64, device=text.device)
        best = best.scatter_reduce(0, place * vocab_size + following, agreed, "amax").view(count, vocab_size)
        known, _ = best.nonzero(as_tuple=True)
        return cls(
            place,
            following,
            agreed,
            _at_least(place, agreed, count).double(),
            _at_least(known, best[best > 0], count),
        )

    def cumulative_counts(self, which: Tensor) -> Tensor:
        """Counts of the selected pairs with at least 1, 2, ... equal tokens, float64 `(T, LONGEST)`."""
        return _at_least(self.place[which], self.agreed[which], len(self.times)).double()


def _at_least(row: Tensor, lengths: Tensor, count: int) -> Tensor:
    """Number of lengths of each row that are at least 1, 2, ..., int64 `(count, LONGEST)`."""
    exactly = (row * LONGEST + lengths - 1).bincount(minlength=count * LONGEST).view(count, LONGEST)
    return exactly.flip(-1).cumsum(-1).flip(-1)
