"""`fredholm generate`: continues a text with a trained language model."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fredholm._settings import refuse_idle
from fredholm.cli.json_text import json_text
from fredholm.cli.open_run import RunPlace, open_run
from fredholm.cli.option_names import naming_options
from fredholm.cli.parsing import Flag, parse
from fredholm.models.language.generation import Sampling
from fredholm.tasks import LanguageModelling
from fredholm.tasks.files.terminal_text import visible
from fredholm.tasks.text import Piece, read_text
from fredholm.training.random_state import seeded_generator
from fredholm.training.storage.checkpoint import Which


@dataclass(frozen=True, kw_only=True)
class GenerateArguments:
    """Continue a text with a trained language model. Prints the prompt and, token by token, its continuation.

    It ends at an end-of-text token, before a text of --stop, or after --max-tokens. When the model's context is full,
    it restarts from the last half of the context.
    """

    run: RunPlace
    """The run folder, or hf://OWNER/NAME, a model on the Hugging Face hub."""
    prompt: str = ""
    """The text to continue. Default: the beginning of a document."""
    prompt_file: Path | None = None
    """A file with that text."""
    max_tokens: int = 256
    """Tokens to add at most."""
    stop: tuple[str, ...] = ()
    """Texts before which generation ends."""
    temperature: float = 1.0
    """Values below 1 prefer likely tokens; 0 takes the likeliest."""
    top_k: int | None = None
    """Sample from this many of the likeliest tokens."""
    top_p: float = 1.0
    """Sample from the likeliest tokens whose probabilities add up to this."""
    seed: int = 0
    """Seed of the draws."""
    num_samples: int = 1
    """Number of texts, printed one after the other with a line of --- between them."""
    cache: Flag = True
    """Cache the computation of earlier tokens; --no-cache repeats it for each token, for the same text but slower."""
    checkpoint: Which = "best"
    """The checkpoint that was best on the validation split, or the last one."""
    device: str = "auto"
    """Device: auto, cpu, cuda, ..."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not one of the library but of that file."""
    json: Flag = False
    """Print a JSON list with one object per text."""


def run_command(argv: list[str]) -> None:
    """Runs `fredholm generate` with these arguments."""
    arguments = parse(GenerateArguments, "generate", argv)
    if arguments.prompt and arguments.prompt_file:
        raise ValueError("a prompt and a prompt file are given; pass one of them")
    with naming_options(arguments):
        if arguments.num_samples < 1:
            raise ValueError(f"num_samples is {arguments.num_samples}; expected at least 1")
        if arguments.max_tokens < 1:
            raise ValueError(f"max_tokens is {arguments.max_tokens}; expected at least 1")
        if arguments.temperature == 0:
            refuse_idle("", GenerateArguments, "temperature=0", "raise the temperature", seed=arguments.seed)
        sampling = Sampling(temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p)
        generator = seeded_generator(arguments.seed)
    prompt = read_text(arguments.prompt_file) if arguments.prompt_file else arguments.prompt
    run = open_run(arguments.run, arguments.recipe, arguments.device)
    task = run.task
    if not isinstance(task, LanguageModelling):
        raise ValueError(
            f"{arguments.run} is a run of the task {task.command!r}; expected {LanguageModelling.command!r}"
        )
    model = run.model(arguments.checkpoint)
    texts: list[dict[str, Any]] = []
    for number in range(arguments.num_samples):
        pieces = task.generate(
            model,
            prompt,
            max_tokens=arguments.max_tokens,
            sampling=sampling,
            generator=generator,
            device=run.device,
            cache=arguments.cache,
            stop=arguments.stop,
        )
        if not arguments.json:
            _stream(("\n---\n" if number else "") + prompt, pieces)
            continue
        drawn = list(pieces)
        details = {"tokens": [piece.token for piece in drawn], "ended_by": drawn[-1].ended_by}
        texts.append({"prompt": prompt, "text": "".join(piece.text for piece in drawn), **details})
    print(json_text(texts, indent=2) if arguments.json else "")


def _stream(start: str, pieces: Iterator[Piece]) -> None:
    _print_part(start)
    for piece in pieces:
        _print_part(piece.text)


def _print_part(text: str) -> None:
    """Prints a part of a text, with control characters escaped on a terminal only."""
    print(visible(text, keep="\n\t") if sys.stdout.isatty() else text, end="", flush=True)
