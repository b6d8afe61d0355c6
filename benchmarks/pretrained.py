"""Checkpoints of `transformers` in this library against `transformers` itself: ``python -m benchmarks pretrained``.

Models of `transformers` with random weights are saved, read by `from_pretrained`, and run against the original models.
A text is drawn greedily through both caches. A single token that differs, or logits that differ, stop the run.
"""

import copy
import dataclasses
import importlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.harness import (
    Benchmark,
    GateError,
    Options,
    Row,
    Settings,
    Sides,
    Step,
    relative_error,
    require_known,
)
from fredholm import from_pretrained
from fredholm.models import LanguageModel, Sampling, generate

OURS, PEER = "fredholm", "transformers"
CASES = ("GPT-2, a text drawn", "GPT-2, a text read", "Llama, a text drawn", "Mamba, a text read", "ViT, images")
TOLERANCE = 1e-5
"""Relative difference of logits; the gate is at least twice the peer's own difference from float64."""


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults are published sizes, and take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(rounds=5, budget_s=60.0))
    cases: tuple[str, ...] = CASES
    prompt: int = 32
    """Tokens of the prompt of a drawn text."""
    drawn: int = 256
    """Tokens that are drawn."""
    read: int = 512
    """Tokens of a text that is read."""
    images: int = 4
    """Images at once, of 224 x 224 pixels."""
    width: int = 768
    """Channels of all models."""
    depth: int = 12
    """Blocks of all models; of Mamba twice as many layers."""
    vocabulary: int = 50_257

    def small(self) -> "Config":
        """See `Settings.small`."""
        sizes: dict[str, Any] = {
            "width": 24,
            "depth": 1,
            "vocabulary": 50,
            "prompt": 3,
            "drawn": 6,
            "read": 9,
            "images": 1,
        }
        return dataclasses.replace(self, **sizes)

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on an unknown case, `ImportError` if transformers is missing."""
        require_known(self.cases, CASES)
        try:
            importlib.import_module("transformers")
        except ImportError as error:
            raise ImportError("the peer needs transformers: pip install 'fredholm[peers]'") from error
        return self


def peer(config: Config, case: str) -> Any:
    """The model of transformers, with random weights."""
    library: Any = importlib.import_module("transformers")
    torch.manual_seed(config.options.seed)
    heads, ids = max(2, config.width // 64), {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    wide: dict[str, Any] = {"hidden_size": config.width, "num_hidden_layers": config.depth}
    text = {"vocab_size": config.vocabulary, **wide, **ids}
    sizes: dict[str, Any] = {"num_attention_heads": heads, "intermediate_size": 4 * config.width}
    match case.partition(",")[0]:
        case "GPT-2":
            shape = {"n_embd": config.width, "n_layer": config.depth, "n_head": heads, "vocab_size": config.vocabulary}
            return library.GPT2LMHeadModel(library.GPT2Config(**shape, **ids))
        case "Llama":
            return library.LlamaForCausalLM(library.LlamaConfig(**text, **sizes, num_key_value_heads=heads // 2))
        case "Mamba":
            deeper = {**text, "num_hidden_layers": 2 * config.depth}
            return library.MambaForCausalLM(library.MambaConfig(**deeper))
        case _:
            return library.ViTForImageClassification(library.ViTConfig(**wide, **sizes, num_labels=1000))


def read_back(model: Any) -> nn.Module:
    """The same model, saved and read by this library."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return from_pretrained(folder)


def drawn(config: Config, ours: nn.Module, theirs: Any) -> tuple[dict[str, Step], int]:
    """Steps that draw a text greedily in both libraries, and its number of tokens."""
    assert isinstance(ours, LanguageModel)
    prompt = tokens(config, config.prompt)

    def mine() -> Sequence[Tensor]:
        text = generate(ours, prompt, Sampling(temperature=0))
        return (torch.stack(list(itertools.islice(text, config.drawn)), dim=1),)

    def other() -> Sequence[Tensor]:
        lengths = {"max_new_tokens": config.drawn, "min_new_tokens": config.drawn}
        found = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **lengths)
        return (found[:, config.prompt :],)

    theirs.generation_config.eos_token_id = None
    return {OURS: mine, PEER: other}, config.drawn


def called(ours: nn.Module, theirs: Any, inputs: Tensor) -> dict[str, Step]:
    """Steps that call both models once, without a cache."""
    more = {"use_cache": False} if inputs.dtype == torch.int64 else {}
    return {OURS: lambda: (ours(inputs),), PEER: lambda: (theirs(inputs, **more).logits,)}


def tokens(config: Config, length: int) -> Tensor:
    """A text of random tokens, `(1, length)`."""
    drawn = torch.randint(2, config.vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
    return drawn.to(config.options.torch_device)


@torch.no_grad()
def measure(config: Config) -> Iterator[Row]:
    """Each case in both libraries; the timed results are those that are compared."""
    device = config.options.torch_device
    for case in tqdm(config.cases, desc="cases", disable=None):
        theirs = peer(config, case).to(device).eval()
        ours = read_back(theirs).to(device)
        if case.endswith("drawn"):
            steps, done = drawn(config, ours, theirs)
            sides = Sides.of(steps, done, "forward", config.options)
            if not torch.equal(*(sides.timed[side].result[0] for side in (OURS, PEER))):
                raise GateError(f"{case}: the two texts differ, so they are not timed")
            error = 0.0
        else:
            is_text = case.endswith("read")
            done = config.read if is_text else config.images
            noise = torch.randn(config.images, 3, 224, 224, generator=torch.Generator().manual_seed(0)).to(device)
            steps = called(ours, theirs, tokens(config, config.read) if is_text else noise)
            sides = Sides.of(steps, done, "forward", config.options)
            exact = copy.deepcopy(theirs).double()(tokens(config, config.read) if is_text else noise.double()).logits
            # a deep recurrence with random weights magnifies rounding beyond any fixed tolerance
            rounding = relative_error(sides.timed[PEER].result, (exact.float(),))
            error = sides.require_agreement(OURS, PEER, max(TOLERANCE, 2 * rounding), case=case)
        row = sides.against(OURS, PEER, case=case, error=error)
        yield dataclasses.replace(row, per_second=done / row.ours_s)


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Cases that are slower in this library than in transformers."""
    for row in rows:
        if row.ratio is not None and row.ratio < 1:
            yield f"{row.case}: {row.ratio:.2f} of the peer's speed"


BENCHMARK = Benchmark(
    name="pretrained",
    purpose="checkpoints of transformers in this library against transformers itself",
    config=Config,
    measure=measure,
    notes=notes,
)
"""The benchmark of models that are read from checkpoints."""
