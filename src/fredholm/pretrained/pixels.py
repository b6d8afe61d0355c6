"""Image preprocessing of a checkpoint, from the files of `transformers` and `timm`."""

import json
import math
from pathlib import Path
from typing import Any

from fredholm.models.model_settings import Pixels
from fredholm.pretrained.checkpoint import read_config

PREPROCESSOR = "preprocessor_config.json"


def read_pixels(folder: Path) -> Pixels | None:
    """Reads `preprocessor_config.json` of `transformers` or `pretrained_cfg` of `timm`; None without either.

    Raises:
        ValueError, OSError: a file cannot be read, or asks for preprocessing that is not supported.
    """
    file = folder / PREPROCESSOR
    if file.is_file():
        return _of_transformers(_object(file), file)
    settings = read_config(folder).get("pretrained_cfg")
    if not isinstance(settings, dict) or "mean" not in settings or "std" not in settings:
        return None
    where = folder / "config.json"
    size = settings.get("input_size")
    sides = _sides(size[1:], f"{where}: input_size") if isinstance(size, list) else None
    return Pixels(*_moments(settings["mean"], settings["std"], f"{where}: mean and std"), sides)


def _of_transformers(settings: dict[str, Any], file: Path) -> Pixels:
    factor = settings.get("rescale_factor", 1 / 255)
    if settings.get("do_rescale", True) is not True or not isinstance(factor, float) or abs(255 * factor - 1) > 1e-6:
        raise ValueError(
            f"{file}: do_rescale={settings.get('do_rescale', True)!r} by {factor!r} is not supported; supported: "
            "pixels from 0 to 1, by 1/255"
        )
    sides = _size(settings.get("crop_size") if settings.get("do_center_crop") else settings.get("size"), file)
    if settings.get("do_normalize", True) is False:
        return Pixels((0.0,) * 3, (1.0,) * 3, sides)
    if "image_mean" not in settings or "image_std" not in settings:
        raise ValueError(f"{file} has no image_mean or no image_std; fetch it again")
    return Pixels(*_moments(settings["image_mean"], settings["image_std"], f"{file}: image_mean and image_std"), sides)


def _size(size: object, file: Path) -> tuple[int, int] | None:
    """Height and width from two numbers, or from one for both."""
    if size is None:
        return None
    if isinstance(size, dict):
        short = size.get("shortest_edge")
        return _sides([size.get("height", short), size.get("width", short)], f"{file}: size")
    return _sides([size, size], f"{file}: size")


def _sides(sides: list[Any], where: str) -> tuple[int, int]:
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise ValueError(f"{where} must be height and width in pixels; got {sides!r:.80}")
    return sides[0], sides[1]


def _moments(mean: object, deviation: object, where: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    found: list[tuple[float, ...]] = []
    for values, least in ((mean, -math.inf), (deviation, 0.0)):
        if not isinstance(values, list) or not all(
            type(each) in (int, float) and math.isfinite(each) and each > least for each in values
        ):
            raise ValueError(f"{where} must be numbers, one a channel, the second above 0; got {values!r:.80}")
        found.append(tuple(map(float, values)))
    return found[0], found[1]


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds {type(found).__name__}; expected an object")
    return found
