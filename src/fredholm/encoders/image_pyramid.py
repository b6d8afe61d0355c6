"""Images as functions of position, by convolutions down to the grid of patches and up again.

Legend
    r_1 ... r_m = P     strides of `pyramid.py`: the prime factors of the side of a patch in pixels, the smallest first
    N                   norm of each channel over the image:  N u = γ (u - ∫ u dμ) / (∫ (u - ∫ u dμ)² dμ + ε)^½ + β
    p_i                 keeps the colour that N removes

    signal(x) = that of `pyramid.py` at x + Q γ(x),   γ Fourier features of the place; Q starts small

Source: Ulyanov, Vedaldi and Lempitsky (arXiv 1607.08022) for N, by which no image changes the signal of another.
Deviation from U-Nets: the signal is evaluated at any position, not at pixels alone.
"""

import functools
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fredholm.domains import Domain, Grid
from fredholm.encoders.convolutional_image import recoloured, strides_of
from fredholm.encoders.encoder import FieldEncoder, check_places
from fredholm.encoders.image import Image, windows
from fredholm.encoders.pyramid import PointsNorm, Pyramid
from fredholm.kernels.fourier_features import fourier_features, sample_frequencies


@final
class ImagePyramid(FieldEncoder):
    """Features of a point's surroundings at all scales, by stencils, and Fourier features of its position.

    The formulas are at the heads of `image_pyramid.py` and `pyramid.py`. The scales range from a pixel to the whole
    image. The signal is on the grid of patches and has a value at any point. Numbers of channels: see `Pyramid`.

    Args:
        config: the images, as for `encoders.Image`.
        embed_dim: channels of the signal.
        depth: residual stencils on each grid on the way down; 0 or more.

    Raises:
        ValueError: on a depth below 0.
    """

    def __init__(self, config: Image.Config, embed_dim: int, *, depth: int = 1) -> None:
        super().__init__()
        self.config, self.embed_dim, self.pos_dim = config, embed_dim, 2
        strides = strides_of(config.patch)
        self.pyramid = Pyramid("encoders.ImagePyramid", config.channels, embed_dim, strides, depth, PointsNorm)
        self.register_buffer("frequencies", sample_frequencies(config.num_frequencies, 2, config.sigma))
        self.frequencies: Tensor
        self.position_weight = nn.Parameter(0.02 * torch.randn(embed_dim, 2 * config.num_frequencies))

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Number of patches along height and width of images of `image_size`."""
        return self.config.grid_shape

    def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """Images `(B, channels, H, W)`, float, to the signal `(B, N, embed_dim)` and its grid of N patches."""
        u, domain, _ = self.field(inputs)
        return u, domain

    def at(self, inputs: Tensor, places: Domain) -> Tensor:
        """The signal at any points of the plane; see `FieldEncoder.at`."""
        return self.field(inputs)[2](places)

    def field(self, inputs: Tensor) -> tuple[Tensor, Domain, Callable[[Domain], Tensor]]:
        """See `FieldEncoder.field`: all grids are computed once."""
        self.config.check_images("encoders.ImagePyramid", inputs)
        patch = self.config.patch
        shape = (side // each for side, each in zip(inputs.shape[2:], patch, strict=True))
        grid = Grid(*shape, device=inputs.device)
        value = functools.partial(self._value, self.pyramid.levels(inputs))
        return value(grid), grid, value

    def resampled(self, other: "ImagePyramid") -> dict[str, Tensor]:
        """The other encoder's maps of pixels, converted to this number of channels; see `recoloured`."""
        channels = self.config.channels
        if channels == other.config.channels:
            return {}
        means = {
            f"pyramid.means.{name}": (weight.sum(1, keepdim=True) / channels).expand(-1, channels).contiguous()
            for name, weight in other.pyramid.means.state_dict().items()
        }
        return recoloured(other.pyramid.stages[0], channels, "pyramid.stages.0") | means

    def _value(self, levels: list[Tensor], places: Domain) -> Tensor:
        """The signal at places, of the levels of the pyramid."""
        check_places("encoders.ImagePyramid", self.pos_dim, places)
        features = fourier_features(places.pos, self.frequencies).to(levels[0].dtype)
        total = F.linear(features, self.position_weight, self.pyramid.bias)
        for level, weight in zip(levels, self.pyramid.weights(), strict=True):
            total = total + F.linear(windows(level, places.pos, (1, 1)), weight)
        return total
