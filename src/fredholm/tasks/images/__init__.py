"""Labelled images: the bundled digits, MNIST-format folders, .npz files, and folders of these or of image files."""

from .arrays import ArrayImages, read_image_arrays
from .dataset import ImageDataset
from .digits import digits
from .idx import idx_folder
from .image_folder import ImageFolder, image_folder
from .in_memory import InMemoryImages
from .moments import Moments, moments
from .npz_file import npz_images, npz_shards
from .open import open_images
from .read import read_images

__all__ = [
    "ArrayImages",
    "ImageDataset",
    "ImageFolder",
    "InMemoryImages",
    "Moments",
    "digits",
    "idx_folder",
    "image_folder",
    "moments",
    "npz_images",
    "npz_shards",
    "open_images",
    "read_image_arrays",
    "read_images",
]
