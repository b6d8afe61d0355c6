"""Fields, which are functions told by their parameters, and the frames in which sets of samples place them."""

from fredholm.fields.field import Field
from fredholm.fields.frames import (
    Affine,
    Coordinates,
    Diagonal,
    Frame,
    Identity,
    Isotropic,
    Periodic,
    Rotational,
)
from fredholm.fields.free_sinusoidal import FreeSinusoidalField, Waves
from fredholm.fields.jet import Jet
from fredholm.fields.placed import FieldSamples, PlacedField
from fredholm.fields.refine import refine
from fredholm.fields.sinusoidal import SinusoidalField
from fredholm.fields.siren import SIREN

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
    "Waves",
    "refine",
]
