"""The digits that come with scikit-learn: 1,797 real 8x8 scans of handwritten digits, no download needed."""

import torch

from fredholm.tasks.files.read_record import record_content
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.splits.stratified_split import DEFAULT_TEST_FRACTION, stratified_split
from fredholm.tasks.targets import ClassAnswers

from .dataset import ImageDataset
from .in_memory import InMemoryImages

_SIZE = (8, 8)
_LEVELS = 16  # each pixel counts the ink in a 4x4 block of the scan


def digits(image_size: tuple[int, int] | None = None) -> Splits[ImageDataset]:
    """Return the digits, split once and for all into 1,437 training and 360 test images.

    The split is `stratified_split` with a fifth of the images and seed 0: the same on every machine. The
    values 0..16 become ``round(255 / 16 * value)``; ``round(16 / 255 * pixel)`` gives them back exactly.

    Args:
        image_size: height and width to deliver; default: the original 8x8.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError('the digits come with scikit-learn; get it with: pip install "fredholm[data]"') from error
    values, targets = load_digits(return_X_y=True)
    images = torch.from_numpy(values).mul(255 / _LEVELS).round().to(torch.uint8).reshape(-1, 1, *_SIZE)
    labels = torch.from_numpy(targets).to(torch.int64)
    record_content("scikit-learn's digits", values.tobytes(), labels.numpy().tobytes())
    names = [f"digits[{index}]" for index in range(len(images))]
    classes = tuple(str(digit) for digit in range(10))

    def subset(indices: list[int]) -> InMemoryImages:
        return InMemoryImages(
            images[indices],
            ClassAnswers(names=classes, values=labels[indices]),
            lambda i: names[indices[i]],
            image_size,
        )

    train, test = stratified_split(names, labels.tolist(), DEFAULT_TEST_FRACTION, seed=0)
    return Splits(subset(train), subset(test))
