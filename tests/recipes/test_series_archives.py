"""The study of series archives: ranks and critical differences match the literature, and it runs from end to end."""

import json
from pathlib import Path

import numpy as np
import pytest

from fredholm.models import FilterBank
from recipes import series_archives as study
from recipes.series_archives import Config


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets of waves with two frequencies, with a split."""
    folder, drawn = tmp_path_factory.mktemp("archive"), np.random.default_rng(0)
    for name in ("one", "two"):
        arrays: dict[str, np.ndarray] = {}
        for part, n in (("train", 18), ("test", 10)):
            labels = np.arange(n) % 2
            waves = np.sin(np.arange(24) * (0.4 + 0.5 * labels[:, None]) + drawn.uniform(0, 6, (n, 1)))
            arrays |= {f"{part}_values": waves.astype(np.float32), f"{part}_label": labels}
        np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    return folder


def test_ties_share_ranks_and_only_sets_with_results_of_all_sides_count() -> None:
    results = [
        {"set": name, "side": side, "seed": seed, "accuracy": accuracy + 0.01 * seed}
        for name, row in {"a": (0.9, 0.8, 0.8), "b": (0.5, 0.7, 0.6), "c": (1.0, None, 0.2)}.items()
        for side, accuracy in zip(("filter_bank", "minirocket", "dtw"), row, strict=True)
        for seed in (0, 2)
        if accuracy is not None
    ]
    table = study.table_of(results)
    assert list(table) == ["a", "b"]
    assert table["b"] == pytest.approx({"filter_bank": 0.51, "minirocket": 0.71, "dtw": 0.61})
    assert study.mean_ranks(table) == {"filter_bank": 2.0, "minirocket": 1.75, "dtw": 2.25}


def test_the_critical_difference_matches_the_tables() -> None:
    # Demsar (2006), table 5 and its example: q = 2.569 for four sides, and 1.25 with 14 sets
    assert study.critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


def test_it_runs_and_results_are_read_again(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(data=(archive,), sides=("filter_bank", "ckcnn"), seeds=(0,), out=tmp_path / "out", epochs=1)
    study.main(config)
    out = capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(r["set"], r["side"]) for r in results] == [
        (name, side) for name in ("one", "two") for side in ("filter_bank", "ckcnn")
    ]
    assert all(r["accuracy"] >= 0.9 for r in results if r["side"] == "filter_bank")
    assert (tmp_path / "out" / "series_archives.png").is_file()
    monkeypatch.setattr(study, "RUN", {})
    study.main(config)
    assert out.endswith(capsys.readouterr().out)


def test_variants_are_compared_without_the_test_split(
    archive: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = {"small": FilterBank.Config(num_thresholds=4, num_groups=2)}
    monkeypatch.setattr(study, "VARIANTS", small)
    with np.load(archive / "one.npz") as arrays:
        shuffled = {name: array[::-1] if name == "test_label" else array for name, array in arrays.items()}
    np.savez(tmp_path / "one.npz", **shuffled)
    lines = []
    for folder in (archive / "one.npz", tmp_path / "one.npz"):
        study.main(Config(data=(folder,), seeds=(0,), cross_validate=True, out=tmp_path / "none"))
        lines.append(capsys.readouterr().out.splitlines()[-1].split())
    assert lines[0] == lines[1]
    assert (lines[0][0], float(lines[0][2]) >= 85) == ("small", True)
    assert not (tmp_path / "none").exists()


def test_missing_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="gone does not exist; pass --data FILE_OR_FOLDER"):
        study.main(Config(data=(tmp_path / "gone",), sides=("filter_bank",), out=tmp_path / "out"))
