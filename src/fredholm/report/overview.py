"""The overview tab: settings, data, model and machine."""

from collections.abc import Sequence
from datetime import UTC, datetime

from torch import nn

from fredholm.operators import IntegralOperator
from fredholm.tasks.files.terminal_text import counted
from fredholm.tasks.task import Task

from .blocks import Block, Facts, Note, Section, Tab, Table
from .run_record import METRICS, RunRecord

NOTHING = "-"


def overview_tab(records: Sequence[RunRecord], models: Sequence[nn.Module | None], sections: Sequence[Section]) -> Tab:
    """The overview of one run, or of several side by side.

    Args:
        records: the runs.
        models: the trained model of each run; None where there is none.
        sections: further sections, which come first.
    """
    facts = [_facts(record, model) for record, model in zip(records, models, strict=True)]
    names = list(dict.fromkeys(name for each in facts for name in each))
    rows = tuple((name, tuple(each.get(name, NOTHING) for each in facts)) for name in names)
    rows = tuple(row for row in rows if set(row[1]) != {NOTHING})
    heads = tuple(record.name for record in records) if len(records) > 1 else ()
    blocks: list[Block] = [Facts(rows=rows, heads=heads)]
    for record in records:
        where = f"{record.name}: " if len(records) > 1 else ""
        blocks += [Note(f"{where}{text}", is_warning=True) for text in record.missing]
        if settings := record.settings:
            blocks.append(
                Table(
                    title=f"{where}Settings that are not at their defaults".lstrip(),
                    columns=("setting", "value"),
                    rows=tuple(sorted(settings.items())),
                    is_folded=True,
                )
            )
    return Tab(name="Overview", sections=(*sections, Section(title="What was run", blocks=tuple(blocks))))


def _facts(record: RunRecord, model: nn.Module | None) -> dict[str, str]:
    found = {"folder": str(record.path)}
    if record.run is not None:
        config, task = record.run.config, record.run.task
        found["task"] = task.command
        found["data"] = config.task.data
        found |= _sizes(record, task)
        found["seed"] = str(config.seed)
        if (start := config.init or config.task.initial_checkpoint) is not None:
            found["started from"] = start
        numbers = config.training
        up_to = f"up to {counted(numbers.epochs, 'epoch')}, batches of {numbers.batch_size}"
        steps = up_to if numbers.epochs else "fitted in closed form"
        found["training"] = f"{steps}, {numbers.precision}"
    found |= record.command_facts
    if model is not None:
        found |= _model(model)
    at_once = record.run is not None and not record.run.task.learns_by_steps
    if at_once:
        found["weights"] = "fitted in closed form"
    elif record.progress is not None:
        progress = record.progress
        found["trained for"] = f"{counted(progress.epoch, 'epoch')}, {counted(progress.step, 'step')}"
        chosen = f"of step {record.best_step:,}" if record.best_step is not None else NOTHING
        found["weights"] = f"averaged, {chosen}, " + (
            "the best on validation data" if progress.best_step >= 0 else "the last ones"
        )
    elif record.is_saved:
        found["weights"] = f"averaged, of step {record.best_step:,}"
    if record.run is not None and (chosen_value := record.logged("valid")) is not None:
        objective = record.run.task.objective
        found["validation"] = f"{objective.metric.replace('_', ' ')} {objective.format(chosen_value)}"
    found["test data read"] = _test_read(record, at_once=at_once)
    if record.machine:
        found["machine"] = ", ".join(record.machine.get(name, "") for name in ("processor", "device", "threads"))
        found["versions"] = ", ".join(record.machine.get(name, "") for name in ("fredholm", "torch"))
    log = record.path / METRICS
    if log.is_file():
        found["log last written"] = datetime.fromtimestamp(log.stat().st_mtime, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    return found


def _sizes(record: RunRecord, task: Task) -> dict[str, str]:
    """Sizes of the splits, where the data can still be read."""
    try:
        sizes = (task.num_train, task.num_held_out("valid"), task.num_held_out("test"))
    except (ValueError, OSError, ImportError) as error:
        return {"examples": f"the data cannot be read: {record.explain_data_error(error)}"}
    return {"examples": "{:,} to learn from, {:,} for validation, {:,} for testing".format(*sizes)}


def _model(model: nn.Module) -> dict[str, str]:
    operators = [module for module in model.modules() if isinstance(module, IntegralOperator)]
    kernels = list(dict.fromkeys(type(operator.kernel).__name__ for operator in operators))
    learnt = sum(parameter.numel() for parameter in model.parameters())
    model_text = f"{type(model).__name__}, {learnt:,} parameters"
    return {"model": model_text} | (
        {"kernels": f"{len(operators)} operators: {', '.join(kernels)}"} if operators else {}
    )


def _test_read(record: RunRecord, *, at_once: bool) -> str:
    """The steps after which the test split was evaluated, from the log."""
    times = record.of_kind("test")
    if not record.lines:
        return "not known, without the log"
    if not times:
        return "not yet" if record.run is not None else NOTHING
    steps = ", ".join(f"{line['step']:,}" for line in times[-4:])
    often = "once" if len(times) == 1 else f"{len(times)} times"
    return often if at_once else f"{often}, after step {steps}"
