"""Weights of rows: how they are read and refused, and what follows from them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fredholm.models import TableMachine
from fredholm.models.fitted.table_machine import TableBatch
from fredholm.tasks import TableLearning
from tests.refusals import refused

SMALL = TableMachine.Config(num_centres=60, num_trees=3)
NUM = 30


def table(folder: Path, weights: list[object], *, name: str = "train.csv", kept: list[bool] | None = None) -> None:
    x = torch.linspace(-2, 2, NUM).tolist()
    rows = [f"{x[i]:.4f},{'ab'[i % 2]},{w},{x[i] ** 2 + i % 2:.4f}" for i, w in enumerate(weights)]
    rows = [row for i, row in enumerate(rows) if kept is None or kept[i]]
    (folder / name).write_text("\n".join(["x,kind,w,label", *rows]) + "\n")


def learning(folder: Path, weights: str | None = "w") -> TableLearning:
    return TableLearning(
        TableLearning.Config(data=str(folder), weights=weights, ignore=() if weights else ("w",), model=SMALL)
    )


def outputs(task: TableLearning) -> Tensor:
    torch.manual_seed(0)
    model = task.model()
    task.initialise(model, torch.device("cpu"))
    return task._outputs(model.eval(), task.train_batch(torch.arange(task.num_train), torch.Generator())).detach()


WEIGHTS = [float(1 + i % 4) for i in range(NUM)]


def test_weights_are_no_column_to_read_and_change_the_fit(tmp_path: Path) -> None:
    table(tmp_path, [*WEIGHTS])
    weighted, plain = learning(tmp_path), learning(tmp_path, None)
    assert [column.name for column in weighted.facts.columns] == ["x", "kind"]
    assert weighted.facts != plain.facts  # the moments of the target
    assert not torch.allclose(outputs(weighted), outputs(plain), atol=1e-3)


def test_only_the_ratios_of_weights_count(tmp_path: Path) -> None:
    found = list[Tensor]()
    for factor in (1.0, 8.0):
        table(tmp_path, [factor * weight for weight in WEIGHTS])
        found.append(outputs(learning(tmp_path)))
    assert torch.equal(*found)
    table(tmp_path, [7.0] * NUM)
    assert torch.equal(outputs(learning(tmp_path)), outputs(learning(tmp_path, None)))


def test_a_row_of_weight_0_is_left_out(tmp_path: Path) -> None:
    kept = [i % 3 > 0 for i in range(NUM)]
    table(tmp_path, [weight * k for weight, k in zip(WEIGHTS, kept, strict=True)])
    with_zeros = learning(tmp_path)
    found = outputs(with_zeros)
    table(tmp_path, [*WEIGHTS], kept=kept)
    without = learning(tmp_path)
    assert with_zeros.facts == without.facts
    assert torch.equal(found, outputs(without))


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.7))

    def forward(self, rows: TableBatch) -> Tensor:
        return self.slope * rows.numbers


def test_losses_gradients_and_metrics_are_those_of_copies_of_rows(tmp_path: Path) -> None:
    table(tmp_path, [*WEIGHTS])
    table(tmp_path, [*WEIGHTS], name="test.csv")
    task, model = learning(tmp_path), Fixed()
    rows, held = torch.arange(NUM), task.held_out_batch("test", torch.arange(NUM))
    copies = rows.repeat_interleave(torch.tensor(WEIGHTS).long())
    copied = {name: each[copies] for name, each in held.items() if name != "example_weights"}
    found, expected = (
        task.loss(model, batch) / task.num_targets(batch)
        for batch in (task.train_batch(rows, torch.Generator()), copied)
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each, model.slope) for each in (found, expected)))
    metrics = [task.metrics() for _ in range(2)]
    for batch, own in zip((held, copied), metrics, strict=True):
        task.score(model, batch, own)
    for name, metric in metrics[0].items():
        torch.testing.assert_close(metric.compute(), metrics[1][name].compute())


def test_a_held_out_file_may_lack_the_weights(tmp_path: Path) -> None:
    table(tmp_path, [*WEIGHTS])
    (tmp_path / "test.csv").write_text("x,kind,label\n1,a,2\n2,b,3\n")
    batch = learning(tmp_path).held_out_batch("test", torch.arange(2))
    assert "example_weights" not in batch


@pytest.mark.parametrize(
    ("weights", "column", "message"),
    [
        ([1, -0.5], "w", "train.csv, line 3: column 'w': '-0.5' is no weight; expected a number of at least 0"),
        ([1, ""], "w", "line 3: column 'w': '' is no weight"),
        (["nan", 1], "w", "line 2: column 'w': 'nan' is no weight"),
        (["inf", 1], "w", "line 2: column 'w': 'inf' is no weight"),
        (["1 kg", 1], "w", "line 2: column 'w': '1 kg' is no weight"),
        ([0, 0.0], "w", "column 'w': all weights are 0; expected some above 0"),
        ([1, 2], "v", "no column 'v' of weights (weights=, or None without any)"),
        ([1, 2], "label", "column 'label' is both to be predicted and one of weights; give weights their own"),
    ],
)
def test_wrong_weights_are_refused(tmp_path: Path, weights: list[object], column: str, message: str) -> None:
    table(tmp_path, weights)
    with refused(ValueError, message):
        learning(tmp_path, column)


@pytest.mark.parametrize(("names", "role"), [(("w",), "ignored"), ((), "a mark of rows")])
def test_a_column_of_weights_has_no_other_role(tmp_path: Path, names: tuple[str, ...], role: str) -> None:
    (tmp_path / "train.csv").write_text("x,w,group,label\n1,1,2,3.5\n2,1,3,4.5\n")
    column = names[0] if names else "group"
    with refused(ValueError, f"column {column!r} is both {role} and one of weights"):
        TableLearning(TableLearning.Config(data=str(tmp_path), weights=column, ignore=names))
