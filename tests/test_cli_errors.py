"""Messages of the command line on hostile names, files and folders, and code that it must never run."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm import cli
from fredholm.cli.error_reporting import error_line, exit_code
from fredholm.cli.json_text import json_text
from fredholm.cli.page import leave_page
from fredholm.cli.row_formats import FORMATS, FormatName
from fredholm.cli.streams import FAILURE, USER_ERROR
from fredholm.tasks import TASKS
from fredholm.tasks.files.terminal_text import visible
from fredholm.training.interruption import InterruptedRunError
from fredholm.training.run import Run
from tests.command_line import call

HOSTILE = "a\x1b]0;title\x07\x9b31m\u202e\u2066gnp.\u2028\u2029\r\n\x7fb"
TINY = [
    *("--task.model.embed-dim", "12", "--task.model.num-heads", "2", "--task.model.depth", "1"),
    *("--training.epochs", "1", "--training.no-tensorboard"),
]


def check_harmless(text: str, *, lines: int) -> None:
    """Asserts that the text has this number of lines, each of less than 500 printable characters."""
    assert text.count("\n") == lines
    assert text.replace("\n", "").replace("\t", "").isprintable(), ascii(text)
    assert max(map(len, text.splitlines())) < 500


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pictures; the name of one class holds terminal control sequences."""
    folder = tmp_path_factory.mktemp("hostile")
    names = np.array([HOSTILE, "plain"] * 10)
    x = np.random.default_rng(0).integers(0, 255, (20, 8, 8), dtype=np.uint8)
    np.savez(folder / "data.npz", x=x, y=names)
    command = ["train", "images", str(folder / "data.npz"), "--run-dir", str(folder / "run"), *TINY]
    assert cli.main(command) == 0
    Image.fromarray(x[0]).save(folder / "one.png")
    return folder / "run"


def test_control_characters_are_escaped_and_others_stay() -> None:
    assert visible(HOSTILE) == r"a\x1b]0;title\x07\x9b31m\u202e\u2066gnp.\u2028\u2029\r\n\x7fb"
    for text in ("naïve 日本語 ∫κ", "می\u200cخواهم", "a\u00a0b\u3000c", "👩\u200d🔬"):
        assert visible(text) == text
    assert visible("a\tb\x1b", keep="\t") == "a\tb\\x1b"
    assert visible("\udc80\ud800") == r"\udc80\ud800"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"{HOSTILE}: is bad; do this"),
        ValueError("x" * 10**6 + " and so on; do this"),
        OSError(errno.EISDIR, "Is a directory", HOSTILE),
        OSError(errno.ENAMETOOLONG, "File name too long", "y" * 5000),
        ImportError(HOSTILE),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
)
def test_every_error_is_one_harmless_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> int:
        raise error

    assert exit_code(fails) in (USER_ERROR, FAILURE)
    out, err = capsys.readouterr()
    assert out == ""
    check_harmless(err, lines=1)
    assert err.startswith("error: ")
    if "do this" in str(error):
        assert err.endswith("do this\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_error_like_others_with_its_own_code(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared = list[bool]()

    def run() -> int:
        try:
            signal.raise_signal(number)
        finally:
            cleared.append(True)
        return 0

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    kinds = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {each: signal.signal(each, handler) for each, handler in kinds.items()}
    try:
        assert exit_code(run) == 128 + number
        assert {each: signal.getsignal(each) for each in kinds} == kinds
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert cleared == [True]
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_signal_while_the_page_is_written_says_how_to_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object, **settings: object) -> None:
        raise KeyboardInterrupt(signal.SIGTERM)

    monkeypatch.delenv("FREDHOLM_REPORT", raising=False)
    monkeypatch.setattr("fredholm.cli.page.missing_extra", lambda: None)
    monkeypatch.setattr("fredholm.cli.page.write_page", interrupted)
    with pytest.raises(InterruptedRunError, match=f"fredholm report {tmp_path} writes it$") as caught:
        leave_page(tmp_path, TASKS, "cpu")
    assert caught.value.signal_number == signal.SIGTERM


ENDS_WITH_CTRL_C = """
import os, signal, sys, threading
from fredholm.cli.error_reporting import exit_code
from fredholm.training.interruption import InterruptedRunError

class InterruptedOnceMore:
    def write(self, text):
        os.write(2, text.encode())
        os.kill(os.getpid(), signal.SIGINT)
    def flush(self):
        pass

def run():
    sys.stderr = InterruptedOnceMore()
    raise InterruptedRunError(signal.SIGINT, "interrupted; step 6 is saved")

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(exit_code(run, ends_process=True))
"""


@pytest.mark.slow
def test_ctrl_c_after_the_last_message_adds_no_text() -> None:
    process = subprocess.run([sys.executable, "-c", ENDS_WITH_CTRL_C], capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGINT
    assert process.stderr in ("interrupted; step 6 is saved", "interrupted; step 6 is saved\n")


def test_objects_are_not_garbage_collected_when_the_process_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    before, frozen = signal.getsignal(signal.SIGINT), []
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(True))
    monkeypatch.setattr("sys.argv", ["fredholm", "nothing"])
    try:
        assert (cli.main(["nothing"]), frozen) == (2, [])  # called from Python, where the process goes on
        assert (cli.main(), frozen) == (2, [True])
    finally:
        signal.signal(signal.SIGINT, before)


LATE = """
import ctypes, os, signal, sys
from fredholm.cli.error_reporting import exit_code

set_handler = ctypes.CDLL(None).signal
set_handler.restype, set_handler.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]

def run():
    ours = set_handler(signal.SIGINT, None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    set_handler(signal.SIGINT, ours)
    os.kill(os.getpid(), signal.SIGINT)
    print("goes on")
    return 0

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(exit_code(run))
"""
"""A signal arrives just before its handler is removed. Without care Python prints a traceback and goes on."""


@pytest.mark.slow
def test_ctrl_c_just_before_its_handler_is_removed_ends_the_process() -> None:
    process = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "interrupted\n")


def test_a_command_may_run_in_any_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(exit_code, lambda: 3).result() == 3


def test_a_warning_is_shown_once_per_command(capsys: pytest.CaptureFixture[str]) -> None:
    def warns() -> int:
        warnings.simplefilter("default")
        for _ in range(2):
            warnings.warn("3 edges listed one way: taken both ways", stacklevel=1)
            with warnings.catch_warnings():  # as some modules do when they are imported
                warnings.simplefilter("ignore")
        warnings.warn("another one", stacklevel=1)
        return 0

    for _ in range(2):
        assert exit_code(warns) == 0
        shown = "warning: 3 edges listed one way: taken both ways\nwarning: another one\n"
        assert capsys.readouterr().err == shown


def test_other_errors_of_torch_are_not_user_errors() -> None:
    def fails() -> int:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        exit_code(fails)
    assert error_line(RuntimeError("mat1")) == "mat1"


def test_an_allocation_that_torch_refuses_is_reported_as_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)
    assert error_line(caught.value).startswith("out of memory")


@pytest.mark.parametrize("command", [["train", "images"], ["evaluate"], ["predict", "RUN"], ["train"], []])
def test_hostile_names_are_one_line(
    command: list[str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").symlink_to(run)
    long = "z" * 240
    (tmp_path / long).write_text("no picture")
    (tmp_path / HOSTILE).write_text("no picture")
    for name in (HOSTILE, long):
        code, out, err = call(capsys, *command, name)
        assert code == 2
        check_harmless(err, lines=1)
        assert out == "" or command[-1:] == ["train"]


def test_rows_are_harmless_on_a_terminal_and_unaltered_elsewhere(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", run, run.parent / "one.png", "--probabilities", "--format"]
    column = f"probability of {HOSTILE}"
    code, whole, _ = call(capsys, *command, "csv")
    assert code == 0
    assert column in whole
    assert call(capsys, *command, "csv", "--output", tmp_path / "a.csv")[0] == 0
    assert (tmp_path / "a.csv").read_bytes() == whole.encode()
    code, out, _ = call(capsys, *command, "json")
    check_harmless(out, lines=1)
    assert column in json.loads(out)[0]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for form, lines in (("table", 2), ("csv", 2), ("json", 1)):
        code, out, _ = call(capsys, *command, form)
        assert code == 0
        check_harmless(out, lines=lines)
    code, out, err = call(capsys, "train", "images", run.parent / "data.npz", "--dry-run")
    assert code == 0
    check_harmless(out + err, lines=(out + err).count("\n"))


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_table_keeps_its_rows_and_json_its_values(form: FormatName) -> None:
    row = {"file": "a\tb\nc\rd", "class": HOSTILE, "p": 0.5, "q": math.nan, "r": -2.134e-6}
    written = FORMATS[form]()
    lines = [*written.lines(row), *written.last_lines()]
    if form == "json":
        assert json.loads("".join(lines)) == [row | {"q": None}]
    if form == "table":
        assert [line.count("\t") for line in lines] == [4, 4]
        assert lines[1].endswith("\t0.5000\tnan\t-2.13e-06")
        assert not any("\n" in line or "\r" in line for line in lines)


def test_numbers_that_json_does_not_have_are_null() -> None:
    found = json_text(
        {"a": math.nan, "b": [math.inf, 1.5, (2, -math.inf)], "c": None, "d": True, "é": "\x1b\U000e0001"}
    )
    assert found == r'{"a": null, "b": [null, 1.5, [2, null]], "c": null, "d": true, "é": "\u001b\udb40\udc01"}'
    assert json.loads(json_text({"a": ["b\n", 1]}, indent=2)) == {"a": ["b\n", 1]}


def test_evaluate_prints_valid_json(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Run, "evaluate", lambda *_: {"accuracy": math.nan, "loss": math.inf})
    code, out, _ = call(capsys, "evaluate", run, "--json")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(out, parse_constant=refuse)
    assert (code, found["accuracy"], found["loss"]) == (0, None, None)


@pytest.mark.parametrize("option", [["--init", "~nobody0/x"], ["--init=~nobody0/x"], ["--task.data", "~nobody0/x"]])
def test_a_home_folder_of_an_unknown_user_is_reported(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "train", "digits", *option, "--dry-run")
    assert (code, err) == (2, "error: ~nobody0/x: there is no home folder of that user; write the path in full\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["predict", "", "x.csv"], "RUN is empty; expected a run folder"),
        (["evaluate", " "], "RUN is empty; expected a run folder"),
        (["predict", "RUN", ""], "FILES... cannot be ''"),
        (["predict", "RUN", "x.csv", "--save", ""], "--save: expected PATH; got ''"),
        (["predict", "RUN", "x.csv", "--recipe="], "no recipe or task called ''"),
        (["report", ""], "RUN... cannot be ''"),
        (["export", "", "--format", "onnx"], "RUN is empty; expected a run folder"),
        (["train", "table", "x.csv", "--run-dir", ""], "--run-dir: expected PATH; got ''"),
        (["train", "table", "x.csv", "--init", ""], "--init is empty; name the folder of a run"),
        (["compare", "images", "digits", "--run-dir="], "--run-dir: expected PATH; got ''"),
    ],
)
def test_an_empty_name_is_not_the_current_folder(
    run: Path,
    command: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(run)
    (tmp_path / "x.csv").write_text("a,label\n1,b\n2,c\n")
    words = [{"RUN": str(run), "x.csv": str(tmp_path / "x.csv")}.get(word, word) for word in command]
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_a_near_option_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "images", "digits", "--training.shart"]) == 2
    assert "(perhaps --training.shard);" in capsys.readouterr().err
    assert cli.main(["train", "images", "digits", "--task.model", "vit", "--task.model.no-patch-bais"]) == 2
    assert "(perhaps --task.model.no-patch-bias or" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x.zip", "X.TAR.GZ", "x.7z"])
@pytest.mark.parametrize("task", [task.command for task in TASKS])
def test_an_archive_as_data_is_refused(
    task: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"PK")
    assert cli.main(["train", task, str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / name} is an archive; unpack it, and pass the file")


def test_an_archive_to_predict_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK")
    assert cli.main(["predict", str(run), str(tmp_path / "x.zip")]) == 2
    assert f"{tmp_path / 'x.zip'} is an archive; unpack it, and pass the file" in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["0", "1", "5", "39", "-3", "many", ""])
def test_help_is_complete_at_any_width_of_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for command in ("info", "predict"):
        code, out, _ = call(capsys, command, "--help")
        assert (code, "--help" in out) == (0, True)
    assert call(capsys, "info", "--jsno")[0] == 2
    assert os.environ["COLUMNS"] == columns


def test_an_unreadable_file_is_not_called_missing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    locked, stat = tmp_path / "locked.png", Path.stat
    locked.touch()

    def refusing(path: Path, **options: bool) -> os.stat_result:
        if path == locked:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refusing)
    code, _, err = call(capsys, "predict", run, locked)
    assert (code, err) == (2, f"error: {locked}: may not be read (Permission denied); change its permissions\n")
    for name, expected in (
        ("none.png", "there is no such file or folder"),
        ("x" * 300, "cannot be read (File name too"),
    ):
        code, _, err = call(capsys, "predict", run, tmp_path / name)
        assert code == 2
        assert f"{name}: {expected}" in err


def test_a_config_that_cannot_be_used_is_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unusable(*_: object, **__: object) -> None:
        raise ZeroDivisionError(HOSTILE)

    monkeypatch.setattr("fredholm.tasks.ImageLearning.Config.build", unusable)
    code, _, err = call(capsys, "evaluate", run)
    assert code == 2
    assert err.startswith(f"error: {run}: its config cannot be used (ZeroDivisionError: a")
    check_harmless(err, lines=1)


PLANTED = "from pathlib import Path\nPath('ran').touch()\n"


def started(folder: Path, *command: str | Path) -> "subprocess.CompletedProcess[str]":
    """Runs a command on this source in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_nothing_of_the_working_folder_is_imported(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("fredholm")
    if not command.exists():
        pytest.skip("the command is not installed here")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "digits.py").write_text(f"{PLANTED}def digits() -> 'Run.Config': ...\n")
    for name in ("json", "torch", "numpy", "tyro", "fredholm", "sitecustomize", "recipes/__init__", "digits"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    found = started(tmp_path, command, "train", "digits", "--help")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("usage: fredholm train digits")
    assert not (tmp_path / "ran").exists()


@pytest.mark.long
def test_late_imports_do_not_come_from_the_working_folder(run: Path, tmp_path: Path) -> None:
    (tmp_path / "torchmetrics.py").write_text(PLANTED)
    found = started(tmp_path, sys.executable, "-m", "fredholm", "evaluate", run)
    assert (found.returncode, found.stderr) == (0, "")
    assert not (tmp_path / "ran").exists()
