"""How a convolution's options are read: a number for all axes or one an axis, and the names of paddings."""

from collections.abc import Sequence
from typing import Literal

from fredholm.kernels.stationary import BoundaryMode

BOUNDARY_MODES: tuple[BoundaryMode, ...] = ("zeros", "reflect", "replicate", "circular")

Padding = Literal["valid", "same"] | int | tuple[int, ...] | tuple[tuple[int, int], ...]


def per_axis(name: str, value: int | Sequence[int], axes: int, *, least: int) -> tuple[int, ...]:
    """One whole number >= `least` for each axis."""
    values = (value,) * axes if isinstance(value, int) else value
    if not isinstance(values, Sequence) or len(values) != axes or not all(_is_count(v, least) for v in values):
        raise ValueError(
            f"kernels.Convolution: {name} must be an integer >= {least}, or one for each of the {axes} axes; "
            f"got {value!r}"
        )
    return tuple(values)


def axis_padding(
    padding: Padding, reach: tuple[int, ...], stride: tuple[int, ...], *, transposed: bool
) -> tuple[tuple[int, int], ...]:
    """(lo, hi) for each axis; `reach` is the extent of a window in cells."""
    if isinstance(padding, str):
        if transposed:
            raise ValueError(f"kernels.Convolution: a transposed convolution has padding in numbers; got {padding!r}")
        if padding == "valid":
            return ((0, 0),) * len(reach)
        if padding != "same":
            raise ValueError(f"kernels.Convolution: padding is 'valid', 'same' or numbers; got {padding!r}")
        if any(r != 1 for r in stride):
            raise ValueError(
                f"kernels.Convolution: padding 'same' needs stride 1; got stride {stride}; give padding as numbers"
            )
        return tuple(((w - 1) // 2, w - 1 - (w - 1) // 2) for w in reach)
    values = (padding,) * len(reach) if isinstance(padding, int) else padding
    if not isinstance(values, Sequence) or len(values) != len(reach):
        values = ()
    pairs = tuple((v, v) if isinstance(v, int) else tuple(v) for v in values)
    if not pairs or not all(len(pair) == 2 and all(_is_count(v, 0) for v in pair) for pair in pairs):
        raise ValueError(
            f"kernels.Convolution: padding must be 'valid', 'same', an integer >= 0, or an integer or a pair (lo, hi) "
            f"for each of the {len(reach)} axes; got {padding!r}"
        )
    return tuple((lo, hi) for lo, hi in pairs)


def axis_output_padding(
    output_padding: int | tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], *, transposed: bool
) -> tuple[int, ...]:
    """Cells added at the end of each axis of a transposed convolution's result."""
    cells = per_axis("output_padding", output_padding, len(stride), least=0)
    for extra, r, d in zip(cells, stride, dilation, strict=True):
        if extra and not transposed:
            raise ValueError(f"kernels.Convolution: output_padding belongs to a transposed convolution; got {extra}")
        if extra and extra >= max(r, d):
            raise ValueError(
                f"kernels.Convolution: output_padding must be below stride {r} or dilation {d}; got {extra}"
            )
    return cells


def check_channels(kernel: str, in_dim: int, out_dim: int, groups: int) -> None:
    """Raises ValueError, in the name of `kernel`, unless the groups divide both channel counts."""
    for name, size in {"in_dim": in_dim, "out_dim": out_dim, "groups": groups}.items():
        if not _is_count(size, 1):
            raise ValueError(f"{kernel}: {name} must be an integer >= 1; got {size!r}")
    if in_dim % groups or out_dim % groups:
        raise ValueError(
            f"{kernel}: groups must divide both channel counts; got {groups} groups for {in_dim} in and {out_dim} out"
        )


def check_padding_fits(shape: tuple[int, ...], padding: tuple[tuple[int, int], ...], mode: BoundaryMode) -> None:
    """Raises ValueError where a reflection or a period of the signal is shorter than the padding that it fills."""
    for n, pair in zip(shape, padding, strict=True):
        if mode == "reflect" and max(pair) >= n:
            raise ValueError(
                f"kernels.Convolution: padding by reflection must be smaller than the grid; got padding {pair} on an "
                f"axis of {n} cells"
            )
        if mode == "circular" and max(pair) > n:
            raise ValueError(
                f"kernels.Convolution: circular padding must not go round more than once; got padding {pair} on an "
                f"axis of {n} cells"
            )


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
