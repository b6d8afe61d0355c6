"""BERT on sentences; equality with the original is tested in tests/pretrained/test_fine_tune.py."""

import dataclasses

import pytest
import torch

from fredholm.models import Bert, BertSentences, TokenReading
from tests.refusals import refused

READING = TokenReading(vocab_size=9, context=8, pad=0, separator=2)
STACK = Bert.Config(embed_dim=8, depth=1, num_heads=2, head="none", dropout=0.0)


def test_the_head_reads_the_pooled_class_token() -> None:
    torch.manual_seed(0)
    model = BertSentences.Config(stack=STACK, pooling="relu").build(READING, 3).eval()
    tokens = torch.tensor([[1, 5, 2, 0], [1, 2, 4, 2]])
    first = model.signal(tokens)[:, 0]
    assert model.pooler is not None
    torch.testing.assert_close(model(tokens), model.head(model.pooler(first).relu()))
    assert model(tokens).shape == (2, 3)


def test_the_head_may_read_the_class_token_itself_or_the_mean() -> None:
    tokens = torch.tensor([[1, 5, 2, 0], [1, 2, 4, 2]])
    for pooling in ("first", "mean"):
        torch.manual_seed(0)
        model = BertSentences.Config(stack=STACK, pooling=pooling).build(READING, 3).eval()
        u = model.signal(tokens)
        read = u[:, 0] if pooling == "first" else torch.stack([u[0, :3].mean(0), u[1].mean(0)])
        torch.testing.assert_close(model.pooled(tokens), read)
        torch.testing.assert_close(model(tokens), model.head(read))
        assert not [name for name in model.state_dict() if name.startswith("pooler.")]
        assert torch.equal(model.pooled(torch.zeros(1, 3, dtype=torch.int64))[0], u.new_zeros(8)) == (pooling == "mean")


def test_sizes_follow_the_data_unless_set() -> None:
    config = BertSentences.Config()
    sized = config.recommended([], READING, 64, 2).stack
    assert (sized.embed_dim, sized.depth, sized.num_heads) == (64, 2, 4)
    given = dataclasses.replace(config, stack=dataclasses.replace(STACK, embed_dim=24))
    sized = given.recommended([], READING, 64, 4).stack
    assert (sized.embed_dim, sized.depth, sized.num_heads) == (24, 1, 2)
    assert config.max_input_tokens is None
    assert dataclasses.replace(config, positions=12).max_input_tokens == 12


def test_settings_without_effect_are_refused() -> None:
    with refused(ValueError, "stack.head='tokens' has no effect", "pass 'none'"):
        BertSentences.Config(stack=Bert.Config())
    with refused(ValueError, "pooling must be one of ('tanh', 'relu', 'first', 'mean'); got 'max'"):
        BertSentences.Config(pooling="max")  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "marks_second=False has no effect with stack.num_segments=0"):
        BertSentences.Config(stack=dataclasses.replace(STACK, num_segments=0), marks_second=False)
    with pytest.raises(ValueError, match="vocab_size must be at least 1"):
        BertSentences.Config(vocab_size=0)
