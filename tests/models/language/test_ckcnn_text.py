from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.domains import Sequence
from fredholm.models.language.ckcnn_text import CKCNNText
from fredholm.models.language.generation import generate
from fredholm.models.series.ckcnn import ContinuousStack
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import LanguageModelling
from fredholm.training import Run, TrainingConfig, train
from tests.refusals import refused

VOCABULARY, CONTEXT = 7, 13
STACK: dict[str, Any] = {"embed_dim": 6, "kernel_width": 5, "omega_0": 9.0, "dropout": 0.0, "pool": "none"}


def config(embedding_dropout: float = 0.0, **settings: Any) -> CKCNNText.Config:
    return CKCNNText.Config(stack=ContinuousStack.Config(**{**STACK, **settings}), embedding_dropout=embedding_dropout)


def model(**settings: Any) -> CKCNNText:
    return config(**settings).build(VOCABULARY, CONTEXT).double().eval()


def tokens(length: int = CONTEXT) -> Tensor:
    return torch.randint(VOCABULARY, (2, length))


@pytest.mark.parametrize("length", [0, 1, CONTEXT])
def test_it_is_a_stack_between_embeddings_and_a_head(length: int) -> None:
    net, given = model(), tokens(length)
    expected = net.head(net.stack(net.tokens.weight[given], Sequence(length, spacing=1.0)))
    torch.testing.assert_close(net(given), expected)
    assert (net.stack.extent, net.stack.spacing) == (CONTEXT - 1.0, 1.0)


def test_no_logit_depends_on_a_later_token() -> None:
    net, given = model(), tokens()
    changed = torch.cat([given[:, :6], (given[:, 6:] + 1) % VOCABULARY], 1)
    torch.testing.assert_close(net(given)[:, :6], net(changed)[:, :6])
    assert not torch.allclose(net(given)[:, 6], net(changed)[:, 6])


@pytest.mark.parametrize("horizon", [None, 3.5])
@pytest.mark.parametrize("cuts", [(0, 5, 6, CONTEXT), tuple(range(CONTEXT + 1)), (0, 0, CONTEXT)])
def test_reading_in_pieces_gives_the_logits_of_the_whole(horizon: float | None, cuts: tuple[int, ...]) -> None:
    net, given = model(horizon=horizon), tokens()
    state, parts = net.initial_state(2), []
    with torch.no_grad():
        for start, stop in pairwise(cuts):
            logits, state = net.advance(given[:, start:stop], state)
            parts.append(logits)
        torch.testing.assert_close(torch.cat(parts, 1), net(given))
    with refused(ValueError, f"1 tokens after {CONTEXT} others exceed the context of {CONTEXT}"):
        net.advance(given[:, :1], state)


def test_generated_text_is_the_same_with_and_without_a_cache() -> None:
    net, prompt = model(), tokens(3)
    drawn = [
        torch.stack(list(islice(generate(net, prompt, generator=torch.Generator().manual_seed(1), cache=cache), 14)))
        for cache in (True, False)
    ]
    assert torch.equal(*drawn)


def test_embedding_dropout_drops_a_token_everywhere() -> None:
    net = model(embedding_dropout=0.5).train()
    given = torch.arange(VOCABULARY).repeat(2, 5)
    net.stack, net.head = torch.nn.Identity(), torch.nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    vectors = net._embed(given)
    dropped = (vectors == 0).all(-1)
    assert torch.equal(dropped, dropped[0, :VOCABULARY].repeat(2, 5))
    assert 0 < dropped.sum() < dropped.numel()
    torch.testing.assert_close(vectors[~dropped], 2 * net.tokens.weight[given][~dropped])


def test_the_text_task_trains_and_stores_it(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("the cat sat on the mat. " * 9)
    made = LanguageModelling.Config(data=str(tmp_path / "some.txt"), context=16, model=config())
    assert from_json(to_json(made), LanguageModelling.Config, LanguageModelling.parts) == made
    training = TrainingConfig(epochs=2, batch_size=8, learning_rate=1e-2, ema_decay=0.5, tensorboard=False)
    result = train(Run.Config(task=made, training=training), tmp_path / "run")
    assert result.metrics["perplexity"] < 220
    assert Run(tmp_path / "run").evaluate() == result.metrics


def test_bad_settings() -> None:
    with refused(ValueError, "models.CKCNNText: every token is predicted from those before it", "stack.pool to 'none'"):
        config(pool="last")
    with refused(ValueError, "stack.is_causal"):
        config(is_causal=False)
    with refused(ValueError, "embedding_dropout must be in [0, 1); got 1.0"):
        config(embedding_dropout=1.0)
    with refused(ValueError, "context must be at least 1; got 0"):
        config().build(5, 0)
    with refused(ValueError, "14 tokens exceed the context of 13"):
        model()(tokens(CONTEXT + 1))
