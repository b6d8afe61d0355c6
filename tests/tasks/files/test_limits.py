"""Memory that small files would take is checked before it is allocated, and costs of large ones are proportional."""

import os
from pathlib import Path

import numpy as np
import pytest

from fredholm.tasks.files import limits
from fredholm.tasks.files.data_files import files_below, open_file, user_path
from fredholm.tasks.files.limits import check_counted, check_expansion, check_pixels
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.files.table_text import first_repeated
from fredholm.tasks.files.terminal_text import LONGEST, one_line
from fredholm.tasks.inputs import Kinds
from fredholm.tasks.series import open_series
from fredholm.tasks.series.ts_file import _parts
from tests.refusals import refused


def test_the_limit_is_a_constant_or_a_multiple_of_the_file() -> None:
    check_expansion("it", limits.FREE_BYTES, 1, "save less")
    check_expansion("it", 100 << 30, 1 << 30, "save less")
    message = "it would take 128.0 MiB; the limit is 128.0 MiB, for the 1 bytes that are there; save less"
    with refused(ValueError, message):
        check_expansion("it", limits.FREE_BYTES + 1, 1, "save less")
    with refused(ValueError, "it would take 100.0 GiB; the limit is 100.0 GiB, for the 1.0 GiB that are there"):
        check_expansion("it", (100 << 30) + 1, 1 << 30, "save less")


def test_counts_and_pixels_are_limited() -> None:
    check_counted("classes", limits.COUNTED, "name them")
    with refused(ValueError, "classes would be 1,000,001; the limit is 1,000,000; name them"):
        check_counted("classes", limits.COUNTED + 1, "name them")
    check_pixels(1, limits.PIXELS, "it has", "scale it down")
    with refused(ValueError, "it has 17000 x 10000 pixels; the limit is 89,478,485 in all; scale it down"):
        check_pixels(17_000, 10_000, "it has", "scale it down")


def test_messages_are_one_short_printable_line() -> None:
    assert one_line(" a\n\n  \x1b[2J\u202eb\0\u2028c\n") == "a \\x1b[2J\\u202eb\\x00 c"
    assert one_line("two  blanks\u200cof a name") == "two  blanks\u200cof a name"
    long = one_line("start " + "x" * 1000 + " end")
    assert (len(long), long[:6], long[-4:]) == (LONGEST, "start ", " end")

    @reads_data
    def read(path: Path, error: Exception) -> None:
        raise error

    for error, message in (
        (ValueError("is\nbroken"), "some/a.csv: is broken"),
        (PermissionError(13, "Permission denied", "some/a.csv"), "some/a.csv: cannot be read (Permission denied)"),
        (MemoryError(), "some/a.csv: it does not fit into memory"),
        (RecursionError(), "some/a.csv: it is nested too deeply"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "some/a.csv: it does not fit into memory"),
    ):
        with refused(ValueError, message):
            read(Path("some/a.csv"), error)
    with pytest.raises(RuntimeError, match="a bug"):
        read(Path("a.csv"), RuntimeError("a bug"))


def test_only_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(OSError, match="it is a pipe, and no file"):
        open_file(tmp_path / "pipe.csv")
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(OSError, match="it is a device, and no file"):
        open_file("/dev/null")
    (tmp_path / "a.csv").write_text("x")
    with open_file(tmp_path / "a.csv") as file:
        assert file.read() == b"x"


def test_invalid_paths_are_refused() -> None:
    with refused(ValueError, "~nobody-at-all/a: there is no home folder of that user"):
        user_path("~nobody-at-all/a")
    with refused(ValueError, "it has a NUL character"):
        user_path("a\0b")
    assert user_path("~/a") == Path.home() / "a"


def test_folders_that_contain_themselves_are_walked_once(tmp_path: Path) -> None:
    (tmp_path / "a" / ".hidden").mkdir(parents=True)
    for file in ("a/1.csv", "a/.2.csv", "a/.hidden/3.csv"):
        (tmp_path / file).write_text("x")
    for name in "pqr":
        (tmp_path / "a" / name).symlink_to(tmp_path)
    assert list(files_below(tmp_path)) == [tmp_path / "a" / "1.csv"]
    assert Kinds(suffixes=(".csv",)).listed([tmp_path]).files == [tmp_path / "a" / "1.csv"]
    others = Kinds(suffixes=(".csv",), apart_from=("1.csv",))
    assert others.listed([tmp_path]).files == []
    assert others.listed([tmp_path / "a" / "1.csv"]).files == [tmp_path / "a" / "1.csv"], "which is named"


def test_the_first_duplicate_name_is_found() -> None:
    assert first_repeated(["a", "b", "c"]) is None
    assert first_repeated(["a", "b", "c", "b", "a"]) == 3


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("1,2:3:a", ["1,2", "3", "a"]),
        ("(2026-01-01T00:30,1):(1,2):a", ["(2026-01-01T00:30,1)", "(1,2)", "a"]),
        ("(1:2(3:4):5", ["(1", "2(3:4)", "5"]),
        (":", ["", ""]),
        ("a:b)c:d", ["a:b)c", "d"]),
    ],
)
def test_channels_of_a_line(line: str, parts: list[str]) -> None:
    assert _parts(line) == parts


def test_dimensions_take_no_memory_before_a_line_has_them(tmp_path: Path) -> None:
    (tmp_path / "a.ts").write_text("@dimensions 300000000\n@data\n1:2\n")
    with refused(ValueError, "a.ts, line 3: has 2 channels; expected 300000000, as @dimensions says"):
        open_series(tmp_path / "a.ts")


def test_one_long_row_among_many_short_ones_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\t1\n" * 4000 + "b" + "\t1" * 20_000 + "\n")
    with refused(ValueError, "4,001 series, padded to the longest of 20,000 samples,", "cut the longest"):
        open_series(tmp_path / "a.tsv")


def test_labels_without_names_are_counted_up_to_a_limit(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2, 2), np.uint8), y=np.array([0, 400_000_000]))
    from fredholm.tasks.images import open_images

    with refused(ValueError, "classes up to the label 400000000 would be 400,000,001; the limit is 1,000,000"):
        open_images(tmp_path / "a.npz")


def test_reads_are_limited_to_the_size_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with open_file(tmp_path / "a") as file:
        assert (file.read(1), file.read(1 << 62), file.read(1 << 62), file.read()) == (b"a", b"bc", b"", b"")
