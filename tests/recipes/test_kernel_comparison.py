"""The study of kernels, with two of them and one epoch."""

import json
from pathlib import Path

import pytest

from fredholm.comparison.kernels import KERNELS_BY_NAME
from fredholm.comparison.protocol import Protocol
from fredholm.models import ITNet
from fredholm.tasks import ImageLearning
from recipes import kernel_comparison as study
from tests.comparison.build import stripes
from tests.refusals import refused


def config(out: Path) -> study.Config:
    kernels = ("attention", "linear-attention", "mamba")
    return study.Config(sets=("digits",), kernels=kernels, data=out, out=out, seeds=(3,), epochs=1, processes=1)


@pytest.mark.slow
@pytest.mark.usefixtures("few_rates")
def test_results_and_picture_are_kept_and_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    other = {"rows": {}, "metric": {"percent": True}, "best": None, "baselines": {}}
    (tmp_path / "results.json").write_text(json.dumps({"ModelNet10": other}))
    stripes(tmp_path)
    small = study.DataSet(ImageLearning.Config, "stripes.npz", 1, (), (("patch_size", 4),))
    monkeypatch.setitem(study.SETS, "digits", small)
    monkeypatch.setattr(study, "draw", lambda report, path: None)
    study.main(config(tmp_path))
    kept = json.loads((tmp_path / "results.json").read_text())
    assert list(kept) == ["digits", "ModelNet10"]
    digits = kept["digits"]
    assert digits["rows"].keys() == {"attention", "linear-attention", "default"}
    for row in digits["rows"].values():
        assert len(row["test"]) == len(row["valid"]) == 1
        assert row["differs from best"] is None
    assert digits["best"] in digits["rows"]
    assert digits["baselines"].keys() == {"logistic regression", "nearest neighbours", "commonest class"}
    assert "does not order" in digits["left out"]["mamba"]
    assert digits["examples"] == [33, 5, 10]
    monkeypatch.setattr(study, "compare", None)
    study.main(config(tmp_path))
    assert json.loads((tmp_path / "results.json").read_text()) == kept
    monkeypatch.undo()
    study.draw({"digits": digits}, tmp_path / "study.png")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")
    assert "logistic regression" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in study.SETS if name != "NLVR"])  # its file has to be made first
def test_every_set_is_compared_without_its_slow_kernels(name: str) -> None:
    assert set(study.kernels(study.Config(), name)) == set(KERNELS_BY_NAME) - set(study.SETS[name].too_slow)
    assert study.task_config(study.Config(), name).data.endswith(study.SETS[name].path)


def test_batch_size_and_dropout_follow_the_number_of_epochs_of_the_study(tmp_path: Path) -> None:
    stripes(tmp_path, count=340)
    small = study.DataSet(ImageLearning.Config, "stripes.npz", 2, (), (("patch_size", 4),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.SETS, "digits", small)
        request = study.request(study.Config(data=tmp_path), "digits")
    protocol = Protocol(request, request.epochs)
    assert (request.epochs, protocol.training(2).batch_size) == (2, 16)
    assert isinstance(protocol.config, ImageLearning.Config)
    assert isinstance(protocol.config.model, ITNet.Config)
    assert protocol.config.model.dropout == 0.1


def test_the_table_has_a_column_per_set_and_the_chosen_row_is_bold() -> None:
    report = {
        "a": {
            "rows": {"mlp": {"test": [0.5, 0.52]}, "default": {"test": [0.25]}},
            "metric": {"percent": True},
            "best": "mlp",
            "baselines": {"nearest neighbours": {"test": 0.125}},
        },
        "b": {"rows": {"lstm": {"test": [0.5, None]}}, "metric": {"percent": False}, "best": None, "baselines": {}},
    }
    lines = study.table(report)
    assert lines[:3] == ["| | a | b |", "|---|---|---|", "| mlp | **51.0 ± 1.4** | – |"]
    assert lines[-3:] == ["| lstm | – | 0.5000 |", "| default | 25.0 | – |", "| nearest neighbours | 12.5 | – |"]


def test_an_unknown_set_is_refused() -> None:
    with refused(ValueError, "no data set 'digit'; expected some of digits, ENZYMES"):
        study.Config(sets=("digit",))
