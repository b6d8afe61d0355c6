"""Builds the report page of one or several runs: one self-contained HTML file."""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from fredholm._version import __version__
from fredholm.comparison.comparison import COMPARISON, read_comparison
from fredholm.storage.atomic import write_file
from fredholm.tasks import TASKS
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Task
from fredholm.tasks.text.language_modelling import LanguageModelling
from fredholm.training.trainer import measured_split

from .blocks import Note, Page, Section, Share, Tab
from .comparison_page import best_run, comparison_tab, run_folders
from .curves import training_tab
from .examination import examine
from .examples import example_section
from .kernel_pages import input_section, kernel_section
from .overview import overview_tab
from .predictions import prediction_section
from .run_record import RunRecord, distinct_names
from .texts import text_section

PAGE = "report.html"
"""File name of the page in a run's folder."""
MARK = b'<meta name="generator" content="fredholm report'
"""Bytes near the beginning of a file that identify it as a page."""
NEEDED = {"jinja2": "jinja2", "vl_convert": "vl-convert-python"}
START = "window.fredholmEmbed = vegaEmbed;"


def missing_extra() -> str | None:
    """A message about missing packages, with the command that installs them; None where none is missing."""
    absent = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    if not absent:
        return None
    return f'a page needs {" and ".join(absent)}; get it with: pip install "fredholm[report]"'


def write_page(
    folder: Path,
    *,
    tasks: Sequence[type[Task]] = TASKS,
    device: str = "auto",
    to: Path | None = None,
    further: Sequence[Path] = (),
) -> Path:
    """Writes the page of a run, of several side by side, or of a comparison of kernels.

    Args:
        folder: folder of the run or the comparison.
        tasks: known task classes.
        device: device that the model computes on; see `TrainingConfig`.
        to: the file; None: `report.html` in the folder. An existing page is replaced.
        further: folders of other runs.

    Returns:
        The path of the file.

    Raises:
        ValueError: nothing of a folder can be shown, or the file exists and is not a page.
        ImportError: the extra `report` is not installed.
        OSError: the file cannot be written.
    """
    if (reason := missing_extra()) is not None:
        raise ImportError(reason)
    path = folder / PAGE if to is None else to
    refuse_other_file(path)
    page = build_page([folder, *further], tasks=tasks, device=device)
    write_file(path, rendered(page).encode())
    return path


def refuse_other_file(path: Path) -> None:
    """Raises a ValueError if a path exists and is not a page."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file")
    if os.path.lexists(path):
        with path.open("rb") as file:
            if MARK not in file.read(2000):
                raise ValueError(f"{path} exists and is not a page of this program; name another file")


def build_page(folders: Sequence[Path], *, tasks: Sequence[type[Task]] = TASKS, device: str = "auto") -> Page:
    """Builds the page of some runs or of one comparison; raises as `write_page`."""
    compared = [folder for folder in folders if (folder / COMPARISON).is_file()]
    if compared and len(folders) > 1:
        raise ValueError(f"{compared[0]} is a comparison, which has a page of its own; leave the others out")
    if compared:
        return _of_comparison(compared[0], tasks, device)
    names = distinct_names(folders)
    read = [RunRecord.read(folder, name, tasks, device) for folder, name in zip(folders, names, strict=True)]
    found = [_with_model(record) for record in read]
    records, models = [record for record, _ in found], [model for _, model in found]
    tabs, headlines = list[Tab](), list[Section]()
    for record, model in zip(records, models, strict=True):
        sections = _of_model(record, model)
        if len(records) == 1:
            tabs += [Tab(name=name, sections=own) for name, own in sections.items() if own]
        elif any(sections.values()):
            tabs.append(Tab(name=record.name, sections=tuple(each for own in sections.values() for each in own)))
        headlines += [
            Section(title=record.name if len(records) > 1 else "Result", blocks=section.blocks[:1])
            for section in sections["Predictions"][:1]
            if not isinstance(section.blocks[0], Note)
        ]
    overview = overview_tab(records, models, headlines)
    task = records[0].run.task.command if records[0].run is not None else "run"
    title = ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"
    return Page(
        title=f"{title}: {task}",
        lead=f"{len(names)} runs side by side" if len(names) > 1 else str(folders[0]),
        tabs=(overview, training_tab(records), *tabs),
    )


def _of_comparison(folder: Path, tasks: Sequence[type[Task]], device: str) -> Page:
    """The page of a comparison: the table, the curves of all seeds, and the best run of the best kernel."""
    comparison = read_comparison(folder)
    titles = {folder / run.folder: (row.title, run.seed) for row in comparison.rows for run in row.runs}
    records, missing = list[RunRecord](), list[str]()
    for path in run_folders(comparison, folder):
        title, seed = titles[path]
        try:
            record = RunRecord.read(path, f"{title}, seed {seed}", tasks, device)
            records.append(dataclasses.replace(record, group=title))
        except ValueError as error:
            missing.append(f"The run {path} is left out: {error}.")
    tabs = [comparison_tab(comparison, folder), training_tab(records)]
    best = best_run(comparison, folder)
    for record in (record for record in records if record.path == best):
        note = Note(f"This is {record.name}, the best run of the kernel that is best on validation data.")
        for name, sections in _of_model(*_with_model(record)).items():
            noted = tuple(dataclasses.replace(own, blocks=(note, *own.blocks)) for own in sections)
            tabs += [Tab(name=name, sections=noted)] if noted else []
    if missing:
        blocks = tuple(Note(text, is_warning=True) for text in missing)
        tabs[0] = dataclasses.replace(tabs[0], sections=(*tabs[0].sections, Section(title="Missing", blocks=blocks)))
    title = f"Kernels on {comparison.data or comparison.task}"
    return Page(title=title, lead=str(folder), tabs=tuple(tabs))


def _with_model(record: RunRecord) -> tuple[RunRecord, nn.Module | None]:
    """A record and its model; if the model cannot be read, the record's `missing` gives the reason."""
    if record.run is None or (record.progress is None and not record.is_saved):
        return record, None
    try:
        return record, record.run.model()
    except (ValueError, OSError, ImportError) as error:
        message = f"Its model cannot be read: {error}."
        return dataclasses.replace(record, missing=(*record.missing, message)), None


def _of_model(record: RunRecord, model: nn.Module | None) -> dict[str, tuple[Section, ...]]:
    """Sections about a model, by the name of their tab."""
    nothing: dict[str, tuple[Section, ...]] = {"Predictions": (), "Examples": (), "Kernels": ()}
    if record.run is None or model is None:
        return nothing
    task = record.run.task
    try:
        with warnings.catch_warnings(action="ignore"):
            split = _split(record, task)
            found = examine(record.run, model, split)
            predictions = [prediction_section(task, found, record.logged(split))]
            if isinstance(task, LanguageModelling):
                predictions.append(text_section(task, model, found, record.run.device))
            return {
                "Predictions": tuple(predictions),
                "Examples": (example_section(task, model, found),),
                "Kernels": (
                    input_section(counts)
                    if (counts := task.input_importance(model))
                    else kernel_section(task, model, split, record.run.device),
                ),
            }
    except (ValueError, OSError, ImportError) as error:
        message = f"The model cannot be evaluated on examples: {record.explain_data_error(error)}."
        note = Note(message, is_warning=True)
        return {**nothing, "Predictions": (Section(title="Quality of the predictions", blocks=(note,)),)}


def _split(record: RunRecord, task: Task) -> HeldOut:
    """The split that is evaluated: test data only once a run is done, so that no choice depends on them."""
    if record.is_saved or (record.progress is not None and record.progress.is_done):
        split = measured_split(task)
    else:
        split = "valid" if task.num_held_out("valid") else None
    if split is None:
        ending = "and test data are read at the end of a run" if task.num_held_out("test") else "and no test split"
        raise ValueError(f"nothing is held out to measure on: there is no validation split, {ending}")
    return split


def rendered(page: Page) -> str:
    """Renders a page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fredholm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = _cell
    environment.tests["numeric"] = lambda value: value is None or isinstance(value, int | float | Share)
    scripts = {"library": library(), "page": _asset("page.js")}
    return environment.get_template("page.html").render(
        page=page, version=__version__, style=_asset("page.css"), scripts=scripts
    )


def _cell(value: object) -> str:
    """Text of a table's cell."""
    if value is None:
        return "–"
    if isinstance(value, Share):
        return f"{100 * value.value:.{value.decimals}f}\u00a0%"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")  # no line break inside a number
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _asset(name: str) -> str:
    return (importlib.resources.files("fredholm.report") / "templates" / name).read_text(encoding="utf-8")


@functools.cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; it is cached, as bundling it takes seconds."""
    kept = _kept_library()
    with contextlib.suppress(OSError, ValueError):
        text = kept.read_text(encoding="utf-8") if kept is not None else ""
        digest, _, script = text.partition("\n")
        if digest == f"// {hashlib.sha256(script.encode()).hexdigest()}":
            return script
    import vl_convert

    script = vl_convert.javascript_bundle(START).replace("</script", "<\\/script")
    with contextlib.suppress(OSError):
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_file(kept, f"// {hashlib.sha256(script.encode()).hexdigest()}\n{script}".encode())
    return script


def _kept_library() -> Path | None:
    """The file that caches the script; None where the user has no home folder."""
    version = importlib.metadata.version(NEEDED["vl_convert"])
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return home / "fredholm" / f"vega-{version}.js"
