"""Labelled images: the bundled digits, MNIST-format folders, .npz files, tables, and folders of image files."""

from .arrays import ArrayImages, read_image_arrays
from .dataset import ImageDataset
from .digits import digits
from .encoded_images import EncodedImages, image_files
from .idx import idx_folder
from .image_folder import image_folder
from .image_table import image_table, read_image_table
from .in_memory import InMemoryImages
from .moments import Moments, moments
from .npz_file import npz_images, npz_shards
from .open import open_images
from .read import read_images

__all__ = [
    "ArrayImages",
    "EncodedImages",
    "ImageDataset",
    "InMemoryImages",
    "Moments",
    "digits",
    "idx_folder",
    "image_files",
    "image_folder",
    "image_table",
    "moments",
    "npz_images",
    "npz_shards",
    "open_images",
    "read_image_arrays",
    "read_image_table",
    "read_images",
]
