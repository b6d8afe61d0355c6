import numpy as np
import pytest
import torch

from fredholm.tasks.text import IGNORED, TokenStream
from tests.refusals import refused


def stream(num_targets: int) -> TokenStream:
    """Tokens that are all different: 100, 101, ..."""
    return TokenStream(np.arange(100, 101 + num_targets, dtype=np.uint16))


@pytest.mark.parametrize(("num_targets", "context"), [(1, 1), (1, 5), (12, 4), (13, 4), (23, 7), (97, 10)])
def test_every_token_is_a_target_once_at_any_offset(num_targets: int, context: int) -> None:
    tokens = stream(num_targets)
    count = tokens.num_blocks(context)
    for offset in {0, 1 % num_targets, num_targets // 2, num_targets - 1}:
        inputs, targets = tokens.blocks(torch.arange(count), context, offset)
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.shape == targets.shape == (count, context)
        counted = targets != IGNORED
        assert sorted(targets[counted].tolist()) == list(range(101, 101 + num_targets))
        assert torch.equal(inputs[counted] + 1, targets[counted])
        assert (inputs[~counted] == 100).all()
        assert targets[0, 0] == 101 + offset
        assert counted[:-1].all()


def test_a_block_at_the_end_wraps_around_to_the_start() -> None:
    inputs, targets = stream(10).blocks(torch.tensor([0, 1, 2]), 4, offset=8)
    assert inputs.tolist() == [[108, 109, 100, 101], [102, 103, 104, 105], [106, 107, 100, 100]]
    assert targets.tolist() == [[109, 110, 101, 102], [103, 104, 105, 106], [107, 108, IGNORED, IGNORED]]


def test_order_and_repetition_of_indices_are_preserved() -> None:
    tokens = stream(30)
    every, _ = tokens.blocks(torch.arange(5), 6, 3)
    some, _ = tokens.blocks(torch.tensor([4, 0, 4]), 6, 3)
    assert torch.equal(some, every[[4, 0, 4]])


@pytest.mark.parametrize(
    ("num_targets", "context", "stride"), [(1, 4, 4), (3, 5, 2), (12, 4, 4), (13, 4, 4), (23, 7, 3), (97, 10, 1)]
)
def test_every_token_is_scored_once_in_order_with_enough_context(num_targets: int, context: int, stride: int) -> None:
    tokens = stream(num_targets)
    count = tokens.num_blocks(stride)
    inputs, targets = tokens.windows(torch.arange(count), context, stride)
    assert inputs.shape == targets.shape == (count, context)
    counted = targets != IGNORED
    assert targets[counted].tolist() == list(range(101, 101 + num_targets))
    assert torch.equal(inputs[counted] + 1, targets[counted])
    for row, mask in zip(inputs, counted, strict=True):
        first = int(mask.nonzero()[0])
        assert torch.equal(row[: first + 1], torch.arange(first + 1) + row[0])
        assert first == min(context - stride, int(row[first]) - 100)


def test_a_stream_without_targets_is_refused() -> None:
    for tokens in (np.zeros(0), np.zeros(1), np.zeros((2, 2))):
        with refused(ValueError, "has nothing to predict; pass at least 2 tokens"):
            TokenStream(tokens)
