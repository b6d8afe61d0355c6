"""Images as signals on several grids of patches at once."""

import dataclasses
import functools
import itertools
from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, refuse_idle
from fredholm.domains import Domain, Grid, Union
from fredholm.encoders.encoder import FieldEncoder, check_places
from fredholm.encoders.image import Image


@final
class MultiScaleImage(FieldEncoder):
    """Patches of several sizes side by side, on the union of their grids (ITNet, J.2, eq. 264).

    Each size s has an encoder of its own, u_s(x) = W_s [E_s patch_s(x) ; γ_s(x)] + b_s (`Image`). The patches of the
    smallest size come first, then those of the next: with patches of 8 and 16 pixels 784 + 196 = 980
    points of an image of 224 x 224.

    The paper does not state how scales are distinguished where two patches have one centre, nor their masses. Here W_s,
    b_s and γ_s are each scale's own, and nothing else is added. Points have equal mass, as in the union of counting
    measures in eq. 264, so that the mass of a scale is proportional to its number of patches; with `balanced` all
    scales have equal mass.

    As a function of position the signal is that of the smallest patches, u_1(x): equal to `forward` at the points of
    the first grid. The coarser patches enter a result only through integrals.

    Args:
        config: the images.
        embed_dim: channels of the signal.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        """Size and channels of the images, and of the patches they are cut into."""

        image_size: tuple[int, int] = (224, 224)
        """Height and width in pixels."""
        patch_sizes: tuple[int, ...] = (8, 16)
        """Sides of the square patches, at least two, the smallest first; each divides the image's sides."""
        balanced: bool = False
        """Give each scale the same mass, instead of each point."""
        channels: int = 3
        any_size: bool = False
        """Also take images of other heights and widths, as long as patches divide them."""
        num_frequencies: int = 64
        """Fourier frequencies of the position features of each scale."""
        sigma: float = 10.0
        """Standard deviation of the frequencies, in cycles per image side; refused where there are none."""

        def __post_init__(self) -> None:
            sizes = self.patch_sizes
            if not isinstance(sizes, tuple):
                raise TypeError(f"encoders.MultiScaleImage: patch_sizes are sides of patches, (8, 16); got {sizes!r}")
            for side in sizes:
                check_count("encoders.MultiScaleImage", "each of patch_sizes", side)
            if len(sizes) < 2 or any(a >= b for a, b in itertools.pairwise(sizes)):
                raise ValueError(
                    "encoders.MultiScaleImage: patch_sizes must be at least two sides of patches, each larger than the "
                    f"one before; got {sizes}"
                )
            if self.num_frequencies == 0:
                own = ("encoders.MultiScaleImage", type(self), "num_frequencies=0", "give num_frequencies")
                refuse_idle(*own, sigma=self.sigma)
            _ = self.scales  # checks each scale

        @property
        def scales(self) -> tuple[Image.Config, ...]:
            """Config of the encoder of each scale."""
            return tuple(
                Image.Config(
                    image_size=self.image_size,
                    patch_size=side,
                    channels=self.channels,
                    any_size=self.any_size,
                    num_frequencies=self.num_frequencies,
                    sigma=self.sigma,
                )
                for side in self.patch_sizes
            )

    def __init__(self, config: Config, embed_dim: int) -> None:
        super().__init__()
        self.config, self.embed_dim, self.pos_dim = config, embed_dim, 2
        self.finest, *coarser = (Image(scale, embed_dim) for scale in config.scales)
        self.coarser = nn.ModuleList(coarser)

    @property
    def grid_shapes(self) -> tuple[tuple[int, int], ...]:
        """Number of patches of each size along height and width of images of `image_size`."""
        height, width = self.config.image_size
        return tuple((height // side, width // side) for side in self.config.patch_sizes)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """Images `(B, channels, H, W)`, float, to the signal `(B, N, embed_dim)` and the union of its grids."""
        parts = [scale(inputs) for scale in (self.finest, *self.coarser)]
        return torch.cat([u for u, _ in parts], dim=1), self._joined([grid for _, grid in parts])

    def _joined(self, grids: list[Grid]) -> Domain:
        if not self.config.balanced:
            return functools.reduce(Union, grids)
        joined: Domain = grids[0]
        for count, grid in enumerate(grids[1:], 1):
            joined = Union(joined, grid, mass=(count / (count + 1), 1 / (count + 1)))
        return joined

    def at(self, inputs: Tensor, places: Domain) -> Tensor:
        """The signal of the smallest patches at any points of the plane; see `Image.at`."""
        check_places("encoders.MultiScaleImage", self.pos_dim, places)
        return self.finest.at(inputs, places)
