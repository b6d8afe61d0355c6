"""Where predicted masks go: files of class numbers, and pictures."""

import colorsys
import importlib.util
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
class Answered:
    """An image, the class of each of its pixels, and what is known of them."""

    file: Path
    image: Tensor
    """uint8 `(C, H, W)`."""
    mask: Tensor
    """uint8 `(H, W)`."""
    truth: Tensor | None
    """uint8 `(H, W)`."""


def palette(num_classes: int) -> np.ndarray:
    """A colour a class, uint8 `(256, 3)`; the first is black, what is not labelled white, and neighbours differ."""
    colours = np.zeros((256, 3), np.uint8)
    for number in range(1, min(num_classes, IGNORED)):
        hue, turn = (number - 1) * _GOLDEN % 1, (number - 1) % 3
        red, green, blue = colorsys.hsv_to_rgb(hue, (0.85, 0.55, 1.0)[turn], (0.95, 0.95, 0.7)[turn])
        colours[number] = round(255 * red), round(255 * green), round(255 * blue)
    colours[IGNORED] = 255
    return colours


def check_targets(save: str | None, picture: str | None, files: Sequence[Path]) -> dict[Path, Path]:
    """Where the mask of each file goes, if masks are saved.

    Raises:
        ValueError: a file to write exists, two are one, or a folder is missing: an answer never replaces another.
    """
    if picture is not None:
        if not Path(picture).absolute().parent.is_dir():
            raise ValueError(f"picture: there is no folder {str(Path(picture).parent)!r}")
        if Path(picture).exists():
            raise ValueError(
                f"picture: {picture} exists; name another file (with many input files, raise --batch-size)"
            )
    if save is None:
        return {}
    if not Path(save).is_dir():
        raise ValueError(f"save: there is no folder {save!r}")
    targets = {file: Path(save) / f"{file.stem}.png" for file in files}
    taken: dict[Path, Path] = {}
    for file, target in targets.items():
        if target in taken:
            raise ValueError(f"{target} would hold the masks of {taken[target]} and {file}; predict them one by one")
        if target.exists():
            raise ValueError(f"{target} exists; pass another folder to save")
        taken[target] = file
    return targets


def write_mask(path: Path, mask: Tensor, num_classes: int) -> None:
    """Writes class numbers, uint8 `(H, W)`, as the palette indices of a PNG, which `read_mask` reads again.

    Raises:
        ValueError: there is such a file, or none can be written.
    """
    from PIL import Image

    picture = Image.fromarray(mask.numpy(), mode="L")
    picture.putpalette(palette(num_classes).tobytes())
    try:
        with path.open("xb") as file:
            picture.save(file, format="PNG")
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}); pass another folder to save") from error


def draw(path: Path, answers: Sequence[Answered], classes: Sequence[str]) -> None:
    """Writes a picture with a row a file: the image, the classes that are told, and those known where some are.

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
        row[0].set_title(one.file.name, fontsize=9)
        for axes, mask, title in zip(row[1:], (one.mask, one.truth), ("told", "known"), strict=False):
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
    figure.savefig(path, dpi=110)
    plt.close(figure)
