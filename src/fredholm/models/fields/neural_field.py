"""The field operator: from samples of a function to the function, as a field in the samples' own frame."""

import dataclasses
import math
from typing import Literal, final

import torch
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count, check_positive, check_rate, refuse_idle
from fredholm.blocks.feed_forward import FeedForward
from fredholm.blocks.residual import ResidualBlock
from fredholm.domains import Domain, Sequence
from fredholm.fields.field import Field
from fredholm.fields.frames.frame import Frame
from fredholm.fields.placed_field import PlacedField
from fredholm.kernels import Attention, Kernel, LinearAttention
from fredholm.kernels.fourier_features import fourier_features, sample_frequencies
from fredholm.models.fields.framed_samples import FramedSamples, framed_samples
from fredholm.models.saved_model import SavedModel
from fredholm.operators import IntegralOperator

Encoding = Literal["relative", "absolute"]
"""Positions that tokens encode: relative to the frame, or absolute."""


@final
class FieldOperator(SavedModel):
    """{(x_i, y_i)} -> f, a field that is equivariant to moves of its samples (Neural Fields Meet Attention, 3.2-3.4).

        z_i = M⁻¹ (x_i - μ),   u_i = E [y_i; z_i; γ(z_i)],   L pre-norm blocks with attention,
        v_a = a + ∫ κ(a, y) u dμ for learned seeds a,   θ = θ_0 + σ ⊙ head(v),   f(x) = f̃_θ(M⁻¹ (x - μ))

    The network reads only z, so that f of the samples g·x_i is f(g⁻¹·) exactly, for every g that the frame covers and
    for any weights. It does not depend on the order of the samples. The integrals weigh samples as their domain does.
    γ are Fourier features, σ the field's own `sizes`, θ_0 is learned. f is differentiable in samples, values, weights
    and every parameter.

    Deviations from the paper: several seeds attend in place of one mean; the head's output is added to a learned θ_0,
    in units of the field's initial size, where in the paper it is θ; no dropout by default (the paper: 0.1), since it
    makes two training passes differ. The frame is an argument, as the paper's centroid and size do not cover the
    rotations that it tests. Attention has no biases: that of the keys would have no gradient.

    Args:
        pos_dim: number s of coordinates of a sample.
        field: f̃; its `pos_dim` is s, or 2s with `fields.Periodic`.
        frame: μ and M.
        config: sizes and options.
        in_dim: number m of values of a sample, >= 1; None: that of the field. Another number makes an operator from
            one function to another, as in the solution of an equation.

    Attributes:
        start: θ_0, `(P,)`.
        seeds: a, `(num_seeds, embed_dim)`.

    Raises:
        ValueError: if field and frame differ in their number of coordinates, or on an in_dim below 1.
    """

    no_weight_decay = frozenset({"start", "seeds"})

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        """Sizes; the defaults are the paper's where it states them."""

        embed_dim: int = 128
        depth: int = 4
        """Number of blocks L."""
        num_heads: int = 8
        expansion: int = 4
        """Hidden width of the feed-forward networks, in multiples of embed_dim."""
        dropout: float = 0.0
        num_seeds: int = 8
        """Number of learned queries that read the last block's signal."""
        head_dim: int = 256
        """Hidden units of the head, a perceptron of three layers."""
        epsilon: float = 0.1
        """Initial scale of the head's output, in units of the field's initial size."""
        attention: Literal["softmax", "linear"] = "softmax"
        temperature: float | None = None
        """τ in exp(q·k / τ); None: √d of a head."""
        encoding: Encoding = "relative"
        """"absolute" reads x_i in place of z_i: an ablation, which is equivariant to no group."""
        num_frequencies: int = 32
        """Number of Fourier features of z, besides z itself; 0: none."""
        sigma: float = 0.5
        """Standard deviation of their frequencies, in cycles per unit of z; refused without Fourier features."""
        margin: float = 1.5
        """Largest ‖z‖ of a query that is not flagged, as a multiple of the furthest sample's ‖z‖."""

        def __post_init__(self) -> None:
            for name in ("embed_dim", "depth", "num_heads", "expansion", "num_seeds", "head_dim"):
                check_count("models.FieldOperator", name, getattr(self, name))
            check_count("models.FieldOperator", "num_frequencies", self.num_frequencies, least=0)
            check_rate("models.FieldOperator", "dropout", self.dropout)
            for name in ("sigma", "epsilon", "margin"):
                check_positive("models.FieldOperator", name, getattr(self, name))
            if self.temperature is not None:
                check_positive("models.FieldOperator", "temperature", self.temperature)
            for name, allowed in (("attention", ("softmax", "linear")), ("encoding", ("relative", "absolute"))):
                if getattr(self, name) not in allowed:
                    raise ValueError(
                        f"models.FieldOperator: {name} must be one of {allowed}; got {getattr(self, name)!r}"
                    )
            name = "models.FieldOperator"
            if self.attention == "linear":
                own = "attention='linear'"
                refuse_idle(name, type(self), own, "take attention='softmax'", temperature=self.temperature)
            if self.num_frequencies == 0:
                refuse_idle(name, type(self), "num_frequencies=0", "give num_frequencies", sigma=self.sigma)

    def __init__(
        self, pos_dim: int, field: Field, frame: Frame, config: Config | None = None, *, in_dim: int | None = None
    ) -> None:
        super().__init__()
        config = self.Config() if config is None else config
        if field.pos_dim != pos_dim * frame.coordinates_per_axis:
            raise ValueError(
                f"models.FieldOperator: the frame {frame} makes {pos_dim * frame.coordinates_per_axis} coordinates of "
                f"pos_dim {pos_dim}; the field takes {field.pos_dim}"
            )
        c, self.config = config, config
        self.pos_dim, self.field, self.frame = pos_dim, field, frame
        self.in_dim = field.out_dim if in_dim is None else in_dim
        check_count("models.FieldOperator", "in_dim", self.in_dim)
        places = field.pos_dim if c.encoding == "relative" else pos_dim
        self.frequencies: Tensor
        self.register_buffer("frequencies", sample_frequencies(c.num_frequencies, places, c.sigma))
        self.embed = nn.Linear(self.in_dim + places + 2 * c.num_frequencies, c.embed_dim)
        # keeps the variance of the residual stream independent of depth
        gain = 1 / math.sqrt(2 * c.depth)
        self.blocks = nn.ModuleList(
            ResidualBlock(
                IntegralOperator(self._kernel(), residual=False, output_gain=gain),
                FeedForward(c.embed_dim, c.expansion, c.dropout, gain),
                dropout=c.dropout,
            )
            for _ in range(c.depth)
        )
        self.norm = nn.LayerNorm(c.embed_dim)
        self.seeds = nn.Parameter(torch.randn(c.num_seeds, c.embed_dim))
        self.read = IntegralOperator(self._kernel(), residual=False)
        self.head = nn.Sequential(
            nn.Linear(c.num_seeds * c.embed_dim, c.head_dim),
            nn.GELU(),
            nn.Linear(c.head_dim, c.head_dim),
            nn.GELU(),
            nn.Linear(c.head_dim, field.num_parameters),
        )
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, std=c.epsilon / math.sqrt(c.head_dim))
        nn.init.zeros_(last.bias)
        self.start = nn.Parameter(field.draw())
        self.sizes: Tensor
        self.register_buffer("sizes", field.sizes())

    def _kernel(self) -> Kernel:
        c = self.config
        if c.attention == "linear":
            return LinearAttention(c.embed_dim, c.num_heads, bias=False)
        scale = None if c.temperature is None else 1 / c.temperature
        return Attention(c.embed_dim, c.num_heads, bias=False, scale=scale)

    def forward(
        self,
        u: Tensor,
        domain: Domain,
        *,
        key_padding_mask: Tensor | None = None,
        frame_weights: Tensor | None = None,
    ) -> PlacedField:
        """Returns the fields of B sets of samples.

        Args:
            u: values y_i, `(B, N, m)`; those of masked samples are never read.
            domain: positions x_i with weights and masks, N points, such as `Points(x)`.
            key_padding_mask: `(N,)` or `(B, N)` bool, True = keep, on top of the domain's own mask.
            frame_weights: weights of samples in the frame alone, in place of the domain's, `(N,)` or `(B, N)`, >= 0.
                Weights that depend on the values can give sets with symmetric positions a frame. They must be invariant
                to moves of the samples.

        Returns:
            B fields; `sample` flags queries far outside the samples. A set without samples gets a field without frame.

        Raises:
            ValueError, TypeError: on samples of another dimension, values that are NaN or infinite at samples that
                exist, or shapes that do not fit.
        """
        samples = framed_samples(
            "models.FieldOperator",
            u,
            domain,
            self.frame,
            (self.pos_dim, self.in_dim),
            key_padding_mask,
            frame_weights,
        )
        return PlacedField(
            field=self.field,
            parameters=self._predict(samples).unflatten(0, samples.z.shape[:2]),
            coordinates=samples.coordinates,
            reach=samples.reach,
            margin=self.config.margin,
        )

    def _predict(self, samples: FramedSamples) -> Tensor:
        """Returns θ, `(B·F, P)`: each frame of each set counts as a set of its own."""
        u = samples.each(samples.u)
        relative = self.config.encoding == "relative"
        places = samples.z.flatten(0, 1) if relative else samples.each(samples.pos)
        inputs = [u, places.to(u.dtype)]
        if self.config.num_frequencies:
            inputs.append(fourier_features(places, self.frequencies).to(u.dtype))
        signal = self.embed(torch.cat(inputs, dim=-1))
        for block in self.blocks:
            signal = block(signal, samples.at)
        seeds = self.seeds.to(signal.dtype).expand(u.shape[0], -1, -1)
        query_domain = Sequence(self.seeds.shape[0], device=u.device)
        read = seeds + self.read(self.norm(signal), samples.at, query=seeds, query_domain=query_domain)
        # parameters of sines need full precision
        with without_autocast(u):
            return self.start + self.sizes * self.head(read.flatten(1).to(self.start.dtype))
