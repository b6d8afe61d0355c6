"""The model card of a saved or published model: architecture, data, results and usage."""

import math
import re
import shlex
from pathlib import Path

from torch import nn

from fredholm.operators import IntegralOperator
from fredholm.storage.model_folder import CARD
from fredholm.tasks.files.terminal_text import visible
from fredholm.tasks.task import Task
from fredholm.training.run import without_folders
from fredholm.training.storage.checkpoint import Which
from fredholm.training.trainer import measured_split

from .run_record import RunRecord
from .statistics import wilson


def model_card(record: RunRecord, which: Which, place: str) -> str:
    """Returns the text of README.md, Markdown with YAML front matter; a saved model's own card gets the new place.

    Args:
        record: record of the run.
        which: the weights that are saved.
        place: the folder, or hf://owner/name on the hub, that users load them from.

    Raises:
        ValueError: the run cannot be opened, or the card of a saved model is not UTF-8 text.
    """
    if record.run is None:
        raise ValueError(f"{record.path} is no run that can be opened: {' '.join(record.missing)}")
    if record.is_saved and (own := record.path / CARD).is_file():
        return _at_place(own, place)
    run, task = record.run, record.run.task
    model, data = run.model(which), str(without_folders(run.config.task.data))
    facts = {
        "task": task.command,
        "data": _code(data),
        **_of_model(model),
        **(_results(record, task) if run.step(which) == record.best_step else {}),
        "weights": f"averaged, of step {run.step(which):,}" if task.learns_by_steps else "fitted in closed form",
        **{name: _code(_without_folders(command)) for name, command in record.command_facts.items()},
        "seed": str(run.config.seed),
    }
    if record.machine:
        facts["machine"] = ", ".join(record.machine.get(name, "") for name in ("processor", "device", "threads"))
        facts["versions"] = ", ".join(record.machine.get(name, "") for name in ("fredholm", "torch"))
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in facts.items())
    settings = "\n".join(
        f"| {_code(name)} | {_cell(_code(str(without_folders(value))))} |"
        for name, value in sorted(record.settings.items())
    )
    return f"""---
library_name: fredholm
tags:
- fredholm
- integral-operator
- {task.command}
metrics:
- {task.objective.metric}
---

# {_cell(data)}, {task.command}

A model of fredholm, a library of learnable integral operators: `config.json` has all its settings,
`model.safetensors` its weights. Loading it runs no code of these files.

| | |
|---|---|
{rows}

## How to use it

```python
import fredholm

model = fredholm.from_pretrained("{place}")
for prediction in model.predict(["FILE"]):
    print(prediction.row())
```

On the command line: `fredholm predict {place} FILE`.

## Settings that are not at their defaults

| setting | value |
|---|---|
{settings}
"""


def _at_place(card: Path, place: str) -> str:
    """An existing card with a new place in the lines that load the model; other edits are kept."""
    try:
        text = card.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{card} is not UTF-8 text; save it as UTF-8, or remove it to get a new card") from error
    for line in (r'(fredholm\.from_pretrained\(")[^"\n]*("\))', r"(`fredholm predict )[^`\n]*( FILE`)"):
        text = re.sub(line, lambda found: f"{found[1]}{place}{found[2]}", text)
    return text


def _of_model(model: nn.Module) -> dict[str, str]:
    operators = [module for module in model.modules() if isinstance(module, IntegralOperator)]
    kernels = ", ".join(dict.fromkeys(type(operator.kernel).__name__ for operator in operators))
    count = sum(parameter.numel() for parameter in model.parameters())
    facts = {"model": f"{type(model).__name__}, {count:,} parameters"}
    return facts | ({"kernels": f"{len(operators)} operators: {kernels}"} if operators else {})


def _results(record: RunRecord, task: Task) -> dict[str, str]:
    """Metrics of the run by split; a share gets its interval where the number of examples is known."""
    progress, objective = record.progress, task.objective
    if progress is None:
        return {}
    found = {}
    if progress.best_value is not None:
        found["validation"] = f"{objective.metric} {objective.format(progress.best_value)}"
    try:
        split = measured_split(task)
        count = 0 if split is None else task.num_held_out(split)
    except (ValueError, OSError, ImportError):  # without the data the number of test examples is unknown
        return found
    if split == "test" and not math.isnan(value := progress.metrics.get(objective.metric, math.nan)):
        found["test"] = f"{objective.metric} {objective.format(value)}"
        if objective.metric == "accuracy" and count:
            low, high, how = wilson(round(value * count), count)
            found["test"] += f", {how} {objective.format(low)} to {objective.format(high)}, {count:,} examples"
    return found


def _without_folders(command: str) -> str:
    """A command in which paths are cut to their last names."""
    words = list[str]()
    for word in shlex.split(command):
        option, equals, value = word.partition("=")
        is_option = option.startswith("--") and equals
        words.append(f"{option}={without_folders(value)}" if is_option else without_folders(word))
    return shlex.join(words)


def _code(text: str) -> str:
    return f"`{visible(text).replace('`', ' ')}`"


def _cell(text: str) -> str:
    return visible(text).replace("|", "\\|")
