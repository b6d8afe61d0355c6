"""Damaged run folders: each is refused in one line that names a damaged file, or is read bit for bit."""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fredholm.models import ITNet, MLPConfig
from fredholm.storage.config_json import to_json
from fredholm.tasks import TASKS, ImageLearning
from fredholm.tasks.sentences.sentence_learning import SentenceLearning
from fredholm.tasks.text import Tokens
from fredholm.training import Run, RunFolder, Trainer, TrainingConfig, train
from fredholm.training.random_state import random_state
from fredholm.training.run import read_trained
from fredholm.training.storage.checkpoint import AVERAGE, OPTIMIZER, WEIGHTS
from tests.faults.outcome import Outcome
from tests.training.toy_task import ToyTask, toy_run

ALL_TASKS = (*TASKS, ToyTask)


class Damage(NamedTuple):
    """The damage done to a folder."""

    description: str
    files: tuple[str, ...]
    """Damaged files, one of which a refusal must name."""


class Case(NamedTuple):
    """An intact run, next to one of another seed."""

    name: str
    run: Path
    other: Path
    wanted: str
    """The digest that `read` gives of the intact run."""


def damage_folders(count: int, seed: int) -> list[Outcome]:
    """Damages ``count`` copies of run folders of three tasks, and reads them.

    Args:
        count: number of damaged folders, alternating over all kinds.
        seed: decides which files are damaged, and where.
    """
    tried: Counter[str] = Counter()
    broken: dict[str, list[str]] = {}
    # how the settings of runs are read depends on nobody's data
    with tempfile.TemporaryDirectory(prefix="fredholm-damage-") as name, contextlib.chdir(name):
        folder = Path(name)
        finished, going_on = _cases(folder / "runs")
        for number in range(count):
            draw = random.Random(f"{seed} {number}")
            kinds = [*((kind, finished, read) for kind in KINDS), *((kind, going_on, resume) for kind in LOG_KINDS)]
            kind, cases, reading = kinds[number % len(kinds)]
            case = cases[(number // len(kinds)) % len(cases)]
            row = f"run folder: {(kind.__doc__ or '').rstrip('.').lower()}"
            copied = folder / "copy"
            shutil.copytree(case.run, copied, symlinks=True)
            damage = kind(copied, case.other, draw)
            tried[row] += 1
            if wrong := _wrong(copied, case.wanted, damage, reading):
                broken.setdefault(row, []).append(
                    f"fault {number} of seed {seed}, {case.name}: {damage.description}: {wrong}"
                )
            shutil.rmtree(copied)
    return [
        Outcome(row, tried[row], tried[row] - len(broken.get(row, ())), tuple(broken.get(row, ()))) for row in tried
    ]


def _wrong(folder: Path, wanted: str, damage: Damage, reading: Callable[[Path], str]) -> str:
    """A description of a wrong reading of a damaged folder; empty if there is none."""
    got = io.StringIO()
    try:
        with contextlib.redirect_stdout(got):
            found = reading(folder)
    except (ValueError, OSError) as error:
        message = str(error)
        if "\n" in message or len(message) >= 500:
            return f"refused at length: {message!r:.300}"
        if not any(Path(file).name in message for file in damage.files):
            return f"refused without a name: {message}"
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.300}"
    if found == wanted or "metrics.jsonl is missing: a new one begins" in got.getvalue():
        return ""
    return "silently read as something else"


def _cases(folder: Path) -> tuple[list[Case], list[Case]]:
    """Finished runs, and one that was killed."""
    rows = [f"{'good' if i % 2 else 'bad'} film number {i % 7},{'so' if i % 3 else 'not so'}" for i in range(60)]
    folder.mkdir()
    (folder / "reviews.csv").write_text("\n".join(["text,label", *rows]))
    training = TrainingConfig(epochs=2, batch_size=256, evaluate_every=1, device="cpu", tensorboard=False)
    kernel = MLPConfig(width=4, num_frequencies=2, sigma=1.0)
    model = ITNet.Config(embed_dim=8, depth=1, num_heads=2, kernel=kernel, pool="mean")
    toy = toy_run(epochs=8)
    # far too large a learning rate: the last checkpoint is not the best one
    rates = {"learning_rate": 3.0, "decay": "linear", "warmup_fraction": 0.9}
    configs = {
        "toy": dataclasses.replace(toy, training=dataclasses.replace(toy.training, **rates)),
        "images": Run.Config(task=ImageLearning.Config(data="digits", patch_size=4, model=model), training=training),
        "sentences": Run.Config(
            task=SentenceLearning.Config(data=str(folder / "reviews.csv"), tokens=Tokens(vocab_size=120)),
            training=training.without_steps(),
        ),
    }
    finished = []
    with contextlib.redirect_stdout(io.StringIO()):
        for name, config in configs.items():
            paths = (folder / name, folder / f"{name}-other")
            for number, path in enumerate(paths):
                train(dataclasses.replace(config, seed=number), path, tasks=ALL_TASKS)
            finished.append(Case(name, *paths, read(paths[0])))
        killed, whole = folder / "killed", folder / "whole"
        _kill(toy, killed)
        shutil.copytree(killed, whole)
        return finished, [Case("killed", killed, finished[0].other, resume(whole))]


def _kill(config: Run.Config, path: Path) -> None:
    """Ends a run in the middle of an epoch, with some log lines after the last checkpoint."""
    made, train_batch = [0], ToyTask.train_batch

    def until(self: ToyTask, indices: torch.Tensor, generator: torch.Generator) -> dict[str, torch.Tensor]:
        made[0] += 1
        if made[0] == 35:
            raise InterruptedError
        return train_batch(self, indices, generator)

    with patch.object(ToyTask, "train_batch", until), contextlib.suppress(InterruptedError):
        train(config, path, tasks=ALL_TASKS)


def read(path: Path) -> str:
    """A digest of everything that can be read of a run: config, facts, both models, and the state for resuming."""
    run, other = Run(path, tasks=ALL_TASKS, device="cpu"), read_trained(path, ALL_TASKS)
    digest = hashlib.sha256()

    def add(*values: Any) -> None:
        digest.update(repr([str(value).replace(str(path), "RUN") for value in values]).encode())

    add(json.dumps(to_json(run.config)), other.facts, run.task.facts)
    for which in ("best", "last"):
        add(run.step(which), _tensors(run.model(which).state_dict()))
    trainer = Trainer(run.task, run.config.training, run.config.seed, RunFolder(path))
    learner = trainer.learner
    add(random_state(), to_json(trainer.progress), _tensors(learner.optimizer_tensors()))
    add(*(_tensors(model.state_dict()) for model in (learner.model, learner.average.model)))
    return digest.hexdigest()


def resume(path: Path) -> str:
    """A digest of a run resumed to its end, with its log."""
    train(Run(path, tasks=ALL_TASKS, device="cpu").config, path, resume=True, tasks=ALL_TASKS)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    of_time = ("examples_per_second", "unix_time")
    log = [{name: value for name, value in line.items() if name not in of_time} for line in lines]
    # checkpoints also store the position in the log, which depends on the times
    files = {file.name: file.read_bytes() for file in sorted((path / "checkpoints").rglob("*.safetensors"))}
    return hashlib.sha256(repr((log, files)).encode()).hexdigest()


def _tensors(tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, bytes]]:
    return [
        (name, str(each.dtype), each.reshape(-1).view(torch.uint8).numpy().tobytes()) for name, each in tensors.items()
    ]


def _files(path: Path) -> list[Path]:
    """All files of a run that are read back."""
    files = [file for file in path.rglob("*") if file.is_file() and "tensorboard" not in file.parts]
    return sorted(file for file in files if file.name != "metrics.jsonl")


def _steps(path: Path) -> list[Path]:
    return sorted((path / "checkpoints").iterdir())


def _exchange(one: Path, other: Path) -> None:
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


def flip(path: Path, other: Path, draw: random.Random) -> Damage:
    """A flipped bit."""
    file = draw.choice(_files(path))
    data = bytearray(file.read_bytes())
    place = draw.randrange(8 * len(data))
    data[place // 8] ^= 1 << place % 8
    file.write_bytes(data)
    return Damage(f"bit {place} of {file.relative_to(path)}", (file.name,))


def zero(path: Path, other: Path, draw: random.Random) -> Damage:
    """A zeroed block."""
    file = draw.choice(_files(path))
    data = bytearray(file.read_bytes())
    start, size = draw.randrange(len(data)), draw.choice((1, 16, 512, 4096))
    size = len(data[start : start + size])
    data[start : start + size] = bytes(size)
    file.write_bytes(data)
    return Damage(f"{size} bytes from {start} of {file.relative_to(path)}", (file.name,))


def cut(path: Path, other: Path, draw: random.Random) -> Damage:
    """A file cut short."""
    file = draw.choice(_files(path))
    size = draw.choice((0, 1, file.stat().st_size - 1, draw.randrange(file.stat().st_size)))
    os.truncate(file, size)
    return Damage(f"{file.relative_to(path)} to {size} bytes", (file.name,))


def lengthen(path: Path, other: Path, draw: random.Random) -> Damage:
    """A file with more behind it."""
    file, more = draw.choice(_files(path)), draw.choice((b"\0", b"\n", b" ", b"{}", bytes(4096)))
    file.write_bytes(file.read_bytes() + more)
    return Damage(f"{len(more)} bytes after {file.relative_to(path)}", (file.name,))


def spoil(path: Path, other: Path, draw: random.Random) -> Damage:
    """Tensors that are no numbers, in a sound file."""
    file = draw.choice([file for file in _files(path) if file.suffix == ".safetensors"])
    with safe_open(file, framework="pt") as opened:
        tensors, notes = {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118
    floating = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
    for name in draw.sample(floating, min(len(floating), 2)):
        tensors[name] = torch.full_like(tensors[name], draw.choice((float("nan"), float("inf"), 0.5)))
    save_file(tensors or {"a": torch.zeros(1)}, file, notes)
    return Damage(f"{file.relative_to(path)}", (file.name,))


def exchange_names(path: Path, other: Path, draw: random.Random) -> Damage:
    """Two files of a checkpoint exchanged."""
    folder = draw.choice(_steps(path))
    names = draw.choice(((WEIGHTS, AVERAGE), (WEIGHTS, OPTIMIZER), (AVERAGE, OPTIMIZER)))
    _exchange(folder / names[0], folder / names[1])
    return Damage(f"{names[0]} and {names[1]} of {folder.name}", names)


def exchange_steps(path: Path, other: Path, draw: random.Random) -> Damage:
    """Files, or folders, of two steps exchanged."""
    first, second = (_steps(path) * 2)[:2]
    if first == second:  # there is only one checkpoint, which becomes that of another step
        first.rename(first.with_name("step-00000099"))
        return Damage(f"{first.name} called step-00000099", ("manifest.json",))
    name = draw.choice((WEIGHTS, AVERAGE, OPTIMIZER, "manifest.json", ""))
    if name:
        _exchange(first / name, second / name)
    else:
        first.rename(first.with_name("between"))
        second.rename(first)
        first.with_name("between").rename(second)
    return Damage(f"{name or 'all'} of {first.name} and {second.name}", (name or "manifest.json",))


def take_other(path: Path, other: Path, draw: random.Random) -> Damage:
    """A file, or a checkpoint, of another seed."""
    names = {file.relative_to(path) for file in _files(path)} & {file.relative_to(other) for file in _files(other)}
    step = draw.choice(_steps(other))
    if draw.random() < 0.3:
        target = path / "checkpoints" / step.name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(step, target)
        return Damage(f"checkpoint {step.name}", ("manifest.json",))
    name = draw.choice(sorted(names))
    shutil.copy(other / name, path / name)
    return Damage(str(name), (name.name,))


def change_json(path: Path, other: Path, draw: random.Random) -> Damage:
    """A value changed in a JSON file, or taken out."""
    file = draw.choice([file for file in _files(path) if file.suffix == ".json"])
    content = json.loads(file.read_text())
    places: list[tuple[Any, Any]] = []
    waiting = [content]
    for value in waiting:
        keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        places += [(value, key) for key in keys]
        waiting += [value[key] for key in keys]
    owner, key = draw.choice(places)
    if draw.random() < 0.2:
        del owner[key]
    else:
        values = (None, True, 0, 1, -1, 10**30, 0.5, "", "inf", "../x", [], {}, "0" * 64)
        owner[key] = draw.choice([value for value in values if value != owner[key]])
    file.write_text(json.dumps(content, indent=draw.choice((None, 1, 2))))
    return Damage(f"{key} in {file.relative_to(path)}", (file.name,))


def remove(path: Path, other: Path, draw: random.Random) -> Damage:
    """A file that is gone."""
    file = draw.choice(_files(path))
    file.unlink()
    return Damage(f"{file.relative_to(path)}", (file.name,))


def replace(path: Path, other: Path, draw: random.Random) -> Damage:
    """A folder, a pipe or a dangling link in place of a file."""
    file = draw.choice(_files(path))
    file.unlink()
    make = draw.choice((Path.mkdir, os.mkfifo, lambda place: place.symlink_to("nowhere")))
    make(file)
    return Damage(f"{file.relative_to(path)}", (file.name,))


def add(path: Path, other: Path, draw: random.Random) -> Damage:
    """Something more in the folder."""
    inside = draw.choice((path, path / "checkpoints", draw.choice(_steps(path))))
    name = draw.choice((".partial-config.json", "notes.txt", "step-99", "step-00000001", "step-00099999", "state.pt"))
    if name.startswith("step-") and draw.random() < 0.7:
        (inside / name).mkdir()
    else:
        (inside / name).write_bytes(draw.randbytes(50))
    return Damage(f"{name} in {inside.relative_to(path.parent)}", (name, "manifest.json"))


KINDS = (
    *(flip, zero, cut, lengthen, spoil, exchange_names, exchange_steps, take_other),
    *(change_json, remove, replace, add),
)


def damage_log(path: Path, other: Path, draw: random.Random) -> Damage:
    """A log that is torn, written by two, cut short or gone."""
    log = path / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    at = draw.randrange(len(lines))
    ways: dict[str, Callable[[], list[bytes]]] = {
        "a cut line": lambda: [*lines[:at], lines[at][: draw.randrange(len(lines[at]))], *lines[at + 1 :]],
        "a line twice": lambda: [*lines[: at + 1], *lines[at:]],
        "a line gone": lambda: [*lines[:at], *lines[at + 1 :]],
        "cut short": lambda: lines[:at],
        "torn at its end": lambda: [*lines, b'{"kind": "tr'],
        "another's": lambda: (other / "metrics.jsonl").read_bytes().splitlines(keepends=True),
        "gone": list,
    }
    way = draw.choice(list(ways))
    log.write_bytes(b"".join(ways[way]()))
    if way == "gone":
        log.unlink()
    return Damage(f"{way}, at line {at}", (log.name,))


def remove_last(path: Path, other: Path, draw: random.Random) -> Damage:
    """The last checkpoint gone, whole."""
    shutil.rmtree(_steps(path)[-1])
    return Damage("the last checkpoint", ("checkpoints",))


LOG_KINDS = (damage_log, remove_last)
