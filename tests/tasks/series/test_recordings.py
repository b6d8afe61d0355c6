"""Sound recordings in class folders or listed by a table."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from fredholm.tasks import SeriesLearning
from fredholm.tasks.series import SeriesSet, open_series, read_series
from fredholm.tasks.series.recordings import Recordings
from fredholm.training import Run, TrainingConfig, train
from tests.refusals import refused


def tone(frequency: float, length: int, rate: int = 800, channels: int = 1) -> np.ndarray:
    wave = 0.5 * np.sin(2 * np.pi * frequency * np.arange(length) / rate)
    return np.stack([wave / (c + 1) for c in range(channels)], 1)


def write(path: Path, values: np.ndarray, rate: int = 800, subtype: str | None = None) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, values, rate, subtype)
    return values


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six recordings of two classes, of 40 to 45 samples."""
    for i in range(6):
        write(tmp_path / ("high", "low")[i % 2] / f"{i}.wav", tone((200, 50)[i % 2], 40 + i))
    return tmp_path


def test_recordings_in_class_folders_are_read_on_demand(folder: Path) -> None:
    found = open_series(folder)
    whole = found.train
    assert isinstance(whole, Recordings)
    assert (found.is_given, whole.is_regular, whole.spacing, whole.channels) == (False, True, 1 / 800, ("channel_0",))
    assert whole.names == ("high/0.wav", "high/2.wav", "high/4.wav", "low/1.wav", "low/3.wav", "low/5.wav")
    assert whole.lengths.tolist() == [40, 42, 44, 41, 43, 45]
    assert whole.extents.tolist() == pytest.approx([(length - 1) / 800 for length in whole.lengths.tolist()], rel=1e-12)
    some = whole.read(torch.tensor([4, 0]))
    assert some.answers is not None
    assert (some.answers.names, some.answers.values.tolist()) == (("high", "low"), [1, 0])
    assert some.values.dtype == torch.float32
    # 16-bit samples
    assert torch.allclose(some.values[0, :, 0].double(), torch.from_numpy(tone(50, 43)[:, 0]), atol=2**-15)
    assert some.values[1, 40:].isnan().all()
    assert [len(chunk) for chunk in whole.chunks()] == [6]
    assert whole.in_memory().lengths.tolist() == whole.lengths.tolist()


@pytest.mark.parametrize(
    ("suffix", "subtype", "error"),
    [
        (".wav", "PCM_U8", 2**-7),
        (".WAV", "PCM_24", 2**-23),
        (".wav", "FLOAT", 1e-7),
        (".flac", None, 2**-15),
        (".ogg", None, 0.1),
        (".mp3", None, 0.1),
        (".aiff", None, 2**-15),
    ],
)
def test_kinds_of_files(tmp_path: Path, suffix: str, subtype: str | None, error: float) -> None:
    expected = write(tmp_path / f"a{suffix}", tone(440, 16_000, 16_000, channels=2), 16_000, subtype)
    found = read_series(tmp_path / f"a{suffix}", channels=("left", "right"))
    assert (found.spacing, found.channels, found.names) == (1 / 16_000, ("left", "right"), (f"a{suffix}",))
    assert found.values.shape == (1, 16_000, 2)
    assert float((found.values[0].double() - torch.from_numpy(expected)).abs().max()) <= error


def test_folders_of_splits_give_the_split(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        for i, name in enumerate(("high", "low")):
            write(tmp_path / split / name / "1.wav", tone(100, 20 + i))
    found = open_series(tmp_path)
    assert found.is_given
    for split, part in (("train", found.train), ("valid", found.valid), ("test", found.test)):
        assert part is not None
        assert part.names == (f"{split}/high/1.wav", f"{split}/low/1.wav")
        assert part.keys.strata == [0, 1]


def test_a_table_lists_recordings_with_their_targets_and_splits(folder: Path) -> None:
    rows = [f"{('high', 'low')[i % 2]}/{i}.wav,{i / 2},{('train', 'test')[i == 3]}" for i in range(5)]
    (folder / "labels.csv").write_text("\n".join(["file,label,split", *rows]))
    with pytest.warns(UserWarning, match="left out 1 recording that labels.csv does not name"):
        found = open_series(folder)
    assert found.test is not None
    assert (found.train.names[-1], found.test.names) == ("high/4.wav", ("low/3.wav",))
    assert found.test.answers is not None
    assert found.test.answers.values.tolist() == [[1.5]]


def test_recordings_of_several_rates_have_times(folder: Path) -> None:
    write(folder / "low" / "fast.wav", tone(50, 80, 1600), 1600)
    found = open_series(folder).train
    assert isinstance(found, SeriesSet)
    assert found.times is not None
    at = found.names.index("low/fast.wav")
    assert found.times[at, :80].tolist() == [k / 1600 for k in range(80)]
    assert found.times[0, :40].tolist() == [k / 800 for k in range(40)]


def test_unreadable_recordings_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = folder / "low" / "7.wav"
    for content, message in (
        (b"no sound", "7.wav: cannot be decoded; expected .wav, .flac"),
        (b"", "cannot be decoded"),
    ):
        broken.write_bytes(content)
        with refused(ValueError, message):
            open_series(folder)
    write(broken, np.empty((0, 1)))
    with refused(ValueError, "7.wav: has no samples; expected at least one"):
        open_series(folder)
    write(broken, tone(50, 40, channels=2))
    with refused(ValueError, "7.wav: has 2 channels, and", "0.wav 1 channel; give all as many"):
        open_series(folder)
    with refused(ValueError, "7.wav: has 2 channels; expected 1: channel_0"):
        read_series(broken, channels=("channel_0",))
    values = tone(50, 40)
    values[7] = np.inf
    write(broken, values, subtype="FLOAT")
    with refused(ValueError, "low/7.wav: sample 7 of channel 'channel_0' is infinite"):
        open_series(folder)
    broken.unlink()
    with refused(ValueError, "target is 'number', but the folders of", "are classes; leave it out, or add labels.csv"):
        open_series(folder, kind="number")
    with refused(ValueError, "low: nothing is known of its recordings; put them into one subfolder a class"):
        open_series(folder / "low")
    with refused(ValueError, "1.wav: the series have no labels"):
        open_series(folder / "low" / "1.wav")
    (folder / "labels.csv").write_text("file,label\nlow/9.wav,low\n")
    with refused(ValueError, "labels.csv: line 2: there is no recording 'low/9.wav' below"):
        open_series(folder)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(
        ImportError, '1.wav: recordings are read by soundfile, which is missing: pip install "fredholm[audio]"'
    ):
        read_series(folder / "low" / "1.wav")


def test_a_file_whose_header_has_the_wrong_length_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(frames=41, samplerate=800, channels=1)
    monkeypatch.setattr(soundfile, "info", lambda _: found)
    with refused(ValueError, "0.wav: says that it has 41 samples, and has 40; write it again"):
        open_series(folder)


@pytest.mark.slow
def test_a_run_on_recordings(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for i in range(60):
        wave = tone((200, 50)[i % 2] * draw.uniform(0.8, 1.2), int(draw.integers(100, 200)))
        write(tmp_path / "sounds" / ("high", "low")[i % 2] / f"{i}.wav", wave + draw.normal(0, 0.05, wave.shape))
    task, schedule, _ = SeriesLearning.Config(data=str(tmp_path / "sounds")).recommended("small")
    config = Run.Config(task=task, training=TrainingConfig(**schedule.settings, tensorboard=False))
    assert train(config, tmp_path / "run").metrics["accuracy"] == 1.0
    write(tmp_path / "new.flac", tone(210, 150))
    (row,) = Run(tmp_path / "run").predict([tmp_path / "new.flac"])
    assert (row["class"], row["series"]) == ("high", "")
