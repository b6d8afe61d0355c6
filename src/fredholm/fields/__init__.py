"""Fields, functions with parameters, and frames, coordinates that are computed from samples."""

from fredholm.fields.field import Field
from fredholm.fields.frames.axes import Affine, Rotational
from fredholm.fields.frames.frame import Coordinates, Frame
from fredholm.fields.frames.sizes import Diagonal, Identity, Isotropic, Periodic
from fredholm.fields.free_sinusoidal import FreeSinusoidalField, Waves
from fredholm.fields.jet import Jet
from fredholm.fields.placed_field import FieldSamples, PlacedField, refine
from fredholm.fields.radial import Radial
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
    "Radial",
    "Rotational",
    "SinusoidalField",
    "SplinedField",
    "Waves",
    "refine",
    "splined",
]
