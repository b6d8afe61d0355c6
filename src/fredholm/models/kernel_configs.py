"""Configurations of the kernels of a model's operators: all settings that channels, heads and domain do not determine.

A model that takes a `KernelConfig` is the same model with any of these: exact, low-rank and separable perceptrons,
attention of several kinds, convolutions, recurrences, and sums of them.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Literal, final

from fredholm._settings import check_count, refuse_idle
from fredholm.kernels import (
    GRU,
    LSTM,
    MLP,
    AdditiveAttention,
    Attention,
    Constant,
    ContinuousConvolution,
    Convolution,
    FactorisedInfiniteAttention,
    InfiniteAttention,
    Kernel,
    KernelInputs,
    LinearAttention,
    LinearInfiniteAttention,
    LowRankMLP,
    OnEdges,
    PointInputs,
    SelectiveStateSpace,
    SeparableMLP,
    SpectralConvolution,
    YatAttention,
)
from fredholm.kernels.on_edges import EdgeMass
from fredholm.kernels.perceptron.mlp import Activation, check_frequencies, check_scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelConfig(abc.ABC):
    """Configuration of a kernel with equal numbers of input and output channels."""

    @property
    def has_heads(self) -> bool:
        """Whether the kernel depends on the number of heads."""
        return True

    @property
    def mixes_channels(self) -> bool:
        """Whether the kernel's own free matrices over all channels absorb any matrix that follows the integral.

        W^O κ is then a kernel of the same kind, and W^O would be redundant.
        """
        return False

    @property
    def inner_path(self) -> str:
        """Path to the settings of the kernel that may have heads, such as `.kernel`; "" for these settings."""
        return ""

    @final
    @property
    def kinds(self) -> str:
        """Name of the class, with those of inner kernels, for messages."""
        parts = (getattr(self, field.name) for field in dataclasses.fields(self))
        inner = ", ".join(part.kinds for part in parts if isinstance(part, KernelConfig))
        return f"{type(self).__name__}({inner})" if inner else type(self).__name__

    @final
    def refuse_heads(self, name: str, owner: Callable[..., object], num_heads: int | None) -> None:
        """Raises a ValueError if a number of heads is set although the kernel has no heads.

        Args:
            name: name of the model, for the message.
            owner: the model's settings.
            num_heads: number of heads in these settings.
        """
        instead = f"give kernel{self.inner_path} with heads, such as mlp"
        refuse_idle(name, owner, f"kernel={self.kinds}", instead, num_heads=num_heads)

    @abc.abstractmethod
    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """Builds a kernel, with random numbers from the global torch seed.

        Args:
            embed_dim: number of input and output channels.
            num_heads: number of heads, for kernels with heads.
            pos_dim: number of coordinates of a position.
            is_causal: whether κ = 0 where y comes after x. Recurrences are always causal.
            edge_dim: number of features of a pair of points in the data, which perceptrons of pairs read.

        Raises:
            ValueError: no such kernel exists for these arguments.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerceptronConfig(KernelConfig):
    """Common settings of the three kinds of perceptrons; see `kernels.MLP`."""

    width: int = 128
    """Hidden units of each kernel's perceptron."""
    activation: Activation = "gelu"
    num_frequencies: int = 64
    """Number of Fourier frequencies of each kernel; 0 reads raw coordinates."""
    sigma: float = 10.0
    """Standard deviation of the frequencies, in cycles per unit length; refused without frequencies."""
    head_shared: bool = False
    """Whether all heads of a layer share one kernel."""
    epsilon: float = 1e-3
    """Scale of the kernels' initial output weights."""
    inputs: KernelInputs | PointInputs = dataclasses.field(default_factory=PointInputs)
    """Input groups that the kernels read."""

    def __post_init__(self) -> None:
        name = f"models.{type(self).__name__}"
        check_frequencies(name, type(self), self.inputs.has_frequencies, self.num_frequencies, self.sigma)
        check_scale(name, self.epsilon)

    @final
    def _settings(self, is_causal: bool) -> dict[str, Any]:
        names = [field.name for field in dataclasses.fields(self)]
        return {"is_causal": is_causal, **{name: getattr(self, name) for name in names}}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MLPConfig(PerceptronConfig):
    """The exact perceptron of ITNet, with cost quadratic in the points; see `kernels.MLP`."""

    depth: int = 2
    """Number of linear layers of each kernel's perceptron."""
    inputs: KernelInputs = dataclasses.field(default_factory=KernelInputs)
    """Input groups that the kernels read, of seven."""

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        return MLP(embed_dim, num_heads, pos_dim, edge_dim=edge_dim, **self._settings(is_causal))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRankConfig(PerceptronConfig):
    """Low-rank perceptrons (ITNet, 3.3), with cost linear in the points; see `kernels.LowRankMLP`."""

    rank: int = 16
    """Rank of a head."""
    inputs: PointInputs = dataclasses.field(default_factory=PointInputs)
    """Input groups of one point that the kernels read, of four."""

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        return LowRankMLP(embed_dim, num_heads, pos_dim, **self._settings(is_causal))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SeparableConfig(PerceptronConfig):
    """Separable perceptrons, with cost linear in the points; see `kernels.SeparableMLP`."""

    inputs: PointInputs = dataclasses.field(default_factory=PointInputs)
    """Input groups of one point that the kernels read, of four."""

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        return SeparableMLP(embed_dim, num_heads, pos_dim, **self._settings(is_causal))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig(KernelConfig):
    """Softmax attention; see `kernels.Attention`."""

    num_kv_heads: int | None = None
    """Number of heads of keys and values, a divisor of the number of heads; None: equal to it."""

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        return Attention(embed_dim, num_heads, num_kv_heads=self.num_kv_heads, is_causal=is_causal)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(KernelConfig):
    """Attention by a feature map, with cost linear in the points; see `kernels.LinearAttention`."""

    num_kv_heads: int | None = None
    """Number of heads of keys and values, a divisor of the number of heads; None: equal to it."""

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        return LinearAttention(embed_dim, num_heads, num_kv_heads=self.num_kv_heads, is_causal=is_causal)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class YatConfig(KernelConfig):
    """Yat attention under softmax; see `kernels.YatAttention`."""

    epsilon: float = 4.0
    """Softening of scores per channel of a head: ε is this times the number of compared channels."""
    learn_epsilon: bool = False
    """Whether each layer learns its own ε, starting from this one."""
    score_gain: float = 1 / 16
    """Initial variance of queries and keys, for a signal of variance 1."""

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        return YatAttention(
            embed_dim,
            num_heads,
            epsilon=self.epsilon * embed_dim / num_heads,
            learn_epsilon=self.learn_epsilon,
            score_gain=self.score_gain,
            is_causal=is_causal,
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class InfiniteConfig(KernelConfig):
    """Attention along all chains of points (InfSA); see `kernels.InfiniteAttention` and its two relatives."""

    kind: Literal["exact", "factorised", "linear"] = "exact"
    """All hops of full attention, at quadratic cost; all hops of attention by a feature map; or a single pooling at the
    central points, which is not causal."""
    gamma: float = 0.7
    """Discount of a hop, in (0, 1)."""
    learn_gamma: bool = False
    """Whether each head learns its own discount, starting from `gamma`."""

    def __post_init__(self) -> None:
        if self.kind not in ("exact", "factorised", "linear"):
            raise ValueError(f"models.InfiniteConfig: kind is 'exact', 'factorised' or 'linear'; got {self.kind!r}")

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        settings = {"gamma": self.gamma, "learn_gamma": self.learn_gamma, "is_causal": is_causal}
        if self.kind == "linear":
            if is_causal:
                raise ValueError(
                    "models.InfiniteConfig: kind='linear' pools all points once, so it cannot be causal; take "
                    "'factorised' or 'exact'"
                )
            return LinearInfiniteAttention(embed_dim, num_heads, gamma=self.gamma, learn_gamma=self.learn_gamma)
        kind = InfiniteAttention if self.kind == "exact" else FactorisedInfiniteAttention
        return kind(embed_dim, num_heads, **settings)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionConfig(KernelConfig):
    """A stencil on a grid or a sequence, the same size along each axis; see `kernels.Convolution`."""

    kernel_size: int = 3
    """Number of points of the stencil along an axis, odd."""
    depthwise: bool = False
    """Whether each channel has a stencil of its own; otherwise channels are mixed."""

    def __post_init__(self) -> None:
        check_count("models.ConvolutionConfig", "kernel_size", self.kernel_size)
        if self.kernel_size % 2 == 0:
            raise ValueError(f"models.ConvolutionConfig: kernel_size must be odd; got {self.kernel_size}")

    @property
    def has_heads(self) -> bool:
        """See `KernelConfig.has_heads`."""
        return False

    @property
    def mixes_channels(self) -> bool:
        """See `KernelConfig.mixes_channels`."""
        return not self.depthwise

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        if is_causal:
            raise ValueError(
                "models.ConvolutionConfig: a centred stencil looks ahead, so it cannot be causal; take "
                "ContinuousConvolutionConfig with a horizon"
            )
        groups = embed_dim if self.depthwise else 1
        return Convolution(embed_dim, embed_dim, self.kernel_size, pos_dim, padding="same", groups=groups)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ContinuousConvolutionConfig(KernelConfig):
    """A filter that is a small network of the displacement (CKConv); see `kernels.ContinuousConvolution`."""

    width: int = 32
    """Number of hidden units of the network."""
    omega_0: float = 30.0
    """Frequency scale of its sines."""
    horizon: float | None = None
    """Reach of the filter, in the unit of positions; None: the length of the input."""
    depthwise: bool = True
    """Whether each channel has a filter of its own; otherwise channels are mixed."""

    @property
    def has_heads(self) -> bool:
        """See `KernelConfig.has_heads`."""
        return False

    @property
    def mixes_channels(self) -> bool:
        """See `KernelConfig.mixes_channels`."""
        return not self.depthwise

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        return ContinuousConvolution(
            embed_dim,
            embed_dim,
            pos_dim,
            groups=embed_dim if self.depthwise else 1,
            is_causal=is_causal,
            horizon=self.horizon,
            width=self.width,
            omega_0=self.omega_0,
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SpectralConfig(KernelConfig):
    """A filter that is a Fourier series, as in Fourier neural operators; see `kernels.SpectralConvolution`."""

    num_waves_per_axis: int = 6
    """The highest frequency along an axis, in waves per period; points must be dense enough to resolve it, at least two
    per wave."""
    period: float | tuple[float, ...] = 1.0
    """Period, in the unit of positions, one for all axes or one per axis; 1 makes the unit box a torus, 2 avoids
    wrap-around."""

    @property
    def has_heads(self) -> bool:
        """See `KernelConfig.has_heads`."""
        return False

    @property
    def mixes_channels(self) -> bool:
        """See `KernelConfig.mixes_channels`."""
        return True

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        if is_causal:
            raise ValueError(
                "models.SpectralConfig: waves look both ways, so this filter cannot be causal; take "
                "ContinuousConvolutionConfig"
            )
        return SpectralConvolution(
            embed_dim, embed_dim, pos_dim, num_waves_per_axis=self.num_waves_per_axis, period=self.period
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrenceConfig(KernelConfig):
    """A recurrence along a sequence, always from the left; see `kernels.SelectiveStateSpace`."""

    kind: Literal["selective", "lstm", "gru"] = "selective"
    """The selective state space of Mamba, without its block, or a recurrent cell."""
    state_dim: int | None = None
    """State variables per channel of the selective state space (None: 16); a recurrent cell has one per channel."""

    def __post_init__(self) -> None:
        if self.kind not in ("selective", "lstm", "gru"):
            raise ValueError(f"models.RecurrenceConfig: kind is 'selective', 'lstm' or 'gru'; got {self.kind!r}")
        if self.kind != "selective":
            refuse_idle(
                "models.RecurrenceConfig",
                RecurrenceConfig,
                f"kind={self.kind!r}, whose state is as wide as the signal",
                "leave it out",
                state_dim=self.state_dim,
            )

    @property
    def has_heads(self) -> bool:
        """See `KernelConfig.has_heads`."""
        return False

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        if self.kind == "selective":
            return SelectiveStateSpace(embed_dim, 16 if self.state_dim is None else self.state_dim)
        return (LSTM if self.kind == "lstm" else GRU)(embed_dim, embed_dim)


def check_kernel_config(name: str, what: str, kernel: object) -> None:
    """Raises a TypeError, which begins with `name`, unless the setting `what` is the configuration of a kernel."""
    if not isinstance(kernel, KernelConfig):
        got = kernel.__name__ if isinstance(kernel, type) else type(kernel).__name__
        raise TypeError(
            f"{name}: {what} must be the configuration of a kernel, such as {what}=MLPConfig(); got {got}; the model "
            "builds a kernel from it for every layer"
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SumConfig(KernelConfig):
    """The sum of two kernels; a term may be a sum again. See `kernels.Sum`."""

    first: KernelConfig = dataclasses.field(default_factory=MLPConfig)
    second: KernelConfig = dataclasses.field(default_factory=AttentionConfig)

    def __post_init__(self) -> None:
        for what in ("first", "second"):
            check_kernel_config("models.SumConfig", what, getattr(self, what))

    @property
    def has_heads(self) -> bool:
        """See `KernelConfig.has_heads`."""
        return self.first.has_heads or self.second.has_heads

    @property
    def mixes_channels(self) -> bool:
        """See `KernelConfig.mixes_channels`."""
        return self.first.mixes_channels and self.second.mixes_channels

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        first, second = (
            term.build(embed_dim, num_heads, pos_dim, is_causal=is_causal, edge_dim=edge_dim)
            for term in (self.first, self.second)
        )
        return first + second


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class OnEdgesConfig(KernelConfig):
    """A kernel along the edges of a graph, plus λ times the kernel between all nodes; see `kernels.OnEdges`."""

    kernel: KernelConfig = dataclasses.field(default_factory=MLPConfig)
    """The kernel itself."""
    long_range: float | None = 0.1
    """Initial λ, above 0; None: edges alone."""
    edge_mass: EdgeMass = "mean"
    """Mass of an edge: neighbours share mass 1, count 1 each, are normalised by both degrees, or keep their measure."""

    def __post_init__(self) -> None:
        check_kernel_config("models.OnEdgesConfig", "kernel", self.kernel)

    @property
    def has_heads(self) -> bool:
        """See `KernelConfig.has_heads`."""
        return self.kernel.has_heads

    @property
    def inner_path(self) -> str:
        """See `KernelConfig.inner_path`."""
        return f".kernel{self.kernel.inner_path}"

    @property
    def mixes_channels(self) -> bool:
        """See `KernelConfig.mixes_channels`."""
        return self.kernel.mixes_channels

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        kernel = self.kernel.build(embed_dim, num_heads, pos_dim, is_causal=is_causal, edge_dim=edge_dim)
        return OnEdges(kernel, long_range=self.long_range, edge_mass=self.edge_mass)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class AdditiveAttentionConfig(KernelConfig):
    """Attention whose score is a sum over the two points, as in graph attention; see `kernels.AdditiveAttention`."""

    negative_slope: float = 0.2
    """Negative slope of the leaky ReLU."""

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        if is_causal:
            raise ValueError("models.AdditiveAttentionConfig: this attention looks both ways; take AttentionConfig")
        return AdditiveAttention(embed_dim, num_heads, negative_slope=self.negative_slope)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstantConfig(KernelConfig):
    """One matrix for all pairs: a mean, and along edges a graph convolution; see `kernels.Constant`."""

    @property
    def has_heads(self) -> bool:
        """See `KernelConfig.has_heads`."""
        return False

    @property
    def mixes_channels(self) -> bool:
        """See `KernelConfig.mixes_channels`."""
        return True

    def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
        """See `KernelConfig.build`."""
        if is_causal:
            raise ValueError("models.ConstantConfig: a mean looks both ways, so it cannot be causal")
        return Constant(embed_dim, embed_dim)


LEAST_HEADS, HEAD_DIM = 4, 64


def usual_heads(embed_dim: int) -> int:
    """Default number of heads: one for every 64 channels, but at least 4, lowered to a divisor of the channels."""
    return max(heads for heads in range(1, max(LEAST_HEADS, embed_dim // HEAD_DIM) + 1) if embed_dim % heads == 0)


KERNELS: tuple[type[KernelConfig], ...] = (
    MLPConfig,
    LowRankConfig,
    SeparableConfig,
    AttentionConfig,
    LinearAttentionConfig,
    YatConfig,
    InfiniteConfig,
    ConvolutionConfig,
    ContinuousConvolutionConfig,
    SpectralConfig,
    RecurrenceConfig,
    SumConfig,
    OnEdgesConfig,
    AdditiveAttentionConfig,
    ConstantConfig,
)
"""All kernel configurations; new ones are added here."""
