"""From a modality to a signal on a domain."""

from fredholm.encoders.encoder import Encoder
from fredholm.encoders.image import Image
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.encoders.text import Text

__all__ = ["Encoder", "Image", "Series", "SeriesBatch", "Text"]
