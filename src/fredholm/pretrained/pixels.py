"""How the images of a checkpoint were prepared: what `transformers` and `timm` say beside the weights."""

import json
import math
from pathlib import Path
from typing import Any

from fredholm.models.model_settings import Pixels
from fredholm.pretrained.checkpoint import read_config

PREPROCESSOR = "preprocessor_config.json"


def read_pixels(folder: Path) -> Pixels | None:
    """What `preprocessor_config.json` of `transformers` or `pretrained_cfg` of `timm` say; None where neither is there.

    Raises:
        ValueError, OSError: a file cannot be read, or says what is not done here.
    """
    file = folder / PREPROCESSOR
    if file.is_file():
        return _of_transformers(_object(file), file)
    told = read_config(folder).get("pretrained_cfg")
    if not isinstance(told, dict) or "mean" not in told or "std" not in told:
        return None
    where = folder / "config.json"
    size = told.get("input_size")
    sides = _sides(size[1:], f"{where}: input_size") if isinstance(size, list) else None
    return Pixels(*_moments(told["mean"], told["std"], f"{where}: mean and std"), sides)


def _of_transformers(told: dict[str, Any], file: Path) -> Pixels:
    factor = told.get("rescale_factor", 1 / 255)
    if told.get("do_rescale", True) is not True or not isinstance(factor, float) or abs(255 * factor - 1) > 1e-6:
        raise ValueError(
            f"{file}: do_rescale={told.get('do_rescale', True)!r} by {factor!r} is not supported; supported: pixels "
            "from 0 to 1, by 1/255"
        )
    sides = _size(told.get("crop_size") if told.get("do_center_crop") else told.get("size"), file)
    if told.get("do_normalize", True) is False:
        return Pixels((0.0,) * 3, (1.0,) * 3, sides)
    if "image_mean" not in told or "image_std" not in told:
        raise ValueError(f"{file} has no image_mean or no image_std; fetch it again")
    return Pixels(*_moments(told["image_mean"], told["image_std"], f"{file}: image_mean and image_std"), sides)


def _size(told: object, file: Path) -> tuple[int, int] | None:
    """From height and width, or from one number for both."""
    if told is None:
        return None
    if isinstance(told, dict):
        short = told.get("shortest_edge")
        return _sides([told.get("height", short), told.get("width", short)], f"{file}: size")
    return _sides([told, told], f"{file}: size")


def _sides(told: list[Any], where: str) -> tuple[int, int]:
    if len(told) != 2 or not all(type(side) is int and side > 0 for side in told):
        raise ValueError(f"{where} must be height and width in pixels; got {told!r:.80}")
    return told[0], told[1]


def _moments(mean: object, deviation: object, where: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    found: list[tuple[float, ...]] = []
    for told, least in ((mean, -math.inf), (deviation, 0.0)):
        if not isinstance(told, list) or not all(
            type(each) in (int, float) and math.isfinite(each) and each > least for each in told
        ):
            raise ValueError(f"{where} must be numbers, one a channel, the second above 0; got {told!r:.80}")
        found.append(tuple(map(float, told)))
    return found[0], found[1]


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds {type(found).__name__}; expected an object")
    return found
