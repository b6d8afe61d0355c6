"""ITNet with several operators in its blocks, a vision transformer of the same shape, and one batch for all."""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from benchmarks.harness import Direction, Instance, Options, Step, directed, require_agreement
from benchmarks.peers.vision_transformer import VisionTransformer
from fredholm import encoders, evaluation, models, quadrature
from fredholm.blocks.residual import ResidualBlock
from fredholm.operators import collect_auxiliary_losses

PEER = "ViT, SDPA"
Precision = Literal["bfloat16", "float32"]
TOLERANCE: dict[Precision, float] = {"bfloat16": 5e-2, "float32": 1e-4}


@final
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of both models; the defaults are ITNet-B and ViT-B/16."""

    image_size: int = 224
    """Height and width of the images in pixels."""
    patch_size: int = 16
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    kernel_width: int = 128
    num_frequencies: int = 64
    num_outputs: int = 1000
    ranks: tuple[int, ...] = (2, 4, 8, 16, 32)
    """Ranks per head of the low-rank kernel; the paper's sweep."""
    samples: int = 128
    """Nodes of the Monte Carlo operator and of the anchors."""
    batch: int | None = None
    """Images at a time; default: 32 on a GPU, 1 on a CPU."""
    precision: Precision | None = None
    """bfloat16 is autocast; default: bfloat16 on a GPU, float32 on a CPU."""

    @property
    def num_points(self) -> int:
        """Number of patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1

    def images_on(self, device: torch.device) -> int:
        """Images per batch on a device."""
        return self.batch or (32 if device.type == "cuda" else 1)

    def precision_on(self, device: torch.device) -> Precision:
        """The precision of computations on a device."""
        return self.precision or ("bfloat16" if device.type == "cuda" else "float32")

    def autocast(self, device: torch.device) -> torch.autocast:
        """The autocast context of `precision_on`."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision_on(device) == "bfloat16")


@final
@dataclass(frozen=True)
class Variant:
    """A variant of ITNet.

    Args:
        name: name in the report.
        rank: rank of its kernels; None: exact kernels.
        sampled: nodes that are summed in eval mode; None: all points.
    """

    name: str
    rank: int | None = None
    sampled: Literal["draws", "anchors"] | None = None


def variants(config: ModelConfig) -> list[Variant]:
    """The exact model first, then the approximations that the paper times."""
    return [
        Variant("exact"),
        *(Variant(f"low rank {rank}", rank=rank) for rank in config.ranks),
        Variant(f"Monte Carlo {config.samples}", sampled="draws"),
        Variant(f"anchors {config.samples}", sampled="anchors"),
    ]


@final
class ModelProblem(Instance):
    """A batch of random images, and the models for it, built on demand; dropout and stochastic depth are off.

    The kernels' output weights start at full scale (ε = 1), so that a kernel varies from pair to pair.
    """

    def __init__(self, config: ModelConfig, options: Options, batch: int) -> None:
        self.config, self._seed, self.device = config, options.seed, options.torch_device
        torch.manual_seed(options.seed)
        self.images = torch.randn(batch, 3, config.image_size, config.image_size).to(self.device)
        self.labels = torch.randint(config.num_outputs, (batch,)).to(self.device)
        self._models: dict[str, nn.Module] = {}

    def model(self, name: str) -> nn.Module:
        """A variant of ITNet or the peer, built once; weights that several variants have are equal in all."""
        if name not in self._models:
            with self.device:
                self._models[name] = self._build(name)
        return self._models[name]

    def step(self, name: str, direction: Direction) -> Step:
        """Inference, or the loss and gradients of a training step, including the loss of a proposal."""
        model = self.model(name)

        def infer() -> Tensor:
            _in_mode(model, training=False)
            with self.config.autocast(self.device):
                return model(self.images)

        def train() -> Tensor:
            _in_mode(model, training=True)
            with collect_auxiliary_losses() as extra:
                with self.config.autocast(self.device):
                    logits = model(self.images)
                loss = nn.functional.cross_entropy(logits.float(), self.labels)
            return torch.stack([loss, *extra]).sum()

        return directed(infer if direction == "forward" else train, direction, model.parameters(), None)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """None: models are checked by `compare`."""
        return None

    def _build(self, name: str) -> nn.Module:
        c = self.config
        torch.manual_seed(self._seed)
        if name == PEER:
            return VisionTransformer(
                image_size=c.image_size,
                patch_size=c.patch_size,
                embed_dim=c.embed_dim,
                depth=c.depth,
                num_heads=c.num_heads,
                num_outputs=c.num_outputs,
            )
        images = encoders.Image.Config(image_size=(c.image_size, c.image_size), patch_size=c.patch_size)
        variant = next(variant for variant in variants(c) if variant.name == name)
        sizes: dict[str, Any] = {"width": c.kernel_width, "num_frequencies": c.num_frequencies, "epsilon": 1.0}
        low_rank = None if variant.rank is None else models.LowRankConfig(rank=variant.rank, **sizes)
        kernel = models.MLPConfig(**sizes) if low_rank is None else low_rank
        stack = models.ITNet.Config(
            embed_dim=c.embed_dim,
            depth=c.depth,
            num_heads=c.num_heads,
            kernel=kernel,
            dropout=0.0,
            drop_path=0.0,
        )
        model = models.ITNet(encoders.Image(images, c.embed_dim), c.num_outputs, stack)
        if variant.sampled is not None:  # afterwards, so that drawing a proposal's weights does not change the kernels
            for block in blocks(model):
                proposal = quadrature.KeyProposal(c.embed_dim, 2, c.num_heads)
                nodes = quadrature.MonteCarlo(c.samples, proposal, at_evaluation=variant.sampled)
                block.operator = block.operator.with_quadrature(nodes)
        return model


def _in_mode(model: nn.Module, *, training: bool) -> None:
    # users switch the mode once, so it is not timed in every step
    if model.training != training:
        model.train(training)


def blocks(model: nn.Module) -> list[ResidualBlock]:
    """The residual blocks of an ITNet."""
    assert isinstance(model, models.ITNet)
    return [block for block in model.blocks if isinstance(block, ResidualBlock)]


def compare(config: ModelConfig, options: Options, index: int) -> float:
    """The gate: a variant with two blocks on nine patches, computed as in the timed step, against κ in full in float32.

    There are as many samples as points, so that quadratures are exact; the library's tests check their error law.
    """
    small = replace(config, image_size=3 * config.patch_size, depth=2, samples=10)
    name = variants(small)[index].name
    problem = ModelProblem(small, options, 2)
    oracle = copy.deepcopy(problem.model(name)).eval()
    for block in blocks(oracle):
        block.operator.evaluation = evaluation.Dense()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*all points are summed instead")
        with torch.no_grad():
            expected = oracle(problem.images)
        tolerance = TOLERANCE[config.precision_on(problem.device)]
        label = f"{name} against every κ in full"
        return require_agreement(label, problem.step(name, "forward")(), [expected], tolerance)
