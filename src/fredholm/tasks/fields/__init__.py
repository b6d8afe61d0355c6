"""Sampled functions: .csv and .npz files, images, and Darcy flow."""

from .csv_file import read_csv
from .field_set import FieldSet, Samples
from .image_fields import image_fields
from .neuralop import darcy
from .npz_file import read_npz
from .open import open_fields, read_fields

__all__ = [
    "FieldSet",
    "Samples",
    "darcy",
    "image_fields",
    "open_fields",
    "read_csv",
    "read_fields",
    "read_npz",
]
