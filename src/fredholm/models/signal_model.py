"""What every model of signals from an encoder offers, whatever its layers are."""

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
"""What the head reads: a class token, the integral mean of the signal, the largest value of each of its channels, or
every point for itself. The token is the encoder's, or a learned one at the centre of the unit box."""


class SignalModel(SavedModel, abc.ABC):
    """An encoder, layers on its signal, and one output vector for each input, or for each of its points.

    Args:
        encoder: from raw inputs to a signal on a domain.
        num_outputs: of the head, at least 1.
        embed_dim: channels that the layers take.
        pool: what the head reads.
        dropout: rate on the signal that enters.

    Raises:
        ValueError: on an encoder of other channels, or no outputs.
        TypeError: on an encoder that does not tell its sizes, or gives no domain.
    """

    shares_points: ClassVar[bool] = False
    """Whether layers know of other points through operators alone, which integrate over those of all processes."""
    norm: nn.Module
    head: nn.Linear

    def __init__(self, encoder: Encoder, num_outputs: int, *, embed_dim: int, pool: Pool, dropout: float) -> None:
        super().__init__()
        name = f"models.{type(self).__name__}"
        unsaid = [what for what in ("embed_dim", "pos_dim") if not hasattr(encoder, what)]
        if unsaid:
            raise TypeError(
                f"{name}: {type(encoder).__name__} does not set {' and '.join(unsaid)}; see encoders.Encoder"
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
        """From now on each process computes its share of the points of every input, in all blocks of the model.

        All processes give the same inputs, which the encoder of each reads whole, and get the same outputs, those of
        one process. So each counts its part of a loss: `(loss / P).backward()` on P processes, and then
        `distributed.reduce_gradients(model, mesh)`. What is drawn, such as dropout, each draws for itself.

        Args:
            mesh: the processes, in one dimension; None: all there are.

        Raises:
            ValueError: layers of the model read points that other processes hold; and `forward`, what
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
        """The norm and the linear head, which a model adds after its blocks, unless it has others."""
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_outputs)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    @final
    def _signal(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """What enters the first block, and where it lives; a token comes first."""
        signal = self.encoder(inputs)
        if not isinstance(signal, tuple) or len(signal) != 2:
            raise TypeError(
                f"models.{type(self).__name__}: an encoder gives a signal and its domain; "
                f"{type(self.encoder).__name__} gave a {type(signal).__name__}"
            )
        return self._entering(*signal)

    def _entering(self, u: Tensor, domain: Domain) -> tuple[Tensor, Domain]:
        """The same, of the encoder's signal."""
        if self.cls_token is not None:
            domain = Union(centre(domain), domain)
            u = torch.cat([self.cls_token.to(u.dtype).expand(u.shape[0], 1, -1), u], dim=1)
        if self._is_shared:
            u, domain = shard_points(u, domain, self._mesh)
        return self.dropout(summed(u)), domain

    def _outputs(self, u: Tensor, domain: Domain) -> Tensor:
        """What the head makes of the last signal: `(B, num_outputs)`, or `(B, N, num_outputs)` of all points.

        It is 0 at points that do not exist.
        """
        u = self.norm(u)
        if self.pool == "none":
            return domain.everywhere(domain.where_existing(self.head(u)))
        if self.pool == "max":
            return self.head(largest(u, domain))
        if self.pool == "mean":
            return self.head(domain.total((u * domain.weights.to(u.dtype)[..., None]).sum(-2)))
        first = u[:, 0]
        if domain.held.start > 0:  # the token is another's, and adds nothing here, but takes part in both directions
            first = first.masked_fill(torch.ones_like(first, dtype=torch.bool), 0.0)
        return self.head(domain.total(first))

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ImageModelConfig, CloudModelConfig, NodeModelConfig):
        """The sizes of a model that its data do not decide."""

        reads_encoder: ClassVar[bool] = True

        embed_dim: int
        """Channels of the signal, which the encoder must give."""
        pool: Pool
        """What the head reads."""

        @final
        def check_pools(self, whole: str) -> None:
            """See `CloudModelConfig.check_pools`."""
            if self.pool == "none":
                raise ValueError(f"model.pool is 'none'; leave it out, since {whole} has one answer")

        @final
        def check_nodes(self) -> None:
            """See `NodeModelConfig.check_nodes`."""
            _ = self.answering_everywhere("each node")

        @final
        def answering_everywhere(self, each: str) -> Self:
            """The same with one answer at every point.

            Args:
                each: what is predicted, in messages: "each pixel".

            Raises:
                ValueError: another pool was asked for.
            """
            return self.pooling("none", f"{each} needs an answer")

        @final
        def pooling(self, pool: Pool, because: str) -> Self:
            """The same with this pool.

            Args:
                pool: the one that is needed.
                because: why, in messages: "each pixel needs an answer".

            Raises:
                ValueError: another pool was asked for.
            """
            default = next(field.default for field in dataclasses.fields(self) if field.name == "pool")
            if self.pool not in (pool, default):
                raise ValueError(f"model.pool is {self.pool!r}, but {because}; leave it out or pass {pool!r}")
            return dataclasses.replace(self, pool=pool)

        @property
        def has_heads(self) -> bool:
            """Whether a number of heads, where there is such a setting, decides anything about the model."""
            return True

        def resized(self, width: int, depth: int, default: SignalModel.Config) -> Self:
            """The same with so many channels and blocks, and heads that divide them; what was set stays.

            Args:
                width: channels.
                depth: blocks.
                default: the task's model: what is as there, or as the kind has it by itself, was not set.
            """
            fields, defaults = {field.name for field in dataclasses.fields(self)}, self._defaults(default)
            sizes = {"embed_dim": width, "depth": depth}
            found = filled(self, defaults, **{name: size for name, size in sizes.items() if name in fields})
            if "num_heads" not in fields or not found.has_heads:
                return found
            return filled(found, defaults, num_heads=math.gcd(found.embed_dim, 2 ** round(math.log2(width / 16))))

        @final
        def sized_for(self, room: Room, default: ImageModelConfig) -> Self:
            """See `ImageModelConfig.sized_for`: as `resized`, and with less dropout where that suits."""
            known, most = default if isinstance(default, SignalModel.Config) else self, room.most_dropout
            lowered = {name: most for name in ("dropout", "drop_path") if getattr(self, name, 0.0) > most}
            return filled(self.resized(room.width, room.depth, known), self._defaults(known), **lowered)

        def _defaults(self, default: SignalModel.Config) -> list[SignalModel.Config]:
            """Settings that were not set where they are as in one of these: the kind's own, and the task's of it."""
            kind: Any = type(self)
            return [kind(), *([default] if isinstance(default, type(self)) else [])]

        @final
        def build_for(self, reading: ImageReading, num_outputs: int) -> SignalModel:
            """See `ImageModelConfig.build_for`."""
            return self.build(reading.encoder(self.embed_dim), num_outputs)

        @abc.abstractmethod
        def build(self, encoder: Encoder, num_outputs: int) -> SignalModel:
            """A new model, from the global torch seed."""

    @abc.abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """One batch of what the encoder takes, to `(B, num_outputs)`; without pooling to `(B, N, num_outputs)`."""


def summed(u: Tensor) -> Tensor:
    """A signal that branches will be added to: under autocast sums stay in float32, and norms read them as they are."""
    return u if autocast_dtype(u) is None else at_least_float32(u)


Settings = TypeVar("Settings")


def replaced(settings: Settings, **others: object) -> Settings:
    """Settings with others in place, of which `num_heads` is a suggestion alone: a model without heads leaves it."""
    if not isinstance(settings, SignalModel.Config) or others.get("num_heads") is None:
        return dataclasses.replace(settings, **others)  # pyright: ignore[reportArgumentType, reportCallIssue]
    without: Any = dataclasses.replace(settings, **others | {"num_heads": None})  # pyright: ignore[reportCallIssue]
    return dataclasses.replace(without, num_heads=others["num_heads"]) if without.has_heads else without


def largest(u: Tensor, domain: Domain) -> Tensor:
    """The largest value of each channel over the points that exist, `(B, N, C)` to `(B, C)`; 0 where none does."""
    if domain.mask is not None:
        u = torch.where(domain.mask[..., None], u, -torch.inf)
    found = domain.greatest(u.amax(1) if u.shape[1] else torch.full_like(u[:, :0].sum(1), -torch.inf))
    return torch.where(found > -torch.inf, found, 0.0)
