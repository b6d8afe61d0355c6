"""The comparison of kernels on pixels, at a tiny size."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.tasks import Segmentation
from fredholm.tasks.masks import open_masks
from fredholm.tasks.targets import ElementTarget
from recipes import segmentation as study
from recipes.segmentation import PLATELET, RED, SIDES, WHITE, Config, ellipses
from tests.refusals import refused
from tests.tasks.masks.build import squares

pytest.importorskip("kornia")
pytest.importorskip("matplotlib")


def write_boxes(folder: Path, count: int = 12) -> None:
    """Images of 16 x 32 pixels, each with one box of each kind that covers a third of it."""
    (folder / "bccd").mkdir()
    boxes = np.array([[k / 3, 0.1, (k + 1) / 3, 0.9] for k in range(3)] * count, np.float32)
    np.savez(
        folder / "bccd" / "bccd_128x96.npz",
        images=squares(count, (16, 32))[0],
        boxes_xyxy=boxes,
        box_class=np.tile([RED, WHITE, PLATELET], count),
        box_image=np.repeat(np.arange(count), 3),
        split=np.arange(count) % 3,
    )


def test_a_cell_is_the_ellipse_in_its_box() -> None:
    boxes = torch.tensor([[0.25, 0.0, 0.75, 1.0], [0.0, 0.0, 0.5, 0.5]], dtype=torch.float64)
    mask = ellipses(boxes, torch.tensor([RED, PLATELET]), (40, 80))
    assert [int(mask[place]) for place in ((20, 40), (10, 20), (0, 0), (39, 40))] == [1, 3, 0, 1]
    area = float((ellipses(boxes[:1], torch.tensor([RED]), (400, 800)) == 1).double().mean())
    assert area == pytest.approx(np.pi / 4 * 0.5, rel=5e-3)
    assert not (ellipses(boxes[:1], torch.tensor([RED]), (40, 80))[:, :20] > 0).any()
    both = torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2, dtype=torch.float64)
    for kind in ([WHITE, RED], [RED, WHITE]):
        assert ellipses(both, torch.tensor(kind), (8, 8))[4, 4] == 1 + WHITE


def test_sides_have_similar_numbers_of_parameters() -> None:
    facts = Segmentation.Facts(
        target=ElementTarget(names=study.CLASSES),
        channels=3,
        image_size=(96, 128),
        mean=(0.0,) * 3,
        deviation=(1.0,) * 3,
    )
    sizes = []
    for side in SIDES.values():
        model = study.run_of(side, Config(), rate=1e-3, seed=0).task.build(facts).model()
        sizes.append(sum(p.numel() for p in model.parameters()))
    middle = (max(sizes) + min(sizes)) / 2
    assert max(sizes) <= 1.05 * middle
    assert min(sizes) >= 0.95 * middle


@pytest.mark.long
def test_every_side_is_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    write_boxes(tmp_path)
    only = ("separable", "low rank, two scales")
    for name in only:
        side = dataclasses.replace(SIDES[name], embed_dim=8, patch_sizes=tuple(n // 2 for n in SIDES[name].patch_sizes))
        monkeypatch.setitem(study.SIDES, name, side)
    config = Config(data=tmp_path, out=tmp_path / "out", seeds=(0, 1), only=only, rates=(1e-3, 1e-2), epochs=1)
    study.main(config)
    found = open_masks(tmp_path / "out" / "bccd.npz")
    assert (len(found), found.classes) == (12, study.CLASSES)
    assert found.masks(torch.tensor([0])).unique().tolist() == [0, 1, 2, 3]
    report = json.loads((config.out / "results.json").read_text())
    assert list(report) == list(only)
    for expected in report.values():
        assert expected["rate"] in config.rates
        assert [set(run) for run in expected["runs"]] == [
            {"valid mean_iou", "valid accuracy", "test mean_iou", "test accuracy", "parameters"}
        ] * 2
        assert all(0 <= run["test accuracy"] <= 1 for run in expected["runs"])
    assert (config.out / "segmentation.png").stat().st_size > 1000
    assert "separable, " in capsys.readouterr().out
    monkeypatch.setattr(study, "measured", None)
    study.main(dataclasses.replace(config, only=only[:1]))  # reads the existing results
    assert json.loads((config.out / "results.json").read_text()) == report


def test_the_error_for_an_unknown_side_names_it() -> None:
    with refused(ValueError, "no side 'convolution'", "low rank"):
        Config(only=("convolution",))
