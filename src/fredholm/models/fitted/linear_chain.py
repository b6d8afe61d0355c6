"""Linear chains of labels: sums over all sequences of labels, and the best sequence.

Legend
    e_t (K,)    scores of the labels at place t of a chain of N places
    T (K, K)    transition scores: T[j, k] of label k right after label j
    score(y) = Σ_t e_t[y_t] + Σ_{t>1} T[y_{t-1}, y_t],    p(y) = exp(score(y)) / Z,    Z = Σ_y exp(score(y))

    α_t[k] = e_t[k] + log Σ_j exp(α_{t-1}[j] + T[j, k])        log Z = log Σ_k exp(α_N[k])
    β_t[j] = log Σ_k exp(T[j, k] + e_{t+1}[k] + β_{t+1}[k])    log p(y_t = k) = α_t[k] + β_t[k] - log Z

Sums are in log space: of each, the largest terms are subtracted before the exponential, so that they are exact for
scores of any size as long as two entries of T differ by less than 700.

Source: Lafferty, McCallum and Pereira, Conditional random fields (2001); the best sequence is Viterbi's (1967).
"""

from typing import NamedTuple, final

import torch
from torch import Tensor


@final
class ChainSums(NamedTuple):
    """Sums over all sequences of labels of some chains."""

    log_normaliser: Tensor
    """log Z of each chain, `(B,)`; 0 for a chain without places."""
    log_marginals: Tensor
    """log p(y_t = k), `(n, K)`."""
    expected: Tensor
    """Σ_t p(y_{t-1} = j, y_t = k) over all chains, `(K, K)`."""


@final
class Chains:
    """Chains of some lengths, whose places follow each other: the places of the first chain, then of the second, ...

    Args:
        lengths: places of each chain, int64 `(B,)`, 0 or more.
    """

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths
        # longest first, so that the chains that reach a step are always the first ones
        by_length = lengths.argsort(descending=True, stable=True)
        ordered = lengths[by_length]
        steps = torch.arange(int(ordered[0]) if len(ordered) else 0, device=lengths.device)
        self._sizes: list[int] = (ordered > steps[:, None]).sum(1).tolist()
        starts = (lengths.cumsum(0) - lengths)[by_length]
        places = [starts[:size] + step for step, size in enumerate(self._sizes)]
        self._place = torch.cat(places) if places else lengths[:0]
        self._chain = by_length

    def sums(self, scores: Tensor, transitions: Tensor) -> ChainSums:
        """Sums over all sequences; gradients flow through `log_normaliser` and `log_marginals`.

        Args:
            scores: e of all places, `(n, K)`.
            transitions: T.
        """
        e = self._by_step(scores)
        forward, backward = self._forward(e, transitions), self._backward(e, transitions)
        log_z = scores.new_zeros(len(self.lengths))
        if not e:
            return ChainSums(log_z, scores, torch.zeros_like(transitions))
        # at the first step β holds all further places
        found = (forward[0] + backward[0]).logsumexp(1)
        log_z = log_z.index_add(0, self._chain[: len(found)], found)
        marginals = [a + b - found[: len(a), None] for a, b in zip(forward, backward, strict=True)]
        log_marginals = torch.empty_like(scores).index_copy(0, self._place, torch.cat(marginals))
        expected = torch.zeros_like(transitions)
        for before, scored, after in zip(forward, e[1:], backward[1:], strict=False):
            size = len(scored)
            most = before[:size].max(1, keepdim=True).values
            to = (most + scored + after - found[:size, None]).clamp_max(_LARGEST)
            expected = expected + (before[:size] - most).exp().T @ to.exp()
        return ChainSums(log_z, log_marginals, expected * transitions.exp())

    def scored(self, scores: Tensor, transitions: Tensor, labels: Tensor) -> Tensor:
        """The score of a sequence of labels for each chain, `(B,)`, from labels int64 `(n,)`."""
        chain = torch.arange(len(self.lengths), device=labels.device).repeat_interleave(self.lengths)
        found = scores.new_zeros(len(self.lengths)).index_add(0, chain, scores.gather(1, labels[:, None])[:, 0])
        before, after = self.neighbours(labels)
        return found.index_add(0, chain[1:][chain[1:] == chain[:-1]], transitions[before, after])

    def neighbours(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The labels of all neighbouring places, the first and the second of each pair, int64 `(m,)`."""
        chain = torch.arange(len(self.lengths), device=labels.device).repeat_interleave(self.lengths)
        is_pair = chain[1:] == chain[:-1]
        return labels[:-1][is_pair], labels[1:][is_pair]

    def best(self, scores: Tensor, transitions: Tensor) -> Tensor:
        """The labels of the sequence with the largest score of each chain, int64 `(n,)`."""
        e, arrived, came = self._by_step(scores), list[Tensor](), list[Tensor]()
        for scored in e:
            if not arrived:
                arrived.append(scored)
                continue
            most, place = (arrived[-1][: len(scored), :, None] + transitions).max(1)
            arrived.append(scored + most)
            came.append(place)
        found = list[Tensor]()
        for step in reversed(range(len(e))):
            labels = arrived[step].argmax(1)
            if found:
                later = found[-1]
                labels[: len(later)] = came[step].gather(1, later[:, None])[:, 0]
            found.append(labels)
        best = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
        return best.index_copy(0, self._place, torch.cat(found[::-1])) if found else best

    def _by_step(self, scores: Tensor) -> list[Tensor]:
        """The scores of each step, of the chains that reach it."""
        return list(scores[self._place].split(self._sizes)) if self._sizes else []

    def _forward(self, e: list[Tensor], transitions: Tensor) -> list[Tensor]:
        """α of each step."""
        found = e[:1]
        for scored in e[1:]:
            found.append(scored + _log_product(found[-1][: len(scored)], transitions))
        return found

    def _backward(self, e: list[Tensor], transitions: Tensor) -> list[Tensor]:
        """β of each step."""
        found = [torch.zeros_like(e[-1])] if e else []
        for step in reversed(range(len(e) - 1)):
            after = _log_product(e[step + 1] + found[-1], transitions.T)
            ended = after.new_zeros(len(e[step]) - len(after), after.shape[1])
            found.append(torch.cat([after, ended]))
        return found[::-1]


_LARGEST = 700.0
"""Largest argument of an exponential in float64, about."""


def _log_product(scores: Tensor, transitions: Tensor) -> Tensor:
    """log Σ_j exp(scores[b, j] + transitions[j, k]), `(B, K)`."""
    most, top = scores.detach().max(1, keepdim=True).values, transitions.detach().max()
    product = (scores - most).exp() @ (transitions - top).exp()
    return product.clamp_min(torch.finfo(product.dtype).tiny).log() + most + top
