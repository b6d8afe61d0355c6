import gzip
import struct
from pathlib import Path

import torch

from fredholm.tasks.series import open_series


def write_idx(folder: Path) -> dict[str, torch.Tensor]:
    """Three training and two test images of 3 x 2 pixels."""
    written = {}
    for split, count in (("train", 3), ("t10k", 2)):
        images = torch.randint(0, 256, (count, 3, 2), generator=torch.Generator().manual_seed(count), dtype=torch.uint8)
        labels = torch.arange(count, dtype=torch.uint8)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            (folder / f"{split}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + values.numpy().tobytes()))
        written[split] = images
    return written


def test_images_are_read_row_after_row(tmp_path: Path) -> None:
    written = write_idx(tmp_path)
    splits = open_series(tmp_path)
    for stored, split in ((splits.train, "train"), (splits.held_out("test"), "t10k")):
        series, images = stored.in_memory(), written[split]
        assert series.values.shape == (len(images), 6, 1)
        assert series.values[1, 2, 0] == images[1, 1, 0] / 255
        torch.testing.assert_close(series.values[:, :, 0], images.flatten(1) / 255)
        assert (series.spacing, series.times, series.lengths.unique().tolist()) == (1.0, None, [6])
        assert series.answers is not None
        assert series.answers.values.tolist() == list(range(len(images)))
        assert series.answer_names == ("0", "1", "2")
