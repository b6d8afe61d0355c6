from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.tasks.images import InMemoryImages
from fredholm.tasks.splits.split_marks import SplitMarks
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import ClassAnswers
from tests.tasks.images.known import labels_of


def known(labels: Tensor, names: str) -> ClassAnswers:
    return ClassAnswers(names=tuple(names), values=labels)


def in_memory(
    num_images: int = 6, channels: int = 1, size: tuple[int, int] = (4, 5), image_size: tuple[int, int] | None = None
) -> InMemoryImages:
    images = torch.arange(num_images * channels * size[0] * size[1]).to(torch.uint8).view(-1, channels, *size)
    return InMemoryImages(images, known(torch.arange(num_images) % 3, "abc"), lambda i: f"image {i}", image_size)


def test_images_are_read_in_the_given_order_with_repetition() -> None:
    data = in_memory()
    indices = torch.tensor([4, 0, 4])
    everything = data.images(torch.arange(6))
    assert torch.equal(data.images(indices), everything[indices])
    assert labels_of(data, indices).tolist() == [1, 0, 1]
    assert (len(data), data.channels, data.image_size, data.answer_names) == (6, 1, (4, 5), ("a", "b", "c"))
    assert data.name(4) == "image 4"


def test_no_indices_give_an_empty_batch() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert in_memory(channels=3).images(none).shape == (0, 3, 4, 5)
    assert in_memory(image_size=(7, 7)).images(none).shape == (0, 1, 7, 7)


def test_images_are_delivered_in_the_configured_size() -> None:
    data = in_memory(image_size=(8, 10))
    assert data.image_size == (8, 10)
    images = data.images(torch.arange(2))
    assert images.shape == (2, 1, 8, 10)
    assert images.dtype == torch.uint8


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        (torch.tensor([0.0]), TypeError, "indices are torch.float32; pass torch.int64"),
        (torch.tensor([0], dtype=torch.int32), TypeError, "indices are torch.int32; pass torch.int64"),
        (torch.tensor(0), ValueError, r"indices have shape \(\); pass one dimension"),
        (torch.tensor([[0]]), ValueError, r"indices have shape \(1, 1\); pass one dimension"),
        (torch.tensor([0, 6]), ValueError, "indices run from 0 to 6, but the data hold 0 to 5"),
        (torch.tensor([-1, 2]), ValueError, "indices run from -1 to 2, but the data hold 0 to 5"),
    ],
)
def test_bad_indices(indices: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        in_memory().images(indices)


@pytest.mark.parametrize("index", [-1, 6])
def test_bad_name(index: int) -> None:
    with pytest.raises(ValueError, match=rf"image {index} asked for, but there are 6: pass 0 to 5"):
        in_memory().name(index)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2).long(), "images are torch.float32"),
        (torch.zeros(2, 4, 4).byte(), torch.zeros(2).long(), r"images are torch.uint8 \(2, 4, 4\)"),
        (torch.zeros(2, 2, 4, 4).byte(), torch.zeros(2).long(), r"pass uint8 \(n, 1 or 3, H, W\)"),
        (torch.zeros(2, 1, 4, 4).byte(), torch.zeros(3).long(), "there are 3 answers of 2 images; pass one each"),
    ],
)
def test_bad_tensors(images: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InMemoryImages(images, known(labels, "ab"), str)


@pytest.mark.parametrize("image_size", [(0, 4), (4, -1), (4.0, 4), (4,), (4, 4, 4)])
def test_bad_image_size(image_size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="pass height and width, two integers of at least 1"):
        in_memory(image_size=image_size)


@pytest.mark.parametrize("split", ["train", "Test", ""])
def test_other_names_of_splits_are_refused(split: Any) -> None:
    with pytest.raises(ValueError, match=f"split is '{split}'; expected one of valid, test"):
        Splits(in_memory(), in_memory()).held_out(split)


def test_splits_must_fit_one_model() -> None:
    train = in_memory()
    Splits(train, in_memory(num_images=2))
    with pytest.raises(ValueError, match="the test set is empty"):
        Splits(train, in_memory(num_images=0))
    with pytest.raises(ValueError, match="channels differ: 1 in training, 3 in test"):
        Splits(train, in_memory(channels=3))
    with pytest.raises(ValueError, match=r"image size differ: \(4, 5\) in training, \(5, 4\) in test"):
        Splits(train, in_memory(size=(5, 4)))
    other = InMemoryImages(torch.zeros(1, 1, 4, 5).byte(), known(torch.zeros(1).long(), "azc"), str)
    with pytest.raises(ValueError, match="answer names differ"):
        Splits(train, other)


def test_images_without_answers() -> None:
    data = InMemoryImages(torch.zeros(3, 1, 4, 5).byte(), None, str)
    assert (data.answer_names, list(data.keys.strata)) == ((), [0, 0, 0])
    assert data.select(torch.tensor([1])).answers is None


def test_marks_and_answers_are_selected_with_the_images() -> None:
    marks = SplitMarks(groups=("p", "q", "p"), times=torch.tensor([3.0, 1, 2]).double())
    data = InMemoryImages(torch.zeros(3, 1, 4, 5).byte(), known(torch.tensor([1, 0, 1]), "ab"), str, marks=marks)
    keys = data.select(torch.tensor([2, 1])).keys
    assert keys.names == ["2", "1"]
    assert keys.strata == [1, 0]
    assert keys.groups == ("p", "q")
    assert keys.times is not None
    assert keys.times.tolist() == [2, 1]
