"""CKCNN: residual blocks of continuous kernel convolutions."""

import dataclasses
import itertools
from typing import Literal, Self, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive, check_rate, refuse_idle
from fredholm.blocks.post_norm import BlockState, PostNormBlock
from fredholm.domains import Domain, Sequence
from fredholm.encoders.encoder import Encoder
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.kernels import ContinuousConvolution
from fredholm.kernels.convolution.kernel_network import KernelActivation
from fredholm.models.saved_model import SavedModel
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling
from fredholm.operators import IntegralOperator

StackState = tuple[BlockState, ...]
"""The states of all blocks."""


@final
class ContinuousStack(SavedModel):
    """Residual blocks of two continuous convolutions each, from a signal to a signal on one domain (CKConv, figure 8).

    The convolutions sum over samples: see `encoders.Series` for the weights of samples at another rate.

    Args:
        in_dim: number of channels of the signal.
        config: the stack.
        pos_dim: number of coordinates of a position.
        extent: longest distance between two points in training, in the unit of the positions, above 0; the length of
            kernels without a horizon.
        spacing: distance between neighbouring points in training, in that unit; above 0.

    Raises:
        ValueError: on a causal stack for points in more than one dimension, or settings that the kernel refuses.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        """Sizes, kernels and regularisation; the defaults are the paper's network with some 100,000 parameters."""

        embed_dim: int = 30
        """Number of channels of every block."""
        depth: int = 2
        """Number of blocks."""
        kernel_width: int = 32
        """Number of units of both hidden layers of each kernel's network."""
        activation: KernelActivation = "sine"
        omega_0: float = 30.0
        """Frequency of the sines, refused for other activations; the paper's best values are from 1 to 70, and results
        depend strongly on it."""
        learn_omega_0: bool = False
        """Whether each kernel learns its own frequency, starting from `omega_0`."""
        horizon: float | None = None
        """Reach of the kernels, in the unit of the positions; None: the longest input of training, and beyond."""
        is_causal: bool = True
        """Whether the output at a point depends only on earlier points and itself."""
        smoothing: bool = False
        """Whether kernels are smoothed on grids finer than in training (CKConv, E.3)."""
        dropout: float = 0.1
        """Dropout rate between the two convolutions of a block."""
        input_dropout: float = 0.0
        """Dropout rate of the input signal."""
        weight_dropout: float = 0.0
        """Dropout rate of the output weights of the kernels' networks."""
        pool: Literal["last", "mean", "none"] = "last"
        """Pooling before the head: the last existing point, as in the paper; the mean; or none, with one output per
        point."""

        def __post_init__(self) -> None:
            for name in ("embed_dim", "depth", "kernel_width"):
                check_count("models.CKCNN", name, getattr(self, name))
            for name in ("dropout", "input_dropout", "weight_dropout"):
                check_rate("models.CKCNN", name, getattr(self, name))
            check_positive("models.CKCNN", "omega_0", self.omega_0)
            if self.horizon is not None:
                check_positive("models.CKCNN", "horizon", self.horizon)
            if self.activation != "sine":
                sines = {"omega_0": self.omega_0, "learn_omega_0": self.learn_omega_0}
                own = f"activation={self.activation!r}"
                refuse_idle("models.CKCNN", type(self), own, "take activation='sine'", **sines)
            if self.pool not in ("last", "mean", "none"):
                raise ValueError(f"models.CKCNN: pool is 'last', 'mean' or 'none'; got {self.pool!r}")

    def __init__(
        self, in_dim: int, config: Config, *, pos_dim: int = 1, extent: float = 1.0, spacing: float = 0.01
    ) -> None:
        super().__init__()
        self.config, self.pos_dim, self.extent, self.spacing = config, pos_dim, extent, spacing
        self.input_dropout = nn.Dropout(config.input_dropout)
        widths = [in_dim, *[config.embed_dim] * config.depth]
        self.blocks = nn.ModuleList(
            PostNormBlock(
                self._operator(before, after),
                self._operator(after, after),
                dropout=config.dropout,
            )
            for before, after in itertools.pairwise(widths)
        )

    def _operator(self, in_dim: int, out_dim: int) -> IntegralOperator:
        c = self.config
        kernel = ContinuousConvolution(
            in_dim,
            out_dim,
            self.pos_dim,
            is_causal=c.is_causal,
            horizon=c.horizon,
            scale=self.extent if c.horizon is None else None,
            spacing=self.spacing,
            width=c.kernel_width,
            activation=c.activation,
            omega_0=c.omega_0,
            learn_omega_0=c.learn_omega_0,
            weight_dropout=c.weight_dropout,
            smoothing=c.smoothing,
        )
        return IntegralOperator(kernel, residual=False, output_projection=False)

    def forward(self, u: Tensor, domain: Domain, at: Tensor | None = None) -> Tensor:
        """Maps `(B, N, in_dim)` to `(B, N, embed_dim)`; values at masked points are meaningless.

        Args:
            u: the signal.
            domain: its points.
            at: int64 `(M,)` or `(B, M)`, indices of the output points, with outputs `(B, M, embed_dim)`; None: all.
        """
        u = self.input_dropout(u)
        *blocks, last = self._blocks()
        for block in blocks:
            u = block(u, domain)
        return last(u, domain, at=at)

    def initial_state(self, batch_size: int) -> StackState:
        """The state before the first point, for `scan`; only for causal stacks."""
        return tuple(block.initial_state(batch_size) for block in self._blocks())

    def scan(self, u: Tensor, domain: Sequence, state: StackState) -> tuple[Tensor, StackState]:
        """Maps the next chunk of a sequence, on a domain that continues its times, and returns the state at its end."""
        u = self.input_dropout(u)
        reached = []
        for block, past in zip(self._blocks(), state, strict=True):
            u, seen = block.scan(u, domain, past)
            reached.append(seen)
        return u, tuple(reached)

    def _blocks(self) -> list[PostNormBlock]:
        return [block for block in self.blocks if isinstance(block, PostNormBlock)]


@final
class CKCNN(SavedModel):
    """An encoder, a stack of continuous convolutions and a linear head (CKConv, figure 8 and E.1).

    Deviation: layer normalisation is over the channels of each point. The paper's text leaves open whether it also runs
    over the sequence, where a causal network would see the future.

    Args:
        encoder: turns raw inputs into a signal on a domain, such as `encoders.Series`.
        num_outputs: number of outputs of the head, such as one logit per class.
        config: the stack and its pooling.
        extent, spacing: extent and spacing of the positions in training; see `ContinuousStack`.

    Raises:
        ValueError: on sizes below 1, an encoder whose channels differ from the config's lift, or settings that
            `ContinuousStack` refuses.
    """

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ContinuousStack.Config, SeriesModelConfig):
        """The stack and the lift before it."""

        lift: int | None = None
        """Number of channels of a linear map before the stack; None, as in the paper: no such map."""

        def check(self) -> None:
            """See `SeriesModelConfig.check`."""
            if self.pool == "none":
                raise ValueError("model.pool is 'none'; expected 'last' or 'mean', since a series has one class")

        def answering_everywhere(self) -> Self:
            """See `SeriesModelConfig.answering_everywhere`."""
            if self.pool == "mean":
                raise ValueError("model.pool is 'mean', but each sample needs an output; leave it out or pass 'none'")
            return dataclasses.replace(self, pool="none")

        def build(self, sampling: SeriesSampling, num_outputs: int) -> "CKCNN":
            """See `SeriesModelConfig.build`."""
            encoder = Series(sampling.channels, self.lift, spacing=sampling.spacing)
            return CKCNN(encoder, num_outputs, self, extent=sampling.extent, spacing=sampling.spacing)

    def __init__(
        self,
        encoder: Encoder,
        num_outputs: int,
        config: Config,
        *,
        extent: float = 1.0,
        spacing: float = 0.01,
    ) -> None:
        super().__init__()
        check_count("models.CKCNN", "num_outputs", num_outputs)
        if config.lift not in (None, encoder.embed_dim):
            raise ValueError(f"models.CKCNN: the encoder gives {encoder.embed_dim} channels; the lift is {config.lift}")
        self.config, self.encoder = config, encoder
        self.stack = ContinuousStack(encoder.embed_dim, config, pos_dim=encoder.pos_dim, extent=extent, spacing=spacing)
        self.head = nn.Linear(config.embed_dim, num_outputs)

    def forward(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Maps a batch of encoder inputs to `(B, num_outputs)`, or `(B, N, num_outputs)` with `pool="none"`.

        Without pooling the outputs are 0 at masked points. A batch entry without points is pooled to 0.
        """
        u, domain = self.encoder(inputs)
        if self.config.pool == "last":
            return self.head(self._last(u, domain))
        u = self.stack(u, domain)
        if self.config.pool == "mean":
            return self.head(_mean(u, domain))
        out = self.head(u)
        return out if domain.mask is None else torch.where(domain.mask[..., None], out, 0.0)

    def _last(self, u: Tensor, domain: Domain) -> Tensor:
        """Output of the stack for `(B, N, C)` at each entry's last existing point, `(B, embed_dim)`."""
        if not u.shape[1]:
            return u.new_zeros(u.shape[0], self.config.embed_dim)
        if domain.mask is None:
            return self.stack(u, domain, u.new_full((1,), u.shape[1] - 1, dtype=torch.int64))[:, 0]
        # counted from 1, so that 0 means an entry without points
        place = (torch.arange(1, u.shape[1] + 1, device=u.device) * domain.mask).amax(-1, keepdim=True)
        place = place.expand(u.shape[0], 1)
        return torch.where(place > 0, self.stack(u, domain, (place - 1).clamp_min(0))[:, 0], 0.0)


def _mean(u: Tensor, domain: Domain) -> Tensor:
    """Weighted mean of the signal over existing points, `(B, C)`."""
    mass = domain.weights.to(torch.promote_types(u.dtype, torch.float32))
    share = mass / mass.sum(-1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)
    return (u * share[..., None]).sum(-2).to(u.dtype)
