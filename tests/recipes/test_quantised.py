import dataclasses
from pathlib import Path

import pytest

from fredholm.training import train
from recipes.digits import digits
from recipes.quantised import KINDS, Config, main
from tests.refusals import refused


@pytest.mark.slow
def test_a_quantised_run_scores_almost_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = digits()
    train(dataclasses.replace(config, training=dataclasses.replace(config.training, epochs=1)), tmp_path / "run")
    capsys.readouterr()
    main(Config(runs=(tmp_path / "run",)))
    printed = capsys.readouterr().out
    accuracies = [
        float(line.split("accuracy ")[1].split(",")[0]) for line in printed.splitlines() if "accuracy" in line
    ]
    assert len(accuracies) == 1 + len(KINDS)
    assert max(accuracies) - min(accuracies) < 0.02
    assert printed.count("bytes after") == len(KINDS)


def test_no_runs_are_refused() -> None:
    with refused(ValueError, "at least one folder"):
        Config(runs=())
