"""Base class of models on the signal of an encoder."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, ClassVar, Literal, Self, TypeVar, final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from fredholm._precision import at_least_float32, autocast_dtype
from fredholm._settings import check_count, filled
from fredholm.distributed import shard_points
from fredholm.domains import Domain, Union
from fredholm.domains.points import centre
from fredholm.encoders.encoder import Encoder
from fredholm.models.cloud_model import CloudModelConfig
from fredholm.models.images.image_model import ImageModelConfig, ImageReading, Room
from fredholm.models.node_model import NodeModelConfig
from fredholm.models.saved_model import SavedModel

Pool = Literal["cls", "mean", "max", "none"]
"""Pooling before the head: a class token, the integral mean of the signal, the maximum of each channel, or none, with
one output per point. The token is the encoder's, or a learned one at the centre of the unit box."""


class SignalModel(SavedModel, abc.ABC):
    """An encoder, layers on its signal, and a head with one output vector per input or per point.

    Args:
        encoder: from raw inputs to a signal on a domain.
        num_outputs: number of outputs of the head, at least 1.
        embed_dim: number of channels of the layers.
        pool: pooling before the head.
        dropout: dropout rate of the input signal.

    Raises:
        ValueError: on an encoder with another number of channels, or no outputs.
        TypeError: on an encoder that does not set its sizes, or returns no domain.
    """

    shares_points: ClassVar[bool] = False
    """Whether points interact only in operators, which can integrate over the points of all processes."""
    norm: nn.Module
    head: nn.Linear

    def __init__(self, encoder: Encoder, num_outputs: int, *, embed_dim: int, pool: Pool, dropout: float) -> None:
        super().__init__()
        name = f"models.{type(self).__name__}"
        missing = [what for what in ("embed_dim", "pos_dim") if not hasattr(encoder, what)]
        if missing:
            raise TypeError(
                f"{name}: {type(encoder).__name__} does not set {' and '.join(missing)}; see encoders.Encoder"
            )
        if encoder.embed_dim != embed_dim:
            raise ValueError(
                f"{name}: the encoder gives {encoder.embed_dim} channels, the model has embed_dim {embed_dim}"
            )
        check_count(name, "num_outputs", num_outputs)
        self.encoder = encoder
        self.pool = pool
        adds_token = pool == "cls" and not encoder.has_class_token
        self.cls_token = nn.Parameter(0.02 * torch.randn(embed_dim)) if adds_token else None
        self.dropout = nn.Dropout(dropout)
        self._is_shared, self._mesh = False, None

    def share_points(self, mesh: DeviceMesh | None = None) -> Self:
        """Distributes the points of every input over processes, in all blocks of the model.

        All processes pass the same inputs, encode them whole, and get the outputs that a single process would compute.
        So each computes its part of a loss: `(loss / P).backward()` on P processes, and then
        `distributed.reduce_gradients(model, mesh)`. Random numbers, as for dropout, differ between processes.

        Args:
            mesh: a one-dimensional mesh of processes; None: all processes.

        Raises:
            ValueError: layers of the model read points that other processes hold. `forward` also raises for inputs that
                `distributed.Shard` refuses.
        """
        if not self.shares_points:
            raise ValueError(
                f"models.{type(self).__name__}: its layers read points that other processes would hold; share those of "
                "an ITNet, InfViT, NeuralOperator or PointPooling, or keep the model on one process"
            )
        self._is_shared, self._mesh = True, mesh
        return self

    @final
    def _add_head(self, embed_dim: int, num_outputs: int) -> None:
        """Adds the usual norm and linear head, for models that do not have their own."""
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_outputs)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    @final
    def _signal(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """The input of the first block, and its domain; a class token comes first."""
        signal = self.encoder(inputs)
        if not isinstance(signal, tuple) or len(signal) != 2:
            raise TypeError(
                f"models.{type(self).__name__}: an encoder gives a signal and its domain; "
                f"{type(self.encoder).__name__} gave a {type(signal).__name__}"
            )
        return self._entering(*signal)

    def _entering(self, u: Tensor, domain: Domain) -> tuple[Tensor, Domain]:
        """The input of the first block from the encoder's signal."""
        if self.cls_token is not None:
            domain = Union(centre(domain), domain)
            u = torch.cat([self.cls_token.to(u.dtype).expand(u.shape[0], 1, -1), u], dim=1)
        if self._is_shared:
            u, domain = shard_points(u, domain, self._mesh)
        return self.dropout(summed(u)), domain

    def _outputs(self, u: Tensor, domain: Domain) -> Tensor:
        """Outputs of the head from the last signal: `(B, num_outputs)`, or `(B, N, num_outputs)` at all points.

        They are 0 at masked points.
        """
        u = self.norm(u)
        if self.pool == "none":
            return domain.everywhere(domain.where_existing(self.head(u)))
        if self.pool == "max":
            return self.head(largest(u, domain))
        if self.pool == "mean":
            return self.head(domain.total((u * domain.weights.to(u.dtype)[..., None]).sum(-2)))
        first = u[:, 0]
        if domain.held.start > 0:  # another process holds the token: it adds 0 here, but forward and backward need it
            first = first.masked_fill(torch.ones_like(first, dtype=torch.bool), 0.0)
        return self.head(domain.total(first))

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ImageModelConfig, CloudModelConfig, NodeModelConfig):
        """Settings of a model that do not depend on its data."""

        reads_encoder: ClassVar[bool] = True

        embed_dim: int
        """Number of channels of the signal, equal to the encoder's."""
        pool: Pool
        """Pooling before the head."""

        @final
        def check_pools(self, whole: str) -> None:
            """See `CloudModelConfig.check_pools`."""
            if self.pool == "none":
                raise ValueError(f"model.pool is 'none'; leave it out, since {whole} has one output")

        @final
        def check_nodes(self) -> None:
            """See `NodeModelConfig.check_nodes`."""
            _ = self.answering_everywhere("each node")

        @final
        def answering_everywhere(self, each: str) -> Self:
            """Returns the settings with one output at every point.

            Args:
                each: name of the points in messages, such as "each pixel".

            Raises:
                ValueError: another pooling was set.
            """
            return self.pooling("none", f"{each} needs an output")

        @final
        def pooling(self, pool: Pool, because: str) -> Self:
            """Returns the settings with this pooling.

            Args:
                pool: the pooling that is needed.
                because: the reason in messages, such as "each pixel needs an output".

            Raises:
                ValueError: another pooling was set.
            """
            default = next(field.default for field in dataclasses.fields(self) if field.name == "pool")
            if self.pool not in (pool, default):
                raise ValueError(f"model.pool is {self.pool!r}, but {because}; leave it out or pass {pool!r}")
            return dataclasses.replace(self, pool=pool)

        @property
        def has_heads(self) -> bool:
            """Whether the model depends on its number of heads, if it has such a setting."""
            return True

        def resized(self, width: int, depth: int, default: SignalModel.Config) -> Self:
            """Returns the settings with these numbers of channels and blocks, and heads that divide the channels.

            Settings that were set stay.

            Args:
                width: number of channels.
                depth: number of blocks.
                default: the task's default model: a setting equal to it, or to the class's default, counts as not set.
            """
            fields, defaults = {field.name for field in dataclasses.fields(self)}, self._defaults(default)
            sizes = {"embed_dim": width, "depth": depth}
            found = filled(self, defaults, **{name: size for name, size in sizes.items() if name in fields})
            if "num_heads" not in fields or not found.has_heads:
                return found
            return filled(found, defaults, num_heads=math.gcd(found.embed_dim, 2 ** round(math.log2(width / 16))))

        @final
        def sized_for(self, room: Room, default: ImageModelConfig) -> Self:
            """See `ImageModelConfig.sized_for`: as `resized`, with dropout rates of at most `max_dropout`."""
            known, most = default if isinstance(default, SignalModel.Config) else self, room.max_dropout
            lowered = {name: most for name in ("dropout", "drop_path") if getattr(self, name, 0.0) > most}
            return filled(self.resized(room.width, room.depth, known), self._defaults(known), **lowered)

        def _defaults(self, default: SignalModel.Config) -> list[SignalModel.Config]:
            """Defaults that mark a setting as not set: those of the class, and the task's if it is of this class."""
            kind: Any = type(self)
            return [kind(), *([default] if isinstance(default, type(self)) else [])]

        @final
        def build_for(self, reading: ImageReading, num_outputs: int) -> SignalModel:
            """See `ImageModelConfig.build_for`."""
            return self.build(reading.encoder(self.embed_dim), num_outputs)

        @abc.abstractmethod
        def build(self, encoder: Encoder, num_outputs: int) -> SignalModel:
            """Builds a model, with random numbers from the global torch seed."""

    @abc.abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Maps a batch of encoder inputs to `(B, num_outputs)`; without pooling to `(B, N, num_outputs)`."""


def summed(u: Tensor) -> Tensor:
    """The residual stream, in float32 under autocast, so that sums keep their precision."""
    return u if autocast_dtype(u) is None else at_least_float32(u)


Settings = TypeVar("Settings")


def replaced(settings: Settings, **others: object) -> Settings:
    """Replaces settings; `num_heads` is only a suggestion, which a model without heads ignores."""
    if not isinstance(settings, SignalModel.Config) or others.get("num_heads") is None:
        return dataclasses.replace(settings, **others)  # pyright: ignore[reportArgumentType, reportCallIssue]
    without: Any = dataclasses.replace(settings, **others | {"num_heads": None})  # pyright: ignore[reportCallIssue]
    return dataclasses.replace(without, num_heads=others["num_heads"]) if without.has_heads else without


def largest(u: Tensor, domain: Domain) -> Tensor:
    """Max pooling over existing points, `(B, N, C)` to `(B, C)`; 0 without points."""
    if domain.mask is not None:
        u = torch.where(domain.mask[..., None], u, -torch.inf)
    found = domain.greatest(u.amax(1) if u.shape[1] else torch.full_like(u[:, :0].sum(1), -torch.inf))
    return torch.where(found > -torch.inf, found, 0.0)
