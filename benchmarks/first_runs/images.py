"""Letters in many fonts, with a convolutional network among the peers."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import nn

from benchmarks.first_runs.first_run import FirstRun, accuracy, taught
from fredholm.tasks.splits.splits import HeldOut

LETTERS = "abdegkmnpqABDGHKMNRQ"
EACH = 50


def letters(folder: Path, seed: int) -> Path:
    """Twenty letters in Matplotlib's DejaVu fonts, rotated by up to 25°, with noise: 32 x 32 pixels."""
    draw, fonts = (
        np.random.default_rng(seed),
        sorted(Path(matplotlib.get_data_path(), "fonts/ttf").glob("DejaVuS*.ttf")),
    )
    fonts = [font for font in fonts if "Display" not in font.name]
    for letter in LETTERS:
        place = folder / "letters" / f"{'small' if letter.islower() else 'large'}_{letter}"
        place.mkdir(parents=True)
        for i in range(EACH):
            font = ImageFont.truetype(str(fonts[draw.integers(len(fonts))]), int(draw.integers(14, 24)))
            shown, (x, y) = Image.new("L", (48, 48)), draw.integers(21, 28, 2).tolist()
            ImageDraw.Draw(shown).text((x, y), letter, font=font, fill=int(draw.integers(120, 255)), anchor="mm")
            turned = shown.rotate(float(draw.uniform(-25, 25)), resample=Image.Resampling.BILINEAR).resize((32, 32))
            pixels = np.asarray(turned, float) + draw.uniform(0, 40) + 25 * draw.normal(size=(32, 32))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{i}.png")
    return folder / "letters"


def _images(part: Any) -> tuple[np.ndarray, np.ndarray]:
    indices = torch.arange(len(part))
    return part.images(indices).double().numpy() / 255, part.answers.values[indices].numpy()


def pixels(part: Any) -> tuple[np.ndarray, np.ndarray]:
    """Grey values, one row per image, and labels."""
    found, labels = _images(part)
    return found.reshape(len(found), -1), labels


def gradients(part: Any) -> tuple[np.ndarray, np.ndarray]:
    """Histograms of gradient directions in cells of 4 x 4 pixels, normalised over 2 x 2 cells (Dalal and Triggs)."""
    found, labels = _images(part)
    down, right = np.gradient(found.mean(1), axis=(1, 2))
    angle, size = np.arctan2(down, right) % np.pi, np.hypot(down, right)
    cells = [np.where((angle * 9 / np.pi).astype(int) % 9 == k, size, 0.0) for k in range(9)]
    n, height, width = size.shape
    summed = np.stack(cells, -1)[:, : height // 4 * 4, : width // 4 * 4]
    summed = summed.reshape(n, height // 4, 4, width // 4, 4, 9).sum((2, 4))
    blocks = np.concatenate([summed[:, a : a - 1 or None, b : b - 1 or None] for a in (0, 1) for b in (0, 1)], -1)
    return (blocks / (np.linalg.norm(blocks, axis=-1, keepdims=True) + 0.1)).reshape(n, -1), labels


def convolutions(channels: int, classes: int, width: int = 32) -> nn.Module:
    """Three convolutions with batch norm and 2 x 2 max pooling, global average pooling, and a linear layer."""
    layers: list[nn.Module] = []
    for before, after in ((channels, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))
    return net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def network(task: Any, split: HeldOut) -> float:
    """The accuracy of `convolutions` in plain PyTorch, with the task's augmentation and batches."""
    torch.manual_seed(0)
    net = convolutions(task.facts.channels, len(task.target.names))
    taught(net, task, lambda batch: F.cross_entropy(net(batch["images"]), batch["targets"]))
    batch = task.held_out_batch(split, torch.arange(task.num_held_out(split)))
    with torch.no_grad():
        return float((net(batch["images"]).argmax(1) == batch["targets"]).double().mean())


FIRST_RUNS = (
    FirstRun(
        name="letters",
        task="images",
        data="20 letters in many fonts and noise",
        make=letters,
        peers={
            "SVM on pixels": accuracy(make_pipeline(StandardScaler(), SVC(C=10.0)), pixels),
            "SVM on histograms of gradients": accuracy(SVC(C=10.0), gradients),
            "a small ConvNet": network,
        },
    ),
)
