"""Compiled models against the same models in eager mode: ``python -m benchmarks compiled``.

`torch.compile(fullgraph=True, dynamic=True)` with PyTorch's own code generator; inference, and the gradients of a
training step. Outputs and all gradients must agree first. The compile time is reported but not counted.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.harness import (
    DIRECTIONS,
    Benchmark,
    Direction,
    Options,
    Row,
    Settings,
    Sides,
    Step,
    directed,
    require_known,
)
from fredholm import encoders, models
from fredholm.models import AttentionConfig, KernelConfig, LowRankConfig, MLPConfig

COMPILED, EAGER = "compiled", "called as it is"
TOLERANCE = 1e-4
"""Relative tolerance of outputs and all gradients in float32."""


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take ten minutes on two cores, most of them for compiling."""

    options: Options = field(default_factory=lambda: Options(rounds=5, budget_s=10.0))
    cases: tuple[str, ...] = ()
    """Models to measure; default: all."""
    directions: tuple[Direction, ...] = DIRECTIONS
    """Inference, inference with gradients, or both."""
    width: int = 192
    """Channels of all models."""
    depth: int = 4
    """Blocks of all models."""
    batch: int = 8
    """Images or texts at once."""
    side: int = 14
    """Patches along a side of an image."""
    length: int = 256
    """Tokens of a text."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return dataclasses.replace(self, width=12, depth=1, batch=2, side=3, length=9)

    def checked(self) -> "Config":
        """These settings with all cases if none is named; raises `ValueError` on an unknown case."""
        require_known(self.cases, list(CASES))
        return dataclasses.replace(self, cases=self.cases or tuple(CASES))


ModelAndInput = tuple[nn.Module, Tensor]
"""A model and its input."""


def itnet(config: Config, kernel: KernelConfig) -> ModelAndInput:
    """An ITNet on patches of 4 x 4 pixels."""
    shape: dict[str, Any] = {"image_size": (4 * config.side,) * 2, "patch_size": 4, "channels": 3}
    encoder = encoders.Image(encoders.Image.Config(**shape, num_frequencies=16), config.width)
    heads = max(2, config.width // 48)
    stack = models.ITNet.Config(embed_dim=config.width, depth=config.depth, num_heads=heads, kernel=kernel)
    return stack.build(encoder, 10), torch.randn(config.batch, 3, *shape["image_size"])


def infvit(config: Config) -> ModelAndInput:
    """An InfViT with linear infinite attention, on patches of 4 x 4 pixels."""
    shape: dict[str, Any] = {"image_size": (4 * config.side,) * 2, "patch_size": 4, "channels": 3}
    encoder = encoders.Image(encoders.Image.Config(**shape, num_frequencies=16), config.width)
    heads = max(2, config.width // 48)
    stack = models.InfViT.Config(embed_dim=config.width, depth=config.depth, num_heads=heads, attention="linear")
    return stack.build(encoder, 10), torch.randn(config.batch, 3, *shape["image_size"])


def text(config: Config, stack: models.LanguageModel.Config) -> ModelAndInput:
    """A language model of bytes."""
    return stack.build(256, config.length), torch.randint(256, (config.batch, config.length))


def sizes(config: Config) -> dict[str, Any]:
    """Sizes of the language models."""
    return {"embed_dim": config.width, "depth": config.depth, "num_heads": max(2, config.width // 48)}


CASES: dict[str, Callable[[Config], ModelAndInput]] = {
    "ITNet, exact": lambda config: itnet(config, MLPConfig(width=16, num_frequencies=8)),
    "ITNet, low rank": lambda config: itnet(config, LowRankConfig(rank=16, width=64, num_frequencies=8)),
    "ITNet, attention": lambda config: itnet(config, AttentionConfig()),
    "InfViT, linear": infvit,
    "GPT-2": lambda config: text(config, models.GPT2.Config(**sizes(config), dropout=0.0)),
    "Aether": lambda config: text(config, models.Aether.Config(**sizes(config), dropout=0.0)),
}


def measure(config: Config) -> Iterator[Row]:
    """Each model compiled and eager; the timed results are those that are compared."""
    device = config.options.torch_device
    for case in tqdm(config.cases, desc="cases", disable=None):
        torch.manual_seed(config.options.seed)
        torch.compiler.reset()
        model, inputs = CASES[case](config)
        model, inputs = model.to(device).eval(), inputs.to(device)
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        # a constant added to all keys does not change the softmax, so that its gradient is nothing but rounding
        leaves = [leaf for name, leaf in model.named_parameters() if not name.endswith("key_bias")]
        for direction in config.directions:
            steps: dict[str, Step] = {
                COMPILED: directed(functools.partial(compiled, inputs), direction, leaves, None),
                EAGER: directed(functools.partial(model, inputs), direction, leaves, None),
            }
            start = time.perf_counter()
            steps[COMPILED]()
            tqdm.write(f"{case}, {direction}: compiled in {time.perf_counter() - start:.0f} s")
            sides = Sides.of(steps, config.batch, direction, config.options)
            error = sides.require_agreement(COMPILED, EAGER, TOLERANCE, case=case)
            yield sides.against(COMPILED, EAGER, case=case, error=error)


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Rows in which the compiled model is slower."""
    for row in rows:
        if row.ratio is not None and row.ratio < 1:
            yield f"{row.case}, {row.direction}: compiled at {row.ratio:.2f} of the speed without"


BENCHMARK = Benchmark(
    name="compiled",
    purpose="models under torch.compile against the same models in eager mode",
    config=Config,
    measure=measure,
    notes=notes,
)
"""The benchmark of compiled models."""
