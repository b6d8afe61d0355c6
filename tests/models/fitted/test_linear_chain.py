import itertools

import pytest
import torch
from torch import Tensor

from fredholm.models.fitted.linear_chain import Chains

LENGTHS = torch.tensor([3, 0, 1, 4, 2])
NUM_LABELS = 3


def drawn(scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Scores of all places and transitions."""
    generator = torch.Generator().manual_seed(0)
    count = int(LENGTHS.sum())
    scores, transitions = (
        scale * torch.randn(rows, NUM_LABELS, dtype=torch.float64, generator=generator) for rows in (count, NUM_LABELS)
    )
    return scores, transitions


def enumerated(scores: Tensor, transitions: Tensor) -> dict[tuple[int, ...], float]:
    """The score of every sequence of labels of one chain."""
    found = dict[tuple[int, ...], float]()
    for labels in itertools.product(range(NUM_LABELS), repeat=len(scores)):
        steps = sum(float(transitions[a, b]) for a, b in itertools.pairwise(labels))
        found[labels] = steps + sum(float(scores[t, k]) for t, k in enumerate(labels))
    return found


# probabilities underflow with the second, and exponentials of scores overflow with the last
@pytest.mark.parametrize(("scale", "of_scores"), [(2.0, 1), (100.0, 1), (2.0, 1000)])
def test_sums_and_best_sequences_are_those_of_an_enumeration(scale: float, of_scores: float) -> None:
    scores, transitions = drawn(scale)
    scores = of_scores * scores
    chains, expected = Chains(LENGTHS), torch.zeros(NUM_LABELS, NUM_LABELS, dtype=torch.float64)
    found, best = chains.sums(scores, transitions), chains.best(scores, transitions)
    for chain, own in enumerate(torch.arange(len(scores)).split(LENGTHS.tolist())):
        every = enumerated(scores[own], transitions)
        log_z = torch.tensor([*every.values()], dtype=torch.float64).logsumexp(0)
        torch.testing.assert_close(found.log_normaliser[chain], log_z)
        assert tuple(best[own].tolist()) == max(every, key=lambda labels: every[labels])
        shares = torch.zeros(len(own), NUM_LABELS, dtype=torch.float64)
        for labels, score in every.items():
            chance = (torch.tensor(score, dtype=torch.float64) - log_z).exp()
            for place, label in enumerate(labels):
                shares[place, label] += chance
            for a, b in itertools.pairwise(labels):
                expected[a, b] += chance
        torch.testing.assert_close(found.log_marginals[own].exp(), shares)
    torch.testing.assert_close(found.expected, expected)


def test_the_score_of_labels_is_that_of_the_enumeration() -> None:
    scores, transitions = drawn()
    labels = torch.tensor([0, 1, 2, 2, 1, 1, 0, 2, 0, 1])
    found = Chains(LENGTHS).scored(scores, transitions, labels)
    for chain, own in enumerate(torch.arange(len(scores)).split(LENGTHS.tolist())):
        expected = enumerated(scores[own], transitions)[tuple(labels[own].tolist())]
        assert float(found[chain]) == pytest.approx(expected, abs=1e-12)


def test_sums_are_the_gradients_of_log_z() -> None:
    scores, transitions = (each.requires_grad_() for each in drawn())
    found = Chains(LENGTHS).sums(scores, transitions)
    of_scores, of_transitions = torch.autograd.grad(found.log_normaliser.sum(), (scores, transitions))
    torch.testing.assert_close(of_scores, found.log_marginals.exp())
    torch.testing.assert_close(of_transitions, found.expected)


def test_marginals_have_gradients() -> None:
    inputs = tuple(each.requires_grad_() for each in drawn())
    assert torch.autograd.gradcheck(lambda *given: Chains(LENGTHS).sums(*given).log_marginals, inputs)


def test_there_may_be_no_chain_and_no_place() -> None:
    _, transitions = drawn()
    for lengths in (torch.zeros(0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)):
        chains, scores = Chains(lengths), torch.zeros(0, NUM_LABELS, dtype=torch.float64)
        assert chains.sums(scores, transitions).log_normaliser.tolist() == [0.0] * len(lengths)
        assert chains.best(scores, transitions).shape == (0,)
