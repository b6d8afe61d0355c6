# pyright: reportArgumentType=false, reportCallIssue=false, reportMissingImports=false
"""Makes the files beside this script, with Hugging Face's datasets 5.2: `python make.py`, in this folder."""

from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Sequence, Value
from PIL import Image as Picture

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 5, 4), dtype=np.uint8)


def main() -> None:
    """Six rows: one table, four of them in two shards of a training split, and two of a validation split."""
    labels = ClassLabel(names=["x", "y"])
    features = Features(
        {
            "text": Value("string"),
            "label": ClassLabel(names=["zebra", "ant"]),
            "labels": Sequence(labels),
            "img": Image(),
        }
    )
    rows = {
        "text": ["a b", "c", "d é", "e", "f", "g"],
        "label": [0, 1, 0, 1, 0, 1],
        "labels": [[0], [1, 0], [], [1], [0], [0, 1]],
        "img": [Picture.fromarray(pixels) for pixels in PIXELS],
    }
    whole = Dataset.from_dict(rows, features=features)
    whole.to_parquet("whole.parquet")
    parts = {"train": whole.select([5, 0, 1, 2]), "validation": whole.select([3, 4])}
    DatasetDict(parts).save_to_disk("splits", num_shards={"train": 2, "validation": 1})
    np.save(Path("pixels.npy"), PIXELS)


if __name__ == "__main__":
    main()
