"""Point clouds: files of meshes and of points, and their preprocessing for a model."""

from .cloud_file import NUM_SAMPLES, csv_bytes, read_cloud
from .modelnet10_voxels import modelnet10_voxels
from .npz_file import read_npz
from .open import open_points, read_points
from .point_set import NORMAL, Cloud, PointSet

__all__ = [
    "NORMAL",
    "NUM_SAMPLES",
    "Cloud",
    "PointSet",
    "csv_bytes",
    "modelnet10_voxels",
    "open_points",
    "read_cloud",
    "read_npz",
    "read_points",
]
