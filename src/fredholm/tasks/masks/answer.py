"""Output of predicted masks: files of class numbers, and pictures."""

import colorsys
import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from torch import Tensor

from .mask_set import IGNORED

_GOLDEN = 0.61803398875


@final
@dataclass(frozen=True)
class PredictedMask:
    """An image with its predicted mask, and the true mask where it is known."""

    file: Path
    image: Tensor
    """uint8 `(C, H, W)`."""
    mask: Tensor
    """uint8 `(H, W)`."""
    truth: Tensor | None
    """uint8 `(H, W)`."""


def palette(num_classes: int) -> np.ndarray:
    """Returns a colour per class, uint8 `(256, 3)`; the first is black, unlabelled is white, and neighbours differ."""
    colours = np.zeros((256, 3), np.uint8)
    for number in range(1, min(num_classes, IGNORED)):
        hue, turn = (number - 1) * _GOLDEN % 1, (number - 1) % 3
        red, green, blue = colorsys.hsv_to_rgb(hue, (0.85, 0.55, 1.0)[turn], (0.95, 0.95, 0.7)[turn])
        colours[number] = round(255 * red), round(255 * green), round(255 * blue)
    colours[IGNORED] = 255
    return colours


def png_bytes(mask: Tensor, num_classes: int) -> bytes:
    """Encodes class numbers, uint8 `(H, W)`, as a palette PNG, which `read_mask` reads."""
    from PIL import Image

    picture, content = Image.fromarray(mask.numpy(), mode="L"), io.BytesIO()
    picture.putpalette(palette(num_classes).tobytes())
    picture.save(content, format="PNG")
    return content.getvalue()


def draw(answers: Sequence[PredictedMask], classes: Sequence[str], *, kind: str = ".png") -> bytes:
    """Draws a picture with a row per file: the image, the predicted classes, and the true ones where known.

    The kind of file is one of `PICTURES`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError('a picture needs matplotlib; get it with: pip install "fredholm[viz]"')
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    colours = palette(len(classes))
    columns = 3 if any(one.truth is not None for one in answers) else 2
    figure, panels = plt.subplots(
        len(answers), columns, figsize=(3.2 * columns, 2.6 * len(answers)), squeeze=False, layout="constrained"
    )
    for row, one in zip(panels, answers, strict=True):
        image = one.image.permute(1, 2, 0).numpy()
        row[0].imshow(image if image.shape[2] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=255)
        row[0].set_title(one.file.name, fontsize=9, parse_math=False)
        for axes, mask, title in zip(row[1:], (one.mask, one.truth), ("predicted", "known"), strict=False):
            if mask is not None:
                axes.imshow(colours[mask.numpy()], interpolation="nearest")
                axes.set_title(title, fontsize=9)
        for axes in row:
            axes.set_axis_off()
    shown = sorted({int(number) for one in answers for number in one.mask.unique()})
    shown += [int(k) for one in answers if one.truth is not None for k in one.truth.unique() if int(k) != IGNORED]
    handles = [
        Patch(facecolor=tuple(colours[number] / 255), edgecolor="gray", label=classes[number])
        for number in sorted(set(shown))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)), fontsize=8)
    content = io.BytesIO()
    figure.savefig(content, format=kind.removeprefix("."), dpi=110)
    plt.close(figure)
    return content.getvalue()
