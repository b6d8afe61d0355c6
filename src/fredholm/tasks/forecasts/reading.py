"""How much of a series a model that is fitted in closed form reads.

A reading is a context and a share of structures in the base forecast. Both are chosen by cross-validation errors: the
shortest context whose error is at most AS_GOOD times the smallest, then the shares with it and with the shortest of
all.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

from .windows import WindowSet

CONTEXTS = (1, 2, 3, 6, 9)
"""Candidate contexts, in multiples of the shortest."""
SHARES = (0.5, 1.0)
"""Candidate shares beside 0."""
AS_GOOD = 1.03
"""The shortest context whose error is at most this multiple of the smallest is taken."""
MOST_SEEN, LEAST_PREDICTED = 1 << 14, 30
"""Largest number of values in a window of a longer context, and smallest number of disjoint answers to judge it by."""


@final
class Reading(NamedTuple):
    """The number of samples read, and the share of structures in the base forecast."""

    context: int
    share: float


def candidate_contexts(windows: WindowSet, ends: Sequence[int], *, num_channels: int) -> tuple[int, ...]:
    """CONTEXTS times the context of training windows, ascending; the first is always possible.

    The others are at most two thirds of the training part of the shortest series, and leave LEAST_PREDICTED answers.

    Args:
        windows: the training windows.
        ends: the numbers of training samples of each series.
        num_channels: number of channels read.
    """
    most = min(min(ends) * 2 // 3, MOST_SEEN // num_channels)

    def is_possible(context: int) -> bool:
        num_predicted = sum(max(0, end - context) // windows.horizon for end in ends)
        has_window = bool((windows.places[:, 1] >= context).any())
        return context <= most and num_predicted >= LEAST_PREDICTED and has_window

    shortest, *longer = (windows.context * times for times in CONTEXTS)
    return (shortest, *filter(is_possible, longer))


def best_reading(
    contexts: Sequence[int], share: float, error: Callable[[Reading], float], *, tries_shares: bool
) -> Reading:
    """The reading with the smallest error; see this file's description.

    Args:
        contexts: candidates, ascending.
        share: the share with which contexts are compared.
        error: the cross-validation error of a reading.
        tries_shares: whether SHARES are candidates too.
    """
    error = functools.cache(error)
    context = contexts[0]
    if len(contexts) > 1:
        errors = [error(Reading(each, share)) for each in contexts]
        good = (each for each, own in zip(contexts, errors, strict=True) if own <= AS_GOOD * min(errors))
        context = next(good, contexts[0])
    found = [Reading(context, share)]
    if tries_shares:
        found += [Reading(each, other) for other in SHARES for each in sorted({context, contexts[0]})]
    return min(found, key=error) if len(found) > 1 else found[0]
