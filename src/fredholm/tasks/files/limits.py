"""How much memory data may ask for, checked before it is taken.

A small file may promise much: a header with large numbers, a gzip of zeros, one long row among many short ones. One
rule holds for all of them: what data become takes no more than a free amount, or `EXPANSION` times what is there where
that is more. Whoever has more than that can save it such that it is there, unpacked.
"""

import math

FREE_BYTES = 128 << 20
"""What arrays of a small file may become: unpacked, padded, with a column a class, or with a name a row."""
EXPANSION = 100
"""How many times what is there larger arrays may become."""
FREE_TEXT_BYTES = 2 << 20
"""What a small gzip of text may become; a cell of a table takes many times its characters."""
TEXT_EXPANSION = 32
"""How many times its size a larger gzip of text may become."""
ROW_BYTES = 100
"""What a row or column of an array takes beside its values, which get a name each."""
PIXELS = (1 << 30) // 12
"""Of an image, and of an image once it is scaled to cover the size asked for; those from which on Pillow warns."""
COUNTED = 1_000_000
"""Classes that are counted up to the largest label, nodes without features beside edges, and tokens."""


def most_bytes(given: int, free: int = FREE_BYTES, times: int = EXPANSION) -> int:
    """How many bytes may come of so many that are there."""
    return max(free, times * given)


def check_expansion(
    what: str, needed: int, given: int, instead: str, free: int = FREE_BYTES, times: int = EXPANSION
) -> None:
    """Raises ValueError where data would become too large.

    Args:
        what: what would, such as "the padded series".
        needed: bytes that it would take.
        given: bytes that are there.
        instead: what to do.
        free: bytes that anything may take.
        times: how many times what is there larger data may take.
    """
    if needed > most_bytes(given, free, times):
        raise ValueError(
            f"{what} would take {_size(needed)}; the limit is {_size(most_bytes(given, free, times))}, for the "
            f"{_size(given)} that are there; {instead}"
        )


def check_counted(what: str, count: int, instead: str, most: int = COUNTED) -> None:
    """Raises ValueError where something would be counted further than `most`."""
    if count > most:
        raise ValueError(f"{what} would be {count:,}; the limit is {most:,}; {instead}")


def check_pixels(height: int, width: int, what: str, instead: str) -> None:
    """Raises ValueError where an image has, or would have, more than `PIXELS`."""
    if height * width > PIXELS:
        raise ValueError(f"{what} {height} x {width} pixels; the limit is {PIXELS:,} in all; {instead}")


def _size(count: int) -> str:
    """Bytes in the unit that suits."""
    power = min(4, int(math.log2(max(count, 1))) // 10)
    return f"{count} bytes" if power == 0 else f"{count / (1 << 10 * power):,.1f} {'KMGT'[power - 1]}iB"
