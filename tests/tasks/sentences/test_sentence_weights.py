"""Weights of sentences: how they are read, and that batches, targets and closed-form models follow them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fredholm.models import NGramBank
from fredholm.tasks import SentenceLearning
from tests.refusals import refused

NUM = 24
WORDS = ("apples", "zebras")


def table(path: Path, weights: list[float], *, kept: list[bool] | None = None) -> None:
    rows = [f"{WORDS[i % 2]} {'so ' * (i % 5)}{i},{'yn'[(i + i // 12) % 2]},{w}" for i, w in enumerate(weights)]
    rows = [row for i, row in enumerate(rows) if kept is None or kept[i]]
    path.write_text("\n".join(["text,label,w", *rows]) + "\n")


def learning(folder: Path, weights: str | None = "w") -> SentenceLearning:
    model = NGramBank.Config(num_grams=100, letter_order=0)
    return SentenceLearning(SentenceLearning.Config(data=str(folder), weights=weights, model=model))


def outputs(task: SentenceLearning) -> Tensor:
    torch.manual_seed(0)
    model = task.model()
    task.initialise(model, torch.device("cpu"))
    return task._outputs(model, task.train_batch(torch.arange(task.num_train), torch.Generator())).detach()


WEIGHTS = [1.0] * 12 + [4.0] * 12


def test_a_bank_follows_weights_and_only_their_ratios_count(tmp_path: Path) -> None:
    table(tmp_path / "train.csv", WEIGHTS)
    found = outputs(learning(tmp_path))
    # the second half, whose labels are the others, weighs more
    task = learning(tmp_path)
    assert torch.equal(found.argmax(1)[12:], task.splits.train.answers.values[12:])
    assert bool((found.argmax(1)[:12] != task.splits.train.answers.values[:12]).all())
    table(tmp_path / "train.csv", [0.5 * weight for weight in WEIGHTS])
    assert torch.equal(outputs(learning(tmp_path)), found)
    assert not torch.allclose(outputs(learning(tmp_path, None)), found, atol=1e-3)


def test_a_sentence_of_weight_0_is_left_out(tmp_path: Path) -> None:
    kept = [i % 3 > 0 for i in range(NUM)]
    table(tmp_path / "train.csv", [weight * k for weight, k in zip(WEIGHTS, kept, strict=True)])
    with_zeros = learning(tmp_path)
    found = outputs(with_zeros)
    table(tmp_path / "train.csv", WEIGHTS, kept=kept)
    assert with_zeros.facts == learning(tmp_path).facts
    assert torch.equal(outputs(learning(tmp_path)), found)


def test_held_out_weights_are_those_of_the_sentences_of_a_batch(tmp_path: Path) -> None:
    table(tmp_path / "train.csv", WEIGHTS)
    table(tmp_path / "test.csv", [1.0 + i for i in range(NUM)])
    task = learning(tmp_path)
    rows = torch.arange(NUM)  # from the shortest sentence on
    lines = torch.tensor([task.held_out("test").sentences[i].line for i in task._held_out_order["test"].tolist()])
    weights = task.held_out_batch("test", rows)["example_weights"]
    torch.testing.assert_close(weights, (lines - 1).double() / 12.5)
    measured = task.outputs_and_targets(task.model(), "test", rows)
    assert measured.weights is not None
    assert torch.equal(measured.weights, weights)


def test_losses_are_multiplied_by_the_weights(tmp_path: Path) -> None:
    table(tmp_path / "train.csv", WEIGHTS)
    task, rows = learning(tmp_path), torch.arange(NUM)
    model = task.model()
    torch.nn.init.normal_(model.weight)  # pyright: ignore[reportArgumentType]
    batch = task.train_batch(rows, torch.Generator())
    found = task.loss(model, batch)
    expected = (task.target.losses(task._outputs(model, batch), batch["targets"]) * batch["example_weights"]).sum()
    torch.testing.assert_close(found, expected.float())
    torch.testing.assert_close(batch["example_weights"].mean(), torch.tensor(1.0).double())


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("v", "no column 'v' for the weights"),
        ("label", "column 'label' would be read as two things; name text, second, label and weights columns apart"),
        ("group", "column 'group' is a mark of sentences and one of weights"),
        ("w", "train.csv, line 3: column 'w': '-1' is no weight; expected a number of at least 0"),
    ],
)
def test_wrong_columns_of_weights_are_refused(tmp_path: Path, column: str, message: str) -> None:
    (tmp_path / "train.csv").write_text("text,label,group,w\na b,1,x,1\nb c,2,y,-1\n")
    with refused(ValueError, message):
        learning(tmp_path, column)
