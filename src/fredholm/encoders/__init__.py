"""Encoders: from a modality to a signal on a domain."""

from fredholm.encoders.convolutional_image import ConvolutionalImage
from fredholm.encoders.encoder import Encoder, FieldEncoder
from fredholm.encoders.function import Function, FunctionBatch
from fredholm.encoders.graph import Graph, GraphBatch
from fredholm.encoders.image import Image
from fredholm.encoders.image_pyramid import ImagePyramid
from fredholm.encoders.image_text import ImageText, ImageTextBatch
from fredholm.encoders.joint import Joint, JointBatch
from fredholm.encoders.multi_scale_image import MultiScaleImage
from fredholm.encoders.points import PointBatch, PointCloud
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.encoders.series_pyramid import SeriesPyramid
from fredholm.encoders.table_row import TableRow, TableRowBatch
from fredholm.encoders.text import Text

__all__ = [
    "ConvolutionalImage",
    "Encoder",
    "FieldEncoder",
    "Function",
    "FunctionBatch",
    "Graph",
    "GraphBatch",
    "Image",
    "ImagePyramid",
    "ImageText",
    "ImageTextBatch",
    "Joint",
    "JointBatch",
    "MultiScaleImage",
    "PointBatch",
    "PointCloud",
    "Series",
    "SeriesBatch",
    "SeriesPyramid",
    "TableRow",
    "TableRowBatch",
    "Text",
]
