"""The abstract frame."""

import abc
from typing import ClassVar

from fredholm.domains import Domain
from fredholm.fields.frames.coordinates import Coordinates


class Frame(abc.ABC):
    """How a set of samples gives itself coordinates; a frozen value without parameters.

    Its defining property: for every g of the group that it covers, M⁻¹(x - μ) of the samples g·x is that of x, so that
    whatever is computed from these coordinates moves with the samples. Nothing depends on the order of the samples; a
    sample counts by its weight, and one that is masked not at all. Computed in float64, since a set far from the
    origin loses its digits otherwise. Gradients are finite everywhere.

    Samples that do not determine a frame get a stated fallback, and one warning a call that names what happened and in
    how many sets. Nothing is warned of inside `torch.compile`.
    """

    coordinates_per_axis: ClassVar[int] = 1
    """Entries of z for each coordinate of a position."""

    @abc.abstractmethod
    def coordinates(self, domain: Domain) -> Coordinates:
        """The frames of sets of samples.

        Args:
            domain: positions `(B, N, s)`, or `(N, s)` of one set, with their weights and masks.

        Returns:
            Coordinates of B sets; B = 1 where the domain has no batch.
        """
