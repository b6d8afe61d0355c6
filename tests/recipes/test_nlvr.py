"""The comparison of one domain with two streams on NLVR, at a tiny size."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from recipes import nlvr
from recipes.nlvr import SIDES, Config
from tests.refusals import refused


@pytest.fixture
def tiny(tmp_path: Path) -> Config:
    drawn = np.random.default_rng(0)
    for name, count in (("dev", 48), ("test", 8)):
        boxes = drawn.integers(0, 255, (count, 3, 20, 20, 3), dtype=np.uint8)
        sentence = [f"there are {i // 3} of them {name}" for i in range(count)]
        np.savez(tmp_path / f"nlvr_{name}.npz", boxes=boxes, sentence=sentence, label=np.arange(count) % 3 > 0)
    sides = ("joint, uniform", "two streams, cross-attention", "text alone")
    out = tmp_path / "out"
    return Config(data=tmp_path, out=out, sides=sides, seeds=(0, 1), epochs=1, image_size=10, patch_size=5)


@pytest.mark.long
def test_every_side_is_measured_on_validation_and_test(tiny: Config) -> None:
    nlvr.main(tiny)
    report = json.loads((tiny.out / "results.json").read_text())
    assert report.keys() == {"majority", *tiny.sides}
    assert report["majority"]["test"] == pytest.approx(5 / 8)
    for side in tiny.sides:
        assert report[side]["rate"] in tiny.rates
        assert [run.keys() for run in report[side]["runs"]] == [{"valid", "test", "parameters"}] * 2
        assert all(0 <= run[split] <= 1 for run in report[side]["runs"] for split in ("valid", "test"))
    nlvr.main(dataclasses.replace(tiny, sides=("text alone",)))  # reads the existing results
    assert json.loads((tiny.out / "results.json").read_text()) == report


def test_no_sentence_of_the_validation_split_occurs_in_training(tiny: Config) -> None:
    with np.load(nlvr.prepared(tiny)) as found:
        assert found["images"].shape == (56, 3, 10, 10, 3)
        text, split = found["text"], found["split"]
    assert {name: len(text[split == name]) for name in ("train", "valid", "test")}["test"] == 8
    assert 0 < (split == "valid").sum() < 24
    assert not set(text[split == "train"]) & set(text[split == "valid"])


def test_sides_have_similar_numbers_of_parameters(tiny: Config) -> None:
    sizes = {}
    for side in SIDES:
        model = nlvr.run_of(tiny, side, 1e-3, 0).task.build().model()
        sizes[side] = sum(p.numel() for p in model.parameters())
    joint = sizes["joint, balanced"]
    for side in ("two streams, cross-attention", "two streams, concatenation", "each box apart"):
        assert abs(sizes[side] / joint - 1) < 0.05, sizes
    assert all(0.8 < size / joint < 1.05 for size in sizes.values()), sizes


def test_the_error_for_an_unknown_side_names_it() -> None:
    with refused(ValueError, "no side 'joint'", "joint, balanced"):
        Config(sides=("joint",))
