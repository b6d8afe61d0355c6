"""Fields, which are functions told by their parameters, and the frames in which sets of samples place them."""

from fredholm.fields.field import Field
from fredholm.fields.frames.affine import Affine
from fredholm.fields.frames.coordinates import Coordinates
from fredholm.fields.frames.diagonal import Diagonal
from fredholm.fields.frames.frame import Frame
from fredholm.fields.frames.identity import Identity
from fredholm.fields.frames.isotropic import Isotropic
from fredholm.fields.frames.periodic import Periodic
from fredholm.fields.frames.rotational import Rotational
from fredholm.fields.free_sinusoidal import FreeSinusoidalField, Waves
from fredholm.fields.jet import Jet
from fredholm.fields.placed import FieldSamples, PlacedField, refine
from fredholm.fields.sinusoidal import SinusoidalField
from fredholm.fields.siren import SIREN
from fredholm.fields.splined import SplinedField, splined

__all__ = [
    "SIREN",
    "Affine",
    "Coordinates",
    "Diagonal",
    "Field",
    "FieldSamples",
    "Frame",
    "FreeSinusoidalField",
    "Identity",
    "Isotropic",
    "Jet",
    "Periodic",
    "PlacedField",
    "Rotational",
    "SinusoidalField",
    "SplinedField",
    "Waves",
    "refine",
    "splined",
]
