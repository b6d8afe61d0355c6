import sys

import pytest
import torch
from sklearn.datasets import load_digits

from fredholm.tasks.images import digits, open_images
from tests.tasks.images.known import labels_of


def everything(data) -> tuple[torch.Tensor, torch.Tensor]:
    indices = torch.arange(len(data))
    return data.images(indices), labels_of(data, indices)


def test_every_scan_is_read_exactly_and_once() -> None:
    splits = digits()
    assert (len(splits.train), len(splits.held_out("test"))) == (1437, 360)
    assert (splits.train.image_size, splits.train.channels) == ((8, 8), 1)
    assert splits.train.answer_names == tuple("0123456789")
    values, targets = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    seen = []
    for data in (splits.train, splits.held_out("test")):
        images, labels = everything(data)
        origin = torch.tensor([int(data.name(i).removeprefix("digits[").removesuffix("]")) for i in range(len(data))])
        assert torch.equal((images.double() * 16 / 255).round().flatten(1), values[origin])
        assert torch.equal(labels, targets[origin])
        assert torch.equal(images.double().flatten(1), (values[origin] * 255 / 16).round())
        seen += origin.tolist()
    assert sorted(seen) == list(range(1797))


def test_split_is_stratified_and_fixed() -> None:
    _, labels = everything(digits().held_out("test"))
    assert labels.bincount().tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    assert [digits().held_out("test").name(i) for i in range(3)] == ["digits[0]", "digits[2]", "digits[3]"]
    for splits in (digits(), open_images("digits"), digits((16, 16))):
        assert splits.held_out("test").name(0) == "digits[0]"


def test_larger_images() -> None:
    assert everything(open_images("digits", image_size=(28, 28)).held_out("test"))[0].shape == (360, 1, 28, 28)


def test_missing_scikit_learn_gives_an_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r'pip install "fredholm\[data\]"'):
        digits()
