"""A run of a study is trained and measured once, and the result of another config is never used for it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fredholm.training import Run, TrainingConfig, kept_result
from fredholm.training.kept_result import read_result
from tests.refusals import refused
from tests.training.toy_task import ToyTask


def config(seed: int = 0) -> Run.Config:
    training = TrainingConfig(epochs=1, batch_size=16, device="cpu", tensorboard=False)
    return Run.Config(task=ToyTask.Config(), training=training, seed=seed)


def test_a_run_is_measured_once_and_then_read(tmp_path: Path) -> None:
    measured: list[Run] = []

    def measure(run: Run) -> dict[str, Any]:
        measured.append(run)
        return {"accuracy": run.evaluate()["accuracy"]}

    first, second = (kept_result(config(), tmp_path / "run", measure, tasks=(ToyTask,)) for _ in range(2))
    assert first == second
    assert len(measured) == 1


def test_a_failed_measurement_leaves_the_trained_run(tmp_path: Path) -> None:
    def fail(run: Run) -> dict[str, Any]:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        kept_result(config(), tmp_path / "run", fail, tasks=(ToyTask,))
    found = kept_result(config(), tmp_path / "run", lambda run: {"step": run.step()}, tasks=(ToyTask,))
    assert found == {"step": 4}


@pytest.mark.parametrize("measured", [True, False])
def test_another_config_is_refused(tmp_path: Path, measured: bool) -> None:
    kept_result(config(), tmp_path / "run", lambda run: {}, tasks=(ToyTask,))
    if not measured:
        (tmp_path / "run" / "result.json").unlink()
    longer = dataclasses.replace(config().training, epochs=2)
    for other, expected in (({"seed": 1}, "seed was 0, is 1"), ({"training": longer}, "training.epochs was 1, is 2")):
        with pytest.raises(ValueError, match=f"is a run of another config: {expected}"):
            kept_result(dataclasses.replace(config(), **other), tmp_path / "run", lambda run: {}, tasks=(ToyTask,))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data.replace(b"1.5", b"2.5"), "is damaged: it is not what its own SHA-256 says"),
        (lambda data: data[:-9], "is not valid JSON"),
        (lambda data: b'{"result": {"accuracy": 1.5}}', "has no sha256 of itself"),
        (lambda data: b"", "is not valid JSON"),
    ],
)
def test_a_damaged_result_is_neither_used_nor_overwritten(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    def measure(run: Run) -> dict[str, Any]:
        measured.append(run)
        return {"accuracy": 1.5}

    measured: list[Run] = []
    path, file = tmp_path / "run", tmp_path / "run" / "result.json"
    kept_result(config(), path, measure, tasks=(ToyTask,))
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    with refused(ValueError, f"{file} {message}", "; remove it to measure this run again"):
        kept_result(config(), path, measure, tasks=(ToyTask,))
    assert file.read_bytes() == damaged
    assert len(measured) == 1
    file.unlink()
    assert kept_result(config(), path, measure, tasks=(ToyTask,)) == {"accuracy": 1.5}


def test_the_result_of_another_run_is_refused(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    for seed, path in enumerate((first, second)):
        kept_result(config(seed), path, lambda run: {"seed": run.config.seed}, tasks=(ToyTask,))
    (first / "result.json").write_bytes((second / "result.json").read_bytes())
    with refused(ValueError, "result.json is the result of another run; remove it to measure this run again"):
        read_result(first)
