"""The images of the study of attention maps: labels and marked objects match the pixels."""

import dataclasses
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from recipes.object_images import (
    CANVAS,
    CROP,
    DIGIT,
    FRAGMENT,
    FRAGMENTS,
    PLATELET,
    RED,
    WHITE,
    Cells,
    ObjectImages,
    Photographs,
    crop_labels,
    object_canvas,
    on_canvas,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def write_mnist(folder: Path, train: int, test: int) -> None:
    """Writes digits of noise as idx files."""
    folder.mkdir(parents=True)
    for split, count in (("train", train), ("t10k", test)):
        images = torch.randint(256, (count, 28, 28), generator=generator(count), dtype=torch.uint8).numpy()
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, count, 28, 28) + images.tobytes())
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, count) + labels.tobytes())


def test_a_canvas_has_its_digit_at_the_marked_place_and_fragments_elsewhere() -> None:
    digits = torch.randint(1, 256, (9, DIGIT, DIGIT), dtype=torch.uint8)
    chosen = torch.tensor([3, 8, 0, 3, 5])
    found = on_canvas(digits, chosen, generator())
    assert found.images.shape == (5, 1, CANVAS, CANVAS)
    assert found.inside.shape == (5, CANVAS, CANVAS)
    places = set()
    for image, inside, digit in zip(found.images[:, 0], found.inside > 0, digits[chosen], strict=True):
        rows, columns = inside.any(1).nonzero()[:, 0], inside.any(0).nonzero()[:, 0]
        assert len(rows) == len(columns) == DIGIT
        assert not int(rows[0]) % FRAGMENT
        assert not int(columns[0]) % FRAGMENT
        places.add((int(rows[0]), int(columns[0])))
        assert torch.equal(image[inside].view(DIGIT, DIGIT), digit)
        pieces = (image.masked_fill(inside, 0).view(6, FRAGMENT, 6, FRAGMENT).amax((1, 3)) > 0).sum()
        assert FRAGMENTS - 4 <= pieces <= FRAGMENTS  # the digit covers at most four
    assert len(places) > 1


def test_the_generator_decides_the_canvases() -> None:
    digits, chosen = torch.randint(256, (5, DIGIT, DIGIT), dtype=torch.uint8), torch.arange(5)
    again = [on_canvas(digits, chosen, generator(seed)).images for seed in (1, 1, 2)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


def label_of(*cells: tuple[int, tuple[float, float, float, float]]) -> int:
    """The label of the crop with its corner at (10, 20)."""
    boxes = torch.tensor([box for _, box in cells], dtype=torch.float64).view(-1, 4)
    kind = torch.tensor([kind for kind, _ in cells], dtype=torch.long)
    return int(crop_labels(boxes, kind, torch.tensor([10]), torch.tensor([20])))


def test_a_crop_has_the_label_of_the_first_kind_of_cell_inside_it() -> None:
    within, half, tenth, beyond = (20, 10, 40, 30), (10, 10, 30, 30), (2, 10, 22, 30), (80, 70, 90, 80)
    assert label_of((RED, within)) == RED
    assert label_of((RED, within), (PLATELET, within), (WHITE, within)) == WHITE
    assert label_of((RED, within), (PLATELET, within), (WHITE, beyond)) == PLATELET
    assert label_of((WHITE, within), (PLATELET, half)) == WHITE
    assert label_of((PLATELET, within), (WHITE, half)) == -1
    assert label_of((RED, within), (PLATELET, half)) == -1
    assert label_of((RED, within), (WHITE, tenth)) == RED
    assert label_of((RED, within), (RED, half)) == RED
    assert label_of((RED, beyond)) == -1
    assert label_of() == -1


def write_cells(data: Path) -> np.ndarray:
    """Writes three images per split with a cell of each kind far from the others; the last test image has no white one.

    The channels of a pixel encode the index of its image, its row and its column.
    """
    images = np.stack(np.meshgrid(np.arange(9), np.arange(96), np.arange(128), indexing="ij"), -1).astype(np.uint8)
    boxes, kinds, of = [], [], []
    for image in range(9):
        for kind, (x, y) in ((RED, (10, 10)), (WHITE, (100, 60)), (PLATELET, (10, 70))):
            if image < 8 or kind != WHITE:
                boxes.append([x / 128, y / 96, (x + 16) / 128, (y + 16) / 96])
                kinds.append(kind)
                of.append(image)
    (data / "bccd").mkdir(parents=True)
    np.savez(
        data / "bccd" / "bccd_128x96.npz",
        images=images,
        boxes_xyxy=np.array(boxes, dtype=np.float32),
        box_class=np.array(kinds, dtype=np.uint8),
        box_image=np.array(of, dtype=np.int16),
        split=np.repeat(np.array([0, 1, 2], dtype=np.uint8), 3),
    )
    return images


def place_of(crop: Tensor) -> tuple[int, int, int]:
    """Image, top and left of a crop, mirrored or not, after checking that all pixels belong together."""
    image, rows, columns = crop.long()
    assert bool((image == image[0, 0]).all())
    assert rows[:, 0].sort().values.diff().tolist() == columns[0].sort().values.diff().tolist() == [1] * (CROP - 1)
    assert torch.equal(rows, rows[:, :1].expand_as(rows))
    assert torch.equal(columns, columns[:1].expand_as(columns))
    return int(image[0, 0]), int(rows.min()), int(columns.min())


def test_crops_of_cells_come_from_their_split_and_match_their_labels(tmp_path: Path) -> None:
    images = write_cells(tmp_path)
    cells = Cells(tmp_path)
    drawn, labels = cells.train(torch.arange(30), generator())
    assert drawn.shape == (30, 3, CROP, CROP)
    assert set(labels.tolist()) == {RED, WHITE, PLATELET}
    places = {RED: (10, 10), WHITE: (100, 60), PLATELET: (10, 70)}
    for crop, label in zip(drawn, labels.tolist(), strict=True):
        image, top, left = place_of(crop)
        x, y = places[label]
        assert image < 6
        assert left - 8 < x < left + CROP - 8
        assert top - 8 < y < top + CROP - 8
    held, kinds = cells.test(torch.arange(cells.num_test))
    assert set(kinds.tolist()) == {RED, WHITE, PLATELET}
    assert all(place_of(crop)[0] >= 6 for crop in held)
    assert bool((drawn[:, 1].int().diff(dim=1) < 0).any() & (drawn[:, 2].int().diff(dim=2) < 0).any())
    marked = cells.marked
    assert np.array_equal(marked.images, images[6:8].transpose(0, 3, 1, 2))
    assert bool((marked.inside[:, 60:76, 100:116] == 1).all())
    assert marked.inside.sum() == pytest.approx(2 * 256)


def test_photographs_are_shifted_or_mirrored_and_objects_are_marked(tmp_path: Path) -> None:
    (tmp_path / "cifar10_subset").mkdir()
    (tmp_path / "coco_cc_subset").mkdir()
    train = np.random.default_rng(0).integers(1, 256, (4, 32, 32, 3), dtype=np.uint8)
    np.savez(
        tmp_path / "cifar10_subset" / "cifar10_11k.npz",
        x_train=train,
        x_test=train[:1],
        y_train=np.array([3, 1, 2, 0], dtype=np.uint8),
        y_test=np.array([1], dtype=np.uint8),
        classes=np.array(["a", "b", "c", "d"]),
    )
    semantic = np.zeros((2, 192, 192), dtype=np.uint8)
    semantic[0, :96], semantic[1] = 7, 9
    np.savez(
        tmp_path / "coco_cc_subset" / "coco_cc_192px.npz",
        images=np.full((2, 192, 192, 3), 100, dtype=np.uint8),
        semantic=semantic,
        category_ids=np.array([7, 9]),
        category_isthing=np.array([1, 0], dtype=np.uint8),
    )
    photographs = Photographs(tmp_path)
    images, labels = photographs.train(torch.arange(4), generator())
    assert labels.tolist() == [3, 1, 2, 0]
    padded = torch.nn.functional.pad(torch.from_numpy(train).permute(0, 3, 1, 2), (4, 4, 4, 4))
    for own, wide in zip(images, padded, strict=True):
        views = [wide[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
        assert sum(torch.equal(own, view) or torch.equal(own.flip(2), view) for view in views) == 1
    assert photographs.marked.images.shape == (2, 3, 64, 64)
    assert bool((photographs.marked.images == 100).all())
    assert photographs.marked.inside.mean((1, 2)).tolist() == [0.5, 0.0]


def test_the_task_tests_and_marks_the_same_canvases(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", 12, 7)
    config = dataclasses.replace(object_canvas().task, data=str(tmp_path))
    task = config.build()
    assert isinstance(task, ObjectImages)
    assert (task.num_train, task.num_held_out("test")) == (12, 7)
    marked = dataclasses.replace(task.config, marked=True).build(task.facts)
    every = torch.arange(7)
    tested, shown = task.held_out_batch("test", every), marked.held_out_batch("test", every)
    assert torch.equal(tested["images"], shown["images"])
    assert tested["labels"].tolist() == list(range(7))
    mean, deviation = (torch.tensor(values) for values in (task.facts.mean, task.facts.deviation))
    torch.testing.assert_close(shown["images"] * deviation + mean, shown["pixels"])
    batch = task.train_batch(torch.arange(12), generator())
    assert torch.equal(batch["images"], task.train_batch(torch.arange(12), generator())["images"])
    drawn = task.train_batch(torch.arange(2_000) % 12, generator())["images"]
    assert abs(float(drawn.mean())) < 0.02
    assert float(drawn.std()) == pytest.approx(1, abs=0.02)
    assert task.model()(batch["images"]).shape == (12, 10)
    assert task.loss(task.model(), batch).shape == ()
