"""Images with a text and a label each: JSONL files beside image files, and .npz files."""

from .image_text_set import Example, ImageTextSet
from .npz_file import read_npz
from .open import open_image_texts, read_image_texts

__all__ = ["Example", "ImageTextSet", "open_image_texts", "read_image_texts", "read_npz"]
