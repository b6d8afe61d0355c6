"""Limits of the memory that data may take, checked before it is allocated.

A small file may claim much: a header with large numbers, a gzip of zeros, one long row among many short ones. One rule
holds for all of them: decoded data take no more than a free amount, or `EXPANSION` times the file's size where that is
more. Larger data can be saved unpacked.
"""

import math

FREE_BYTES = 128 << 20
"""Bytes that arrays of a small file may take: unpacked, padded, with a column per class, or with a name per row."""
EXPANSION = 100
"""Largest ratio of the bytes of larger arrays to the bytes of their files."""
FREE_TEXT_BYTES = 2 << 20
"""Bytes that a small gzip of text may decompress to; a cell of a table takes many times its characters."""
TEXT_EXPANSION = 32
"""Largest ratio of decompressed to compressed bytes for a larger gzip of text."""
ROW_BYTES = 100
"""Bytes per row or column of an array beside its values, for their names."""
PIXELS = (1 << 30) // 12
"""Largest number of pixels of an image, also after scaling; Pillow warns above it."""
COUNTED = 1_000_000
"""Largest number of classes numbered up to the largest label, of nodes without features beside edges, and of tokens."""


def max_expanded_bytes(given: int, free: int = FREE_BYTES, times: int = EXPANSION) -> int:
    """Returns the largest number of bytes that a number of given bytes may become."""
    return max(free, times * given)


def check_expansion(
    what: str, needed: int, given: int, instead: str, free: int = FREE_BYTES, times: int = EXPANSION
) -> None:
    """Raises a ValueError where data would become too large.

    Args:
        what: noun for the data, such as "the padded series".
        needed: bytes that the data would take.
        given: bytes of the file.
        instead: advice for the message.
        free: bytes that are always allowed.
        times: largest ratio of `needed` to `given` for larger data.
    """
    if needed > max_expanded_bytes(given, free, times):
        raise ValueError(
            f"{what} would take {_size(needed)}; the limit is {_size(max_expanded_bytes(given, free, times))}, for the "
            f"{_size(given)} that are there; {instead}"
        )


def check_counted(what: str, count: int, instead: str, most: int = COUNTED) -> None:
    """Raises a ValueError where a count exceeds `most`."""
    if count > most:
        raise ValueError(f"{what} would be {count:,}; the limit is {most:,}; {instead}")


def check_pixels(height: int, width: int, what: str, instead: str) -> None:
    """Raises a ValueError where an image has, or would have, more than `PIXELS`."""
    if height * width > PIXELS:
        raise ValueError(f"{what} {height} x {width} pixels; the limit is {PIXELS:,} in all; {instead}")


def _size(count: int) -> str:
    """Formats a number of bytes in a suitable unit."""
    power = min(4, int(math.log2(max(count, 1))) // 10)
    return f"{count} bytes" if power == 0 else f"{count / (1 << 10 * power):,.1f} {'KMGT'[power - 1]}iB"
