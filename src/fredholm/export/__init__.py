"""Models as files that run without this library."""

from .exported import Exported, export_form
from .format import Format
from .onnx_file import OnnxFile
from .pt2_package import Pt2Package

__all__ = ["Exported", "Format", "OnnxFile", "Pt2Package", "export_form"]
