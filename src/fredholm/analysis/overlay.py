"""Images overlaid with relevance maps."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

COLOURS = "inferno"
"""Default colour map of matplotlib."""


def overlay(image: Tensor, relevance: Tensor, *, opacity: float = 0.5, colours: str = COLOURS) -> Tensor:
    """An image overlaid with the heat map of its patches' relevance.

    The map is scaled so that its largest value is 1, and made as large as the image by bilinear interpolation.

    Args:
        image: `(C, H, W)` with 1 or 3 channels in [0, 1]; values outside are clipped.
        relevance: `(rows, columns)`, >= 0.
        opacity: opacity of the map, in [0, 1].
        colours: name of a colour map of matplotlib.

    Returns:
        `(3, H, W)` in [0, 1].

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: on other shapes, values or colours.
    """
    if image.ndim != 3 or image.shape[0] not in (1, 3) or relevance.ndim != 2 or not relevance.numel():
        raise ValueError(
            "analysis.overlay: needs an image (1 or 3, H, W) and relevance (rows, columns); "
            f"got {tuple(image.shape)} and {tuple(relevance.shape)}"
        )
    if not bool(relevance.isfinite().all()) or bool((relevance < 0).any()):
        raise ValueError("analysis.overlay: relevance must be finite and >= 0")
    if not 0 <= opacity <= 1:
        raise ValueError(f"analysis.overlay: opacity must be in [0, 1]; got {opacity}")
    size = (image.shape[1], image.shape[2])
    heat = relevance.detach().float().cpu()
    heat = heat / heat.max() if heat.max() > 0 else heat
    heat = nn.functional.interpolate(heat[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]
    coloured = torch.from_numpy(_colour_map(colours)(heat.numpy())[..., :3]).float().movedim(-1, 0)
    return (1 - opacity) * image.detach().float().cpu().clamp(0, 1).expand(3, -1, -1) + opacity * coloured


def save_overlays(
    path: Path | str,
    images: Tensor,
    relevance: Mapping[str, Tensor],
    *,
    opacity: float = 0.5,
    colours: str = COLOURS,
) -> None:
    """Writes a PNG with a row for every image: the image, then the image under each named map.

    Args:
        path: path of the file.
        images: `(B, C, H, W)` with 1 or 3 channels in [0, 1].
        relevance: maps by name, `(B, rows, columns)` each.
        opacity, colours: as in `overlay`.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: on shapes that do not fit.
        TypeError: on maps without names.
    """
    if not isinstance(relevance, Mapping):
        raise TypeError(
            "analysis.save_overlays: relevance must be maps by name, {name: (B, rows, columns)}; got "
            f"{type(relevance).__name__}"
        )
    for name, maps in relevance.items():
        if images.ndim != 4 or maps.ndim != 3 or len(maps) != len(images):
            raise ValueError(
                f"analysis.save_overlays: needs images (B, C, H, W) and maps (B, rows, columns); got "
                f"{tuple(images.shape)} and {name!r} {tuple(maps.shape)}"
            )
    if not relevance or not len(images):
        raise ValueError("analysis.save_overlays: needs an image and a map at least")
    _colour_map(colours)  # raises with an installation hint where matplotlib is missing
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns, height = 1 + len(relevance), 1.8 * images.shape[-2] / images.shape[-1]
    figure = Figure(figsize=(1.8 * columns, height * len(images) + 0.25), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    places = figure.subplots(len(images), columns, squeeze=False)
    for row, image in enumerate(images):
        shown = {"image": image.detach().float().cpu().clamp(0, 1).expand(3, -1, -1)}
        for name, maps in relevance.items():
            shown[name] = overlay(image, maps[row], opacity=opacity, colours=colours)
        for axes, (name, picture) in zip(places[row], shown.items(), strict=True):
            axes.imshow(picture.movedim(0, -1).numpy(), vmin=0, vmax=1)
            axes.set_axis_off()
            if row == 0:
                axes.set_title(name, fontsize=9)
    canvas.print_png(str(path))


def _colour_map(name: str) -> Callable[[Any], Any]:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError('overlays need matplotlib; get it with: pip install "fredholm[viz]"') from error
    if name not in matplotlib.colormaps:
        raise ValueError(f"analysis.overlay: matplotlib has no colour map {name!r}; take 'inferno' or 'viridis'")
    return matplotlib.colormaps[name]
