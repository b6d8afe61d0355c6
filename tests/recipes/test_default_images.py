"""The study of the default of images runs from end to end, with networks of one size on one task."""

import json
from pathlib import Path

import numpy as np
import pytest

from recipes import default_images as study
from recipes.default_images import Config
from tests.refusals import refused


@pytest.mark.long
def test_it_reads_the_test_split_with_the_best_run_of_each_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    labels = np.arange(600) % 2
    images = draw.integers(0, 128, (600, 16, 16, 3)) + 127 * labels[:, None, None, None]
    np.savez(tmp_path / "images.npz", x=images.astype(np.uint8), y=labels)
    study.main(Config(data=str(tmp_path / "images.npz"), rates=(1e-3, 4e-3), seconds=0.5, out=tmp_path / "out"))
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(row["side"], row["rate"]) for row in rows] == [
        (side, rate) for side in study.SIDES for rate in (1e-3, 4e-3)
    ]
    sizes = [row["parameters"] for row in rows]
    assert max(sizes) <= (1 + 2 * study.TOLERANCE) * min(sizes)
    for side in study.SIDES:
        own = [row for row in rows if row["side"] == side]
        read = [row for row in own if "test" in row]
        assert len(read) == 1
        assert read[0]["valid"] == max(row["valid"] for row in own)
    assert "test accuracy" in capsys.readouterr().out


def test_few_images_have_no_network_to_compare(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", x=np.zeros((40, 16, 16, 3), np.uint8), y=np.arange(40) % 2)
    with refused(ValueError, "images is fitted in closed form; give more images"):
        study.main(Config(data=str(tmp_path / "images.npz"), out=tmp_path / "out"))
