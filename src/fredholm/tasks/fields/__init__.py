"""Sampled functions: .csv and .npz files, images, and the small data sets of neuraloperator."""

from .csv_file import read_csv
from .field_set import FieldSet, Samples
from .neuralop import Problem, neuralop
from .npz_file import functions_of_arrays, read_npz
from .open import image_fields, open_fields, open_functions, read_fields, read_functions

__all__ = [
    "FieldSet",
    "Problem",
    "Samples",
    "functions_of_arrays",
    "image_fields",
    "neuralop",
    "open_fields",
    "open_functions",
    "read_csv",
    "read_fields",
    "read_functions",
    "read_npz",
]
