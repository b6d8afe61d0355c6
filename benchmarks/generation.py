"""Generation through a language model's state against full recomputation: ``python -m benchmarks generation``.

Both sides draw the same tokens from the same model; the peer has no state and reads all tokens so far for each new one.
A difference in a single token, drawn or greedy, stops the run. Then one more token is read after texts of several
lengths: with a state of fixed size its cost does not depend on the length of the text.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.harness import Benchmark, GateError, Options, Row, Settings, Sides, Step, interleave
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KernelConfig, LowRankConfig, MLPConfig, SeparableConfig
from fredholm.models.language.aether import Aether
from fredholm.models.language.generation import Sampling, generate
from fredholm.models.language.gpt2 import GPT2
from fredholm.models.language.itnet_text import ITNetLanguageModel
from fredholm.models.language.language_model import LanguageModel

CACHED, PEER = SIDES = ("cached", "full recomputation")
ONE_MORE = "one more token"
ITNETS: Mapping[str, KernelConfig] = {
    "ITNet low rank": LowRankConfig(rank=8, width=32, num_frequencies=16),
    "ITNet separable": SeparableConfig(width=32, num_frequencies=16),
    "ITNet exact": MLPConfig(width=32, num_frequencies=16),
}
"""Kernels of ITNets, by the name of the model."""
NAMES = ("GPT2", "Aether", *ITNETS)
SAMPLINGS: Mapping[str, Sampling] = {"greedy": Sampling(temperature=0), "drawn": Sampling(temperature=0.8, top_p=0.95)}


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(rounds=3, budget_s=30.0))
    models: tuple[str, ...] = NAMES
    """Language models to measure."""
    embed_dim: int = 384
    """Channels."""
    depth: int = 6
    """Layers."""
    num_heads: int = 6
    """Heads."""
    vocab_size: int = 2000
    """Size of the vocabulary."""
    lengths: tuple[int, ...] = (128, 512)
    """Numbers of tokens of the whole text, which are also the model's context; the first token is the prompt."""
    places: tuple[int, ...] = (256, 2048)
    """Numbers of tokens read before the timed one; the context ends after it."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        small = {"embed_dim": 8, "depth": 1, "num_heads": 2, "vocab_size": 20, "lengths": (9,), "places": (4, 8)}
        return dataclasses.replace(self, **small)

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on an unknown model."""
        for name in self.models:
            if name not in NAMES:
                raise ValueError(f"no language model {name!r}; expected some of {', '.join(NAMES)}")
        return self

    def model(self, name: str, length: int) -> LanguageModel:
        """A model with random weights, the same for every side."""
        torch.manual_seed(self.options.seed)
        sizes: dict[str, Any] = {"embed_dim": self.embed_dim, "depth": self.depth, "num_heads": self.num_heads}
        if name in ITNETS:
            kind = ITNetLanguageModel.Config(stack=ITNet.Config(kernel=ITNETS[name], **sizes))
        else:
            kind = (GPT2 if name == "GPT2" else Aether).Config(dropout=0.0, **sizes)
        return kind.build(self.vocab_size, length).to(self.options.torch_device).eval()


def continuation(model: LanguageModel, length: int, sampling: Sampling, *, cache: bool) -> Step:
    """A step that continues a prompt of one token to `length` tokens."""
    device = next(model.parameters()).device

    def step() -> Sequence[Tensor]:
        prompt = torch.zeros(1, 1, dtype=torch.int64, device=device)
        tokens = generate(model, prompt, sampling, generator=torch.Generator().manual_seed(0), cache=cache)
        return (torch.cat(list(itertools.islice(tokens, length - 1))),)

    return step


def one_more(model: LanguageModel, place: int) -> Step:
    """A step that reads one more token after `place` others and returns its logits."""
    device = next(model.parameters()).device
    tokens = torch.randint(model.vocab_size, (1, place + 1), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        _, state = model.advance(tokens[:, :place], model.initial_state(1))
    return lambda: (model.advance(tokens[:, place:], state)[0],)


def require_same_tokens(label: str, ours: Tensor, theirs: Tensor) -> None:
    """The gate: raises `GateError` at the first token that differs."""
    if not torch.equal(ours, theirs):
        place = int((ours != theirs).nonzero()[0])
        raise GateError(f"{label}: token {place + 1} differs, so it is not timed")


def measure(config: Config) -> Iterator[Row]:
    """Each model at each length, greedy and drawn; the timed tokens of both sides are compared."""
    cases = list(itertools.product(config.models, config.lengths, SAMPLINGS))
    for name, length, kind in tqdm(cases, desc="cases", disable=None):
        model, label = config.model(name, length), f"{name}, {kind}"
        steps = {side: continuation(model, length, SAMPLINGS[kind], cache=side == CACHED) for side in SIDES}
        sides = Sides.of(steps, length, "forward", config.options)
        require_same_tokens(f"{label}, n={length}", *(sides.timed[side].result[0] for side in SIDES))
        row = sides.against(CACHED, PEER, case=label, error=0.0)
        yield dataclasses.replace(row, per_second=(length - 1) / row.ours_s)
    for name in tqdm(config.models, desc="one more token", disable=None):
        model = config.model(name, max(config.places) + 1)
        steps = {str(place): one_more(model, place) for place in config.places}
        timed = interleave(steps, options=config.options, label=f"{name}, {ONE_MORE}")
        for place in config.places:
            seconds = timed[str(place)].median
            yield Row(case=f"{name}, {ONE_MORE}", n=place, direction="forward", ours_s=seconds, per_second=1 / seconds)


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Time of a token after the longest text over that after the shortest."""
    for case, found in itertools.groupby((row for row in rows if row.case.endswith(ONE_MORE)), lambda row: row.case):
        seconds = {row.n: row.ours_s for row in found}
        first, last = min(seconds), max(seconds)
        yield f"{case}: {seconds[last] / seconds[first]:.2f} times as long after {last} tokens as after {first}"


BENCHMARK = Benchmark(
    name="generation",
    purpose="text from a language model, through its state and by full recomputation",
    config=Config,
    measure=measure,
    notes=notes,
)
