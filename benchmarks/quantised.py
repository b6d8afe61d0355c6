"""Models with 8-bit weights against the same models in float32: ``python -m benchmarks quantised``.

A GPT-2 of `transformers` and a ViT, with random weights, are read by `from_pretrained` and quantised. The gate is the
relative error of their outputs on a text or on images; the tokens of drawn texts are not compared.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks import pretrained
from benchmarks.harness import Benchmark, GateError, Options, Row, Settings, Sides, Step, require_known
from fredholm.models import LanguageModel, Sampling, generate
from fredholm.pretrained import Quantised, quantise

EXACT = "float32"
KINDS: Mapping[str, Mapping[str, Any]] = {
    "weights": {},
    "weights and embeddings": {"embeddings": True},
    "weights and signals": {"activations": True},
}
CASES = ("GPT-2, a text drawn", "GPT-2, 8 texts drawn", "GPT-2, a text read", "ViT, an image", "ViT, images")
TOLERANCE = {"weights": 0.03, "weights and embeddings": 0.03, "weights and signals": 0.1}
"""Largest relative error ‖G - F‖ / ‖F‖ of outputs."""


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults are published sizes, and take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(rounds=3, budget_s=60.0))
    cases: tuple[str, ...] = CASES
    drawn: int = 32
    """Tokens that are drawn."""
    read: int = 512
    """Tokens of a text that is read."""
    images: int = 4
    """Images at once, of 224 x 224 pixels."""
    width: int = 768
    """Channels of both models."""
    depth: int = 12
    """Blocks of both models."""
    vocabulary: int = 50_257

    def small(self) -> "Config":
        """See `Settings.small`."""
        sizes: dict[str, Any] = {"width": 64, "depth": 1, "vocabulary": 50, "drawn": 3, "read": 9, "images": 2}
        return dataclasses.replace(self, **sizes)

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on an unknown case, `ImportError` if transformers is missing."""
        require_known(self.cases, CASES)
        self.of_peers().checked()
        return self

    def of_peers(self) -> pretrained.Config:
        """Settings of `benchmarks.pretrained` with the same sizes, for the models of transformers."""
        sizes: dict[str, Any] = {
            name: getattr(self, name) for name in ("options", "read", "images", "width", "depth", "vocabulary")
        }
        return pretrained.Config(**sizes)


def quantised(model: nn.Module, inputs: Tensor, kind: str) -> tuple[nn.Module, Quantised]:
    """The model in 8 bits, and the report of its error on inputs; `GateError` if the error is too large."""
    new, report = quantise(model, [inputs], **KINDS[kind])
    if not report.error <= TOLERANCE[kind]:
        raise GateError(f"{kind}: relative error {report.error:.2e} exceeds {TOLERANCE[kind]:g}, so it is not timed")
    return new, report


def drawn(config: Config, model: nn.Module, texts: int) -> Step:
    """A step that draws texts greedily from a prompt of one token each."""
    assert isinstance(model, LanguageModel)
    prompt = pretrained.tokens(config.of_peers(), texts).T

    def step() -> Sequence[Tensor]:
        tokens = generate(model, prompt, Sampling(temperature=0))
        return (torch.stack(list(itertools.islice(tokens, config.drawn)), dim=1),)

    return step


def inputs_of(config: Config, case: str) -> Tensor:
    """Inputs of a model, and the data on which its error is measured."""
    if case.startswith("GPT-2"):
        return pretrained.tokens(config.of_peers(), config.read)
    count = 1 if case.endswith("an image") else config.images
    noise = torch.randn(count, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    return noise.to(config.options.torch_device)


@torch.no_grad()
def measure(config: Config) -> Iterator[Row]:
    """Each case in float32 and in every kind of quantisation, interleaved; GPT-2's head shares its embeddings."""
    for name, cases in itertools.groupby(tqdm(config.cases, desc="cases", disable=None), lambda case: case[:3]):
        peer = pretrained.peer(config.of_peers(), "GPT-2," if name == "GPT" else "ViT,").eval()
        exact = pretrained.read_back(peer).to(config.options.torch_device)
        del peer
        kinds = [kind for kind in KINDS if name == "GPT" or kind != "weights and embeddings"]
        own: dict[str, tuple[nn.Module, Quantised]] | None = None
        for case in cases:
            inputs = inputs_of(config, case)
            own = own or {kind: quantised(exact, inputs, kind) for kind in kinds}
            models = {EXACT: exact} | {kind: model for kind, (model, _) in own.items()}
            if case.endswith("drawn"):
                done = 8 if "8" in case else 1
                steps = {side: drawn(config, model, done) for side, model in models.items()}
                done *= config.drawn
            else:
                done = inputs.shape[1] if case.endswith("read") else len(inputs)
                steps = {side: (lambda m=model, x=inputs: (m(x),)) for side, model in models.items()}
            sides = Sides.of(steps, done, "forward", config.options)
            for kind, (_, report) in own.items():
                row = sides.against(kind, EXACT, case=f"{case}: {kind}", error=report.error)
                weights_mb = report.bytes_after / 1e6
                yield dataclasses.replace(row, per_second=done / row.ours_s, weights_mb=weights_mb)


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Cases that are slower in 8 bits."""
    for row in rows:
        if row.ratio is not None and row.ratio < 1:
            yield f"{row.case}: {row.ratio:.2f} of the speed in float32"


BENCHMARK = Benchmark(
    name="quantised",
    purpose="models with 8-bit weights against float32",
    config=Config,
    measure=measure,
    notes=notes,
)
"""The benchmark of `pretrained.quantise`."""
