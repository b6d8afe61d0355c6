"""Encodes pixels as a PNG in a `data:` URL, without an image library."""

import base64
import struct
import zlib

import numpy as np

ANCHORS = np.array(
    [
        (68, 1, 84),
        (71, 45, 123),
        (59, 82, 139),
        (44, 114, 142),
        (33, 145, 140),
        (40, 174, 128),
        (94, 201, 98),
        (173, 220, 48),
        (253, 231, 37),
    ],
    dtype=np.float64,
)
"""Colours of viridis from low to high; it stays readable in grey and for the colour-blind."""
ABSENT = (128, 128, 128)


def data_address(pixels: np.ndarray) -> str:
    """The `data:` URL of an image: uint8 `(H, W)`, grey, or `(H, W, 3)`."""
    height, width = pixels.shape[:2]
    colour = 2 if pixels.ndim == 3 else 0
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data) for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    )
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def coloured(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Maps values to colours, uint8 `(..., 3)`; a missing value is grey."""
    spread = high - low if high > low else 1.0
    place = np.clip((np.nan_to_num(values, nan=low) - low) / spread, 0, 1) * (len(ANCHORS) - 1)
    below = np.clip(place.astype(np.int64), 0, len(ANCHORS) - 2)
    share = (place - below)[..., None]
    found = ANCHORS[below] * (1 - share) + ANCHORS[below + 1] * share
    found[np.isnan(values)] = ABSENT
    return found.round().astype(np.uint8)


def reduced(pixels: np.ndarray, most: int) -> np.ndarray:
    """An image reduced by block means so that its longer side has at most `most` pixels."""
    step = -(-max(pixels.shape[:2]) // most)
    if step == 1:
        return pixels
    height, width = (size // step * step or size for size in pixels.shape[:2])
    rows, columns = min(step, height), min(step, width)
    cut = pixels[:height, :width].reshape(height // rows, rows, width // columns, columns, *pixels.shape[2:])
    return cut.mean((1, 3)).round().astype(pixels.dtype)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
