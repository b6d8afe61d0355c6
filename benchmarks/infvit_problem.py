"""InfViT with each kind of attention, softmax in two forms, and one batch of images for all of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from benchmarks.harness import Direction, Instance, Options, Step, directed, require_agreement
from benchmarks.itnet_problem import TOLERANCE, Precision
from benchmarks.written_out import WrittenLinear, WrittenSoftmax, WrittenWeights
from fredholm import encoders
from fredholm.blocks.discounted import DiscountedBlock
from fredholm.blocks.residual import ResidualBlock
from fredholm.evaluation import Evaluation
from fredholm.models.images.infvit import AttentionKind, InfViT

LINEAR, FACTORISED, PURE, RESOLVENT = "linear", "factorised", "pure", "resolvent"
SDPA, PLAIN = "softmax, SDPA", "softmax, written out"
OUTPUTS = 1000
GATE_SIDE = 13
"""Patches along a side of the image on which every model must agree with its oracle."""


@final
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of all models; the defaults are 4L-64H at 768 channels, one image at a time."""

    embed_dim: int = 768
    """Channels: 768 make the paper's heads of 12, 1024 about its parameters."""
    depth: int = 4
    num_heads: int = 64
    patch_size: int = 16
    batch: int = 1
    """Images at a time."""
    precision: Precision | None = None
    """bfloat16 is autocast; default: bfloat16 on a GPU, float32 on a CPU."""

    def model(self, attention: AttentionKind) -> InfViT.Config:
        """The model configuration with one kind of attention."""
        return InfViT.Config(embed_dim=self.embed_dim, depth=self.depth, num_heads=self.num_heads, attention=attention)

    def precision_on(self, device: torch.device) -> Precision:
        """The precision of computations on a device."""
        return self.precision or ("bfloat16" if device.type == "cuda" else "float32")


@final
@dataclass(frozen=True)
class Side:
    """One of the models that are measured.

    Args:
        attention: kind of attention.
        power: time and memory grow at most as this power of the patches.
        route: route of the attention; None: the library's choice.
        oracle: route by which the gate computes the same.
    """

    attention: AttentionKind
    power: int
    route: Evaluation | None = None
    oracle: Evaluation = field(default_factory=WrittenWeights)


SIDES: dict[str, Side] = {
    LINEAR: Side("linear", 1, oracle=WrittenLinear()),
    FACTORISED: Side("factorised", 1),
    PURE: Side("pure", 2),
    RESOLVENT: Side("resolvent", 2),
    SDPA: Side("softmax", 2, oracle=WrittenSoftmax()),
    PLAIN: Side("softmax", 2, route=WrittenSoftmax()),
}
"""All models by name; the two with softmax last."""


@final
class ModelProblem(Instance):
    """Random images of ``n`` patches, a square number, and the models for them, built on demand."""

    def __init__(self, config: ModelConfig, options: Options, n: int) -> None:
        self.config, self._seed, self.device = config, options.seed, options.torch_device
        self.pixels = math.isqrt(n) * config.patch_size
        torch.manual_seed(options.seed)
        self.images = torch.randn(config.batch, 3, self.pixels, self.pixels).to(self.device)
        self._models: dict[str, nn.Module] = {}

    def model(self, name: str) -> nn.Module:
        """A side's model, built once; weights that several models have are equal in all."""
        if name not in self._models:
            side = SIDES[name]
            self._models[name] = self.routed(name, side.route) if side.route else self._build(side.attention)
        return self._models[name]

    def routed(self, name: str, route: Evaluation) -> nn.Module:
        """A side's model with its attention computed by ``route``."""
        model = self._build(SIDES[name].attention)
        for block in model.blocks:
            assert isinstance(block, DiscountedBlock | ResidualBlock)
            block.operator.evaluation = route
        return model

    def step(self, name: str, direction: Direction) -> Step:
        """Inference."""
        assert direction == "forward"
        model, precision = self.model(name), self.config.precision_on(self.device)

        def infer() -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                return model(self.images)

        return directed(infer, direction, (), None)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """None: `agreement` checks models."""
        return None

    @property
    def tolerance(self) -> float:
        """Largest relative difference of logits that is timed."""
        return TOLERANCE[self.config.precision_on(self.device)]

    def agreement(self, name: str, logits: Sequence[Tensor]) -> float:
        """Relative difference of a side's logits from its oracle's in float32; raises `GateError`."""
        oracle = SIDES[name].oracle
        with torch.no_grad():
            expected = self.routed(name, oracle)(self.images)
        label = f"{name} against {oracle.name}, {self.pixels} x {self.pixels}"
        return require_agreement(label, logits, [expected], self.tolerance)

    def _build(self, attention: AttentionKind) -> InfViT:
        c = self.config
        image = encoders.Image.Config(image_size=(self.pixels, self.pixels), patch_size=c.patch_size)
        torch.manual_seed(self._seed)
        with self.device:
            return InfViT(encoders.Image(image, c.embed_dim), OUTPUTS, c.model(attention)).eval()


def compare(config: ModelConfig, options: Options, name: str) -> float:
    """The gate: a side's logits, computed as in the timed step, against its attention written out in float32."""
    problem = ModelProblem(config, options, GATE_SIDE**2)
    return problem.agreement(name, problem.step(name, "forward")())
