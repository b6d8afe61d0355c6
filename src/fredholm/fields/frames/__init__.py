"""Frames: where a set of samples lies, how large it is, and how it is turned. One kind a file."""

from fredholm.fields.frames.affine import Affine
from fredholm.fields.frames.coordinates import Coordinates
from fredholm.fields.frames.diagonal import Diagonal
from fredholm.fields.frames.frame import Frame
from fredholm.fields.frames.identity import Identity
from fredholm.fields.frames.isotropic import Isotropic
from fredholm.fields.frames.periodic import Periodic
from fredholm.fields.frames.rotational import Rotational

__all__ = ["Affine", "Coordinates", "Diagonal", "Frame", "Identity", "Isotropic", "Periodic", "Rotational"]
