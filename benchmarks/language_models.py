"""Time and memory of a training step of Aether against GPT-2: ``python -m benchmarks language_models``.

Both models have the same sizes, tokens and loss. They compute different functions, so neither checks the other. Each is
checked alone: a text read in two pieces through its state must give the logits of the whole text.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from benchmarks.harness import (
    Benchmark,
    Direction,
    Instance,
    Row,
    Settings,
    Step,
    both_ways,
    directed,
    in_turn,
    measure_alone,
    require_agreement,
)
from fredholm.models.language.aether import Aether
from fredholm.models.language.gpt2 import GPT2
from fredholm.models.language.language_model import LanguageModel

CASE, PEER = SIDES = ("Aether", "GPT-2")


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on two cores."""

    embed_dim: int = 384
    """Channels."""
    depth: int = 6
    """Layers."""
    num_heads: int = 6
    """Heads."""
    vocab_size: int = 2000
    """Size of the vocabulary."""
    batch: int = 1
    """Sequences at a time."""
    lengths: tuple[int, ...] = (256, 1024)
    """Numbers of tokens of a sequence, and the models' context."""
    tolerance: float = 1e-4
    """Largest relative difference of a text read in two pieces from the whole text that is timed."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        small = {"embed_dim": 8, "depth": 1, "num_heads": 2, "vocab_size": 20, "batch": 2, "lengths": (9,)}
        return dataclasses.replace(self, **small)


@final
class Problem(Instance):
    """Random models without dropout and random tokens, the same in every process and on every machine."""

    def __init__(self, config: Config, n: int) -> None:
        self.n, self.device, self._tolerance = n, config.options.torch_device, config.tolerance
        torch.manual_seed(config.options.seed)
        dim, depth, heads = config.embed_dim, config.depth, config.num_heads
        kinds = (
            Aether.Config(embed_dim=dim, depth=depth, num_heads=heads, dropout=0.0),
            GPT2.Config(embed_dim=dim, depth=depth, num_heads=heads, bias=False, dropout=0.0),
        )
        self.models: Mapping[str, LanguageModel] = {
            side: kind.build(config.vocab_size, n).to(self.device) for side, kind in zip(SIDES, kinds, strict=True)
        }
        self.tokens = torch.randint(config.vocab_size, (config.batch, n + 1)).to(self.device)

    def step(self, name: str, direction: Direction) -> Step:
        """The loss, and its gradients with respect to all parameters."""
        model = self.models[name]

        def loss() -> Tensor:
            logits = model(self.tokens[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())

        return directed(loss, direction, model.parameters(), None)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """Error of a text read in two pieces through the state, against the whole text."""
        model, inputs = self.models[name], self.tokens[:, :-1]
        with torch.no_grad():
            head, state = model.advance(inputs[:, : self.n // 3], model.initial_state(len(inputs)))
            tail, _ = model.advance(inputs[:, self.n // 3 :], state)
            whole = model(inputs)
        label = f"{name} in two pieces against the whole, n={self.n}"
        return require_agreement(label, (torch.cat([head, tail], dim=1),), (whole,), self._tolerance)


def measure(config: Config) -> Iterator[Row]:
    """Both models at every length: interleaved times and isolated memory, with a separate row for GPT-2."""
    for n in tqdm(config.lengths, desc="lengths", disable=None):
        build, names = functools.partial(Problem, config), both_ways(SIDES)
        problem = build(n)
        errors = {side: problem.error(side, "forward", ()) for side in SIDES}
        alone = measure_alone(build, n, names, config.options, rounds=1)
        for sides in in_turn(problem, n, names, config.options, alone):
            for row in (sides.against(CASE, PEER, error=errors[CASE]), sides.own(PEER, error=errors[PEER])):
                yield dataclasses.replace(row, per_second=config.batch * n / row.ours_s)


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Memory of Aether over that of GPT-2, by length and direction."""
    theirs = {(row.n, row.direction): row.peak_mb for row in rows if row.case == PEER}
    for row in rows:
        peak_mb = theirs.get((row.n, row.direction))
        if row.case == CASE and row.peak_mb is not None and peak_mb:
            yield f"n = {row.n}, {row.direction}: {CASE} takes {row.peak_mb / peak_mb:.2f} of the memory of {PEER}"


BENCHMARK = Benchmark(
    name="language_models",
    purpose="training steps of Aether against GPT-2 of the same size",
    config=Config,
    measure=measure,
    notes=notes,
)
