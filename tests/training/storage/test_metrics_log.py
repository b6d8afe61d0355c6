import errno
import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fredholm.training.storage.metrics_log import LogPosition, MetricsLog
from tests.refusals import refused


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_lines_can_be_read_as_soon_as_they_are_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write("train", 3, {"loss": 0.5, "epoch": 1})
    assert records(tmp_path) == [{"kind": "train", "step": 3, "loss": 0.5, "epoch": 1}]
    log.write("test", 3, {"accuracy": 1.0})
    assert log.num_lines == len(records(tmp_path)) == 2
    log.close()


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write("train", 1, {"loss": float("nan"), "norm": float("inf")})
    log.close()
    assert records(tmp_path) == [{"kind": "train", "step": 1, "loss": None, "norm": None}]


def written(folder: Path, num_lines: int = 5) -> LogPosition:
    """Writes a log of which a checkpoint covers the first three lines."""
    log = MetricsLog(folder, tensorboard=False)
    for step in range(3):
        log.write("train", step, {"loss": 1.0})
    mark = log.mark()
    for step in range(3, num_lines):
        log.write("train", step, {"loss": 1.0})
    log.close()
    return mark


@pytest.mark.parametrize(("num_lines", "torn"), [(3, ""), (5, ""), (5, '{"kind": "tr'), (3, "\n")])
def test_lines_after_the_checkpoint_are_cut_off(tmp_path: Path, num_lines: int, torn: str) -> None:
    mark = written(tmp_path, num_lines)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(torn)
    again = MetricsLog(tmp_path, mark=mark, tensorboard=False)
    assert again.mark() == mark
    again.write("train", 9, {"loss": 2.0})
    assert [record["step"] for record in records(tmp_path)] == [0, 1, 2, 9]
    assert again.mark().lines == again.num_lines == 4
    again.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [*lines[:1], lines[1][:10], *lines[2:]],  # a truncated line
        lambda lines: [lines[0], *lines],  # two writers
        lambda lines: lines[1:],
        lambda lines: [],
        lambda lines: [lines[0], lines[1].replace(b"1.0", b"1.5"), *lines[2:]],
    ],
)
def test_a_log_that_differs_from_that_of_the_checkpoint_is_refused(
    tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]]
) -> None:
    mark, path = written(tmp_path), tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    before = path.read_bytes()
    with refused(ValueError, "metrics.jsonl is damaged: its first ", "move it away to go on with a new one"):
        MetricsLog(tmp_path, mark=mark, tensorboard=False)
    assert path.read_bytes() == before


def test_a_missing_log_is_reported_and_started_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = written(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    log = MetricsLog(tmp_path, mark=mark, step=12, tensorboard=False)
    assert capsys.readouterr().out == f"{tmp_path / 'metrics.jsonl'} is missing: a new one begins at step 12\n"
    log.write("train", 13, {"loss": 1.0})
    assert (log.mark().lines, [record["step"] for record in records(tmp_path)]) == (1, [13])
    log.close()


def test_a_link_is_not_truncated(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("years of work")
    (tmp_path / "metrics.jsonl").symlink_to("precious")
    with refused(ValueError, "metrics.jsonl is a link"):
        MetricsLog(tmp_path, tensorboard=False)
    assert (tmp_path / "precious").read_text() == "years of work"


def test_a_run_goes_on_where_tensorboard_cannot(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    before, log, step = threading.excepthook, MetricsLog(tmp_path), 0
    shutil.rmtree(tmp_path / "tensorboard")
    deadline = time.monotonic() + 10
    for step in itertools.count():
        log.write("train", step, {"loss": 1.0})
        if log._writer is None or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    log.write("train", step + 1, {"loss": 1.0})
    log.close()
    message = f"the event files of TensorBoard end at step {step} (No such file or directory); metrics.jsonl goes on\n"
    assert capfd.readouterr() == (message, "")
    assert len(records(tmp_path)) == step + 2
    assert threading.excepthook is before


def test_a_full_disk_is_reported_once_with_the_file(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    log = MetricsLog(tmp_path, tensorboard=False)
    log._file.close()
    log._file = full.open("ab")
    with pytest.raises(OSError, match="cannot write the metrics of step 4") as caught:
        log.write("train", 4, {"loss": 1.0})
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == "/dev/full"
    log.close()
