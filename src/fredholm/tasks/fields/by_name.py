"""Frames and fields by the names that settings have for them."""

from typing import Literal

from fredholm.fields.field import Field
from fredholm.fields.frames.affine import Affine
from fredholm.fields.frames.diagonal import Diagonal
from fredholm.fields.frames.frame import Frame
from fredholm.fields.frames.identity import Identity
from fredholm.fields.frames.isotropic import Isotropic
from fredholm.fields.frames.periodic import Periodic
from fredholm.fields.frames.rotational import Rotational
from fredholm.fields.free_sinusoidal import FreeSinusoidalField
from fredholm.fields.sinusoidal import SinusoidalField
from fredholm.fields.siren import SIREN

FrameName = Literal["identity", "isotropic", "diagonal", "affine", "rotational", "periodic"]
FieldName = Literal["siren", "sinusoidal", "free_sinusoidal"]


def frame_by_name(name: FrameName, *, proper: bool, average: bool) -> Frame:
    """The frame; `proper` and `average` are of those with axes."""
    match name:
        case "identity":
            return Identity()
        case "isotropic":
            return Isotropic()
        case "diagonal":
            return Diagonal()
        case "periodic":
            return Periodic()
        case "affine":
            return Affine(proper=proper, average=average)
        case "rotational":
            return Rotational(proper=proper, average=average)


def field_by_name(name: FieldName, pos_dim: int, out_dim: int, *, width: int, depth: int, omega_0: float) -> Field:
    """The field: `width` units in `depth` layers, or `width` terms, of frequencies about `omega_0`."""
    match name:
        case "siren":
            return SIREN(pos_dim, out_dim, width=width, depth=depth, omega_0=omega_0)
        case "sinusoidal":
            return SinusoidalField(pos_dim, out_dim, num_terms=width, sigma=omega_0)
        case "free_sinusoidal":
            return FreeSinusoidalField(pos_dim, out_dim, num_terms=width, sigma=omega_0)
