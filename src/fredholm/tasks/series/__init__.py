"""Series from .ts, .tsv, .csv and .npz files, and their preparation for a network."""

from .csv_file import read_csv
from .npz_file import read_npz
from .open import idx_pixels, open_series, read_series
from .physionet_2012 import physionet_2012
from .preparation import Fill, Preparation
from .series_set import LabelReading, Series, SeriesSet
from .stored_series import MappedSeries
from .thinning import Dropped, average_in_bins, bin_of, drop_samples, take_every
from .ts_file import read_ts
from .ucr_file import read_ucr

__all__ = [
    "Dropped",
    "Fill",
    "LabelReading",
    "MappedSeries",
    "Preparation",
    "Series",
    "SeriesSet",
    "average_in_bins",
    "bin_of",
    "drop_samples",
    "idx_pixels",
    "open_series",
    "physionet_2012",
    "read_csv",
    "read_npz",
    "read_series",
    "read_ts",
    "read_ucr",
    "take_every",
]
