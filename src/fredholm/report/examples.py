"""The section of examples: the highest losses, and a sample of correct predictions."""

import math
import unicodedata

import torch
from torch import Tensor, nn

from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.files.terminal_text import visible
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets.labels import LabelTarget
from fredholm.tasks.targets.numbers import NumberTarget
from fredholm.tasks.task import Task

from .blocks import Block, Card, Gallery, Note, Section
from .drawing import drawn
from .examination import Examination

MOST = 12
"""Most examples of a gallery."""


def example_section(task: Task, model: nn.Module, found: Examination) -> Section:
    """The section of the worst and of some good examples among the examined ones."""
    cost = torch.where(found.losses.isnan(), math.inf, found.losses)
    by_cost = cost.argsort(descending=True, stable=True)
    right = _right(task, found)
    worst = by_cost[:MOST]
    if right is None:
        rest = by_cost[len(worst) :]
        others, title = rest[torch.linspace(0, len(rest) - 1, min(MOST, len(rest))).long()], "A sample of the others"
        note = "From higher to lower loss."
    else:
        good = right.nonzero()[:, 0]
        order = torch.randperm(len(good), generator=torch.Generator().manual_seed(0))
        others, title, note = good[order[:MOST].sort().values], "A sample of correct predictions", "Drawn at random."
    blocks: list[Block] = [
        Gallery(
            title="Largest losses",
            cards=tuple(_card(task, model, found, int(row), right) for row in worst),
            note="Highest loss first.",
        )
    ]
    if len(others):
        cards = tuple(_card(task, model, found, int(row), right) for row in others)
        blocks.append(Gallery(title=title, cards=cards, note=note))
    elif right is not None:
        blocks.append(Note("No prediction is correct, so there is no sample of correct ones.", is_warning=True))
    return Section(title="Examples", blocks=tuple(blocks))


def _right(task: Task, found: Examination) -> Tensor | None:
    """Mask of the right predictions, bool `(n,)`; None where predictions are not right or wrong."""
    if not isinstance(task, TargetTask) or found.outputs is None or found.targets is None:
        return None
    predicted = task.target.predictions(found.outputs)
    if isinstance(task.target, LabelTarget):
        return ((predicted >= 0.5) == (found.targets > 0.5)).all(1)
    return None if isinstance(task.target, NumberTarget) else predicted.argmax(1) == found.targets


def _card(task: Task, model: nn.Module, found: Examination, row: int, right: Tensor | None) -> Card:
    index = int(found.indices[row])
    lines = [*_answer_lines(task, found, row), f"loss {float(found.losses[row]):.4g}"]
    is_wrong = None if right is None else not bool(right[row])
    try:
        shown = task.shown_example(found.split, index, model)
    except (ValueError, OSError, ImportError) as error:
        return Card(
            title=f"example {index}", drawings=(), lines=(*lines, f"cannot be shown: {error}"), is_wrong=is_wrong
        )
    return Card(title=visible(_short(shown.name, task)), drawings=drawn(shown), lines=tuple(lines), is_wrong=is_wrong)


def _short(name: str, task: Task) -> str:
    """A name without the path of the data folder."""
    config = getattr(task, "config", None)
    if not (isinstance(config, Task.Config) and config.data):
        return name
    root = user_path(config.data)
    return name.removeprefix(f"{root}/").removeprefix(f"{root.parent}/") or name


def _isolated(name: str) -> str:
    """A name, with Unicode isolates where it is right-to-left text, which would reorder the numbers next to it."""
    runs_left = any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in name)
    return f"\N{FIRST STRONG ISOLATE}{visible(name)}\N{POP DIRECTIONAL ISOLATE}" if runs_left else visible(name)


def _answer_lines(task: Task, found: Examination, row: int) -> list[str]:
    """Lines with the true and the predicted target of an example."""
    if not isinstance(task, TargetTask) or found.outputs is None or found.targets is None:
        return []
    target, outputs, truth = task.target, found.outputs[row], found.targets[row]
    if isinstance(target, NumberTarget):
        number = target.predictions(outputs[None].double())[0].tolist()
        true = (truth.double() * truth.new_tensor(target.deviation) + truth.new_tensor(target.mean)).tolist()
        pairs = zip(target.names, true, number, strict=True)
        return [f"{name}: true {a:.4g}, predicted {b:.4g}" for name, a, b in list(pairs)[:4]]
    predicted, names = target.predictions(outputs), tuple(map(_isolated, target.names))
    if isinstance(target, LabelTarget):
        known, predicted_text = (
            ", ".join(name for name, has in zip(names, which.tolist(), strict=True) if has) or "none"
            for which in (truth > 0.5, predicted >= 0.5)
        )
        return [f"true: {known}", f"predicted: {predicted_text}"]
    best = predicted.argsort(descending=True)[:2].tolist()
    predicted_text = ", ".join(f"{names[k]} ({float(predicted[k]):.2f})" for k in best)
    return [f"true: {names[int(truth)]}", f"predicted: {predicted_text}"]
