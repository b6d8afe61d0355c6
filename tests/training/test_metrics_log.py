import errno
import json
from pathlib import Path

import pytest

from fredholm.training.metrics_log import MetricsLog


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_lines_are_there_as_soon_as_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write("train", 3, {"loss": 0.5, "epoch": 1})
    assert records(tmp_path) == [{"kind": "train", "step": 3, "loss": 0.5, "epoch": 1}]
    log.write("test", 3, {"accuracy": 1.0})
    assert log.num_lines == len(records(tmp_path)) == 2
    log.close()


def test_a_number_that_json_lacks_becomes_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write("train", 1, {"loss": float("nan"), "norm": float("inf")})
    log.close()
    assert records(tmp_path) == [{"kind": "train", "step": 1, "loss": None, "norm": None}]


def test_lines_after_the_checkpoint_are_cut(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, tensorboard=False)
    for step in range(5):
        log.write("train", step, {"loss": 1.0})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tr')
    again = MetricsLog(tmp_path, num_lines=3, tensorboard=False)
    again.write("train", 9, {"loss": 2.0})
    again.close()
    assert [record["step"] for record in records(tmp_path)] == [0, 1, 2, 9]
    assert again.num_lines == 4


def test_a_full_disk_is_said_once_with_the_file(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    log = MetricsLog(tmp_path, tensorboard=False)
    log._file.close()
    log._file = full.open("a", encoding="utf-8")
    with pytest.raises(OSError, match="cannot write the metrics of step 4") as caught:
        log.write("train", 4, {"loss": 1.0})
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == "/dev/full"
    log.close()
