"""Multi-label prototypes: both products, a tiny synthetic set from end to end, and the real files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.kernels import yat
from recipes import multilabel as study


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve features and six labels: label l holds where feature 2 l is 1; a rare seventh is missing in training."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", 120), ("test", 40)):
        features = generator.random((n, 12)) < 0.3
        labels = np.concatenate([features[:, ::2], np.zeros((n, 1), bool)], 1)
        labels[0, 6] = part == "test"
        for name, table in (("X", features), ("Y", labels)):
            arrays[f"{name}_{part}_indptr"] = np.concatenate([[0], table.sum(1).cumsum()])
            arrays[f"{name}_{part}_indices"] = table.nonzero()[1].astype(np.uint16)
        arrays[f"shape_{part}"] = np.array([n, 12, 7])
    np.savez(tmp_path / "tiny.npz", **arrays)
    return tmp_path


def test_records_are_unit_rows_with_their_labels(folder: Path) -> None:
    records = study.read(folder / "tiny.npz", "train")
    assert records.features.shape == (120, 12)
    assert records.labels.shape == (120, 7)
    assert torch.equal(records.features[:, ::2] > 0, records.labels[:, :6])
    lengths = records.features.norm(dim=1)
    torch.testing.assert_close(lengths[lengths > 0], torch.ones(int((lengths > 0).sum())))


@pytest.mark.parametrize("epsilon", [None, 0.01])
def test_logits_are_scaled_products_with_an_offset(epsilon: float | None) -> None:
    frequency = torch.tensor([0.1, 0.5, 0.01])
    model = study.LabelScores(frequency, 8, size=0.5, epsilon=epsilon)
    x, w = torch.randn(4, 8), model.weight
    product = x @ w.T if epsilon is None else yat(x, w, epsilon=epsilon)
    torch.testing.assert_close(
        model(x), 3 / torch.log(torch.tensor(4.0)) * product + (frequency / (1 - frequency)).log()
    )


def test_the_penalty_shrinks_only_prototypes(folder: Path) -> None:
    records = study.read(folder / "tiny.npz", "train")
    config = study.Config(epochs=10, batch_size=20)
    free, bound = (study.train(records, study.Choice(0.01, penalty), None, config, 0) for penalty in (0.0, 100.0))
    assert bound.weight.norm() < 0.1 * free.weight.norm()
    assert bound.offset.norm() > 0.5 * free.offset.norm()


@pytest.mark.long
def test_a_tiny_run_writes_its_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = study.Config(
        data=folder, sets=("tiny",), out=folder / "out", learning_rates=(0.03, 1e-7), penalties=(0.0,), batch_size=10
    )
    study.main(config)
    report = json.loads((folder / "out" / "results.json").read_text())
    for product in ("inner", "Yat"):
        found = report["tiny"][product]
        assert found["choice"] == {"learning_rate": 0.03, "penalty": 0.0}
        assert len(found["tried"]) == 2
        # the labels of every record take its first ranks, except for the few without a label
        assert found["mean"][0] > 75
        assert all(0 <= value <= 100 for value in found["mean"])
    assert capsys.readouterr().out.count("PSP@5") == 2


def test_the_error_for_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"bibtex\.npz is missing; name the folder of the data sets with --data$"):
        study.compare("bibtex", study.Config(data=tmp_path))


@pytest.mark.parametrize(("name", "shape"), [("bibtex", (4880, 1836, 159)), ("delicious", (10791, 500, 983))])
def test_real_files_are_read(shared_data: Path, name: str, shape: tuple[int, int, int]) -> None:
    records = study.read(shared_data / "multilabel" / f"{name}.npz", "train")
    assert (*records.features.shape, records.labels.shape[1]) == shape
