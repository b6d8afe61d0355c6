"""The task of predicting a class, labels or numbers for each row of a table."""

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fredholm._settings import filled, refuse_idle
from fredholm.models.fitted.banks.filter_bank import FilterBank
from fredholm.models.fitted.banks.image_bank import ImageBank
from fredholm.models.fitted.banks.n_gram_bank import NGramBank
from fredholm.models.fitted.boosted_trees import affordable_trees
from fredholm.models.fitted.table_machine import TableBatch, TableMachine, TableReading
from fredholm.models.language.sentence_model import TokenReading
from fredholm.models.stack import Stack
from fredholm.tasks.files.cells import MISSING
from fredholm.tasks.files.read_record import recorded
from fredholm.tasks.images.encoded_images import inspect, notes_on_sizes
from fredholm.tasks.images.image_learning import SIDES
from fredholm.tasks.images.patches import in_whole_patches
from fredholm.tasks.images.read import read_images
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Effort, Preset, schedule_at_once
from fredholm.tasks.sentences.table import TABLE_SUFFIXES
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, OfEachSplit, Splits
from fredholm.tasks.splits.splitting import divided
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import TARGETS, Answers, Kind, Target
from fredholm.tasks.task import Batch, EntryNames, Recommended, Task, Trained, own_facts
from fredholm.tasks.tensor_form import (
    BATCH,
    Axis,
    OpenAxis,
    Sizes,
    Slot,
    TensorForm,
    first_of_each,
    pixel_axes,
    random_pixels,
)
from fredholm.tasks.text import MarkedTokenizer, Tokens, warn_of_cut
from fredholm.tasks.views import MOST_LINES, ImageView, Line, SeriesView, ShownExample, TextPart, TextView, View

from .columns import FILES, Column, ColumnKind, LearntColumns, learn_columns
from .open import open_table, read_rows_of
from .series_cells import SeriesOfRows, learn_series, sampling_of, stacked
from .table_set import Rows, TableSet

CHUNK = 256
"""Batch size for fitting and predicting."""
LONGEST = 65_536
"""Largest number of tokens that are read of a text."""
COLUMNS = "columns.json"
"""Name of the file beside an exported model that lists the columns in order."""
CENTRES: dict[Preset, int] = {"small": 4096, "base": 8192}


@final
class TableLearning(TargetTask[TableSet]):
    """A model on rows of numbers, dates, categories, texts, images and series that predicts classes, labels or numbers.

    The kinds of columns are inferred from the training rows (`learn_columns`). The model is fitted in closed form.

    Args:
        config: the settings.
        facts: facts of an earlier run; None: computed from the training split.

    Raises:
        ValueError: the data cannot be opened, have a single answer or no column to learn from, or do not match `facts`.
        ImportError: there are texts, and their tokenizer needs a package that is not installed.
    """

    command: ClassVar[str] = "table"
    predicts = Kinds(suffixes=TABLE_SUFFIXES)
    parts: ClassVar[tuple[type, ...]] = TARGETS

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts of the training split; `tokenizer` is empty without texts, `channels` is 0 without images."""

        columns: tuple[Column, ...]
        tokenizer: str
        target: Target
        channels: int
        image_size: tuple[int, int] | None

        @property
        def files(self) -> dict[str, str]:
            """The tokenizer's file, in the format of its library."""
            return {"tokenizer.json": self.tokenizer} if self.tokenizer else {}

        def of(self, *kinds: ColumnKind) -> tuple[Column, ...]:
            """Returns the columns of these kinds."""
            return tuple(column for column in self.columns if column.kind in kinds)

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetTask.NumbersConfig):
        """Settings of a table: data, kinds of columns, and the model.

        Args:
            data: a .csv, .tsv, .jsonl, .parquet or .arrow file, also gzipped, a folder with files such as train.csv,
                valid.csv and test.csv, or the start of such names.
            label_columns: the column to predict, or several columns of numbers or of labels, 0 and 1; none: a column
                with a usual name, such as label.
            categories: columns that are categories whatever their cells look like, such as area codes.
            texts: columns that are texts even if their words repeat often.
            ignore: columns that are not read.
            weights: column of the weights of rows in training and in metrics, which are relative to their mean; 0
                leaves a row out. None: all rows weigh the same.
            columns: names of all columns of .csv and .tsv files that have no header.
            target: kind of the answers: a class, several labels separated by `|`, or a number; None: a number if all
                are numbers and one is not whole, or more than 20 whole ones differ, else a class; for several columns,
                labels if all are 0 or 1, else numbers.
            tokens: the tokenizer of texts.
            image_size: height and width to scale images to; None: their common size, or one that suits most.
            model: a kernel machine and trees, fitted to the training rows in closed form.
        """

        data: str = ""
        label_columns: tuple[str, ...] = ()
        categories: tuple[str, ...] = ()
        texts: tuple[str, ...] = ()
        ignore: tuple[str, ...] = ()
        weights: str | None = None
        columns: tuple[str, ...] = ()
        target: Kind | None = None
        tokens: Tokens = field(default_factory=Tokens)
        image_size: tuple[int, int] | None = None
        model: TableMachine.Config = field(default_factory=TableMachine.Config)

        weight_settings: ClassVar[tuple[str, ...]] = ("categories", "texts", "ignore", "tokens", "image_size", "model")

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("columns", "csv")

        def __post_init__(self) -> None:
            if self.valid_fraction != 0:
                because = "a model whose settings are chosen by leaving training rows out"
                refuse_idle("", type(self), because, "leave it out", valid_fraction=self.valid_fraction)
            if both := [name for name in self.categories if name in self.texts]:
                raise ValueError(f"column {both[0]!r} is listed in both categories and texts; leave it out of one")

        def in_folder(self, folder: Path, facts: Task.Facts) -> Self:
            """See `Task.Config.in_folder`: with texts, uses the tokenizer of the folder."""
            assert isinstance(facts, TableLearning.Facts)
            return replace(self, tokens=Tokens(file=str(folder / "tokenizer.json"))) if facts.tokenizer else self

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: sets the tokenizer, and sizes of images and the model."""
            task, config = TableLearning(self), self
            size = len(task.splits.train)
            sizes = {"num_centres": min(size, CENTRES[effort.preset])}
            sizes["num_trees"] = affordable_trees(config.model.num_trees, task.target.num_outputs)
            notes = task.notes
            if (own := task.facts.image_size) is not None and self.image_size is None:
                scaled = in_whole_patches(own, 1, SIDES[effort.preset])
                config = replace(config, image_size=None if scaled == own else scaled)
                notes = (*notes, *notes_on_sizes(task.sizes, scaled))
            if texts := task.facts.of("text"):
                rows = task.splits.train.rows
                config = replace(config, tokens=self.tokens.recommended(_texts(rows, texts)))
                task = TableLearning(config)
                config = replace(config, model=replace(config.model, texts=task.recommended_texts()))
            model = filled(config.model, [TableMachine.Config()], **sizes)
            return Recommended(replace(config, model=model), schedule_at_once(size, effort), notes)

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`: always refused."""
            raise ValueError(
                "rows of a table are predicted by a kernel machine and trees, weighted by left-out errors: no kernel "
                "can be chosen; `fredholm train table` trains them"
            )

        def build(self, facts: Task.Facts | None = None) -> "TableLearning":
            """The task; see `TableLearning`."""
            return TableLearning(self, own_facts(facts, TableLearning.Facts, "a table"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        self.config = config
        self.notes: tuple[str, ...] = ()
        """Notes on the inferred kinds of columns; empty with given facts."""
        self.sizes: tuple[tuple[int, int], tuple[int, int]] | None = None
        """Smallest and largest size of the training images; None: they are equal, or a size is set."""
        self._facts = facts or self._learn_facts()
        self._set_target(self._facts.target, config.target_settings)
        self.tokenizer = MarkedTokenizer(self._facts.tokenizer) if self._facts.tokenizer else None

    @property
    def facts(self) -> Facts:
        """Facts of the training split."""
        return self._facts

    @property
    def input_meaning(self) -> dict[str, object]:
        """The columns and the tokenizer."""
        return {"columns": self._facts.columns, "tokenizer": self._facts.tokenizer}

    @property
    def learns_by_steps(self) -> bool:
        """False, since the model is fitted in closed form."""
        return False

    def _open(self) -> Splits[TableSet]:
        config = self.config
        if not config.data:
            raise ValueError("no table is given; pass a .csv, .tsv, .jsonl or .parquet file or a folder of them")
        with config.csv.reading(config.data):
            found = open_table(
                config.data,
                label_columns=config.label_columns,
                ignore=config.ignore,
                weights=config.weights,
                columns=config.columns,
                kind=config.target,
            )
        return divided(found, config, needs_valid=False)

    def _learn_facts(self) -> Facts:
        """Computes the facts of the training split."""
        config, train = self.config, self._opened.train
        for setting, names in (("categories", config.categories), ("texts", config.texts)):
            if unknown := [name for name in names if name not in train.rows.cells]:
                raise ValueError(
                    f"{config.data}: {setting} names {unknown[0]!r}, and no such column is read; the columns are "
                    f"{', '.join(train.rows.cells)}"
                )
        try:
            learnt = learn_columns(train.rows.cells, train.rows.place, categories=config.categories, texts=config.texts)
        except ValueError as error:
            message = str(error)
            raise ValueError(message if ", line " in message else f"{config.data}: {message}") from error
        texts = tuple(column for column in learnt.columns if column.kind == "text")
        if not texts and config.tokens != Tokens():
            raise ValueError("tokens have no effect, since no column is one of texts; leave them out")
        if (read := tuple(_with_files(column, train.rows) for column in learnt.columns)) != learnt.columns:
            learnt = learnt._replace(columns=read)
        pictures = [file for column in learnt.columns if column.kind == "image" for file in _files(train.rows, column)]
        if not texts:
            because, instead = "no column of texts", "leave a column of texts in"
            refuse_idle("", NGramBank.Config, because, instead, **vars(config.model.texts))
        if not pictures:
            because, instead = "no column of images", "leave a column of images in"
            refuse_idle("", ImageBank.Config, because, instead, **vars(config.model.images))
            refuse_idle("", TableLearning.Config, because, instead, image_size=config.image_size)
        if not any(column.kind == "series" for column in learnt.columns):
            because, instead = "no column of series", "leave a column of series in"
            refuse_idle("", FilterBank.Config, because, instead, **vars(config.model.series))
        if not any(column.kind in ("text", *FILES) for column in learnt.columns):
            because, instead = "no column of texts, images or series", "leave one in"
            refuse_idle("", TableMachine.Config, because, instead, num_directions=config.model.num_directions)
        self.notes = _notes_on(learnt, train.answers)
        headers = inspect(pictures, config.image_size, len(pictures)) if pictures else None
        self.sizes = None if headers is None else headers.sizes
        return TableLearning.Facts(
            columns=learnt.columns,
            tokenizer=config.tokens.learn(_texts(train.rows, texts)).state if texts else "",
            target=train.answers.learn(config.target_settings, config.data, train.example_weights),
            channels=0 if headers is None else headers.channels,
            image_size=None if headers is None else config.image_size or headers.image_size,
        )

    def _check(self, splits: Splits[TableSet]) -> None:
        for part in (splits.train, splits.valid, splits.test):
            if part is not None:
                self.target.check(part.answers, self.config.data)
                for column in self._facts.columns:
                    if column.name not in part.rows.cells:
                        raise ValueError(
                            f"{self.config.data}: has no column {column.name!r}, which the run was made with"
                        )
                    if column.kind in FILES:  # now, since files read later are not recorded
                        _files(part.rows, column)

    def table_reading(self) -> TableReading:
        """Returns the description of the rows that the model reads."""
        facts = self._facts
        numbers, images, series = facts.of("number", "date"), facts.of("image"), facts.of("series")
        ends = np.cumsum([0, *(len(column.parts) for column in numbers)])
        text = None
        if self.tokenizer is not None:
            marks = self.tokenizer.marks
            text = TokenReading(
                vocab_size=self.tokenizer.vocab_size,
                context=LONGEST,
                pad=marks.pad,
                separator=marks.separator,
                spelling=self.tokenizer.letters,
            )
        return TableReading(
            num_numbers=int(ends[-1]),
            may_miss=tuple(int(end) for end, column in zip(ends, numbers, strict=False) if column.may_miss),
            num_categories=tuple(len(column.levels) for column in facts.of("category")),
            num_texts=len(facts.of("text")),
            text=text,
            num_images=len(images),
            images_may_miss=tuple(number for number, column in enumerate(images) if column.may_miss),
            channels=facts.channels,
            image_size=facts.image_size,
            series=tuple(map(sampling_of, series)),
            series_may_miss=tuple(number for number, column in enumerate(series) if column.may_miss),
        )

    def recommended_texts(self) -> NGramBank.Config:
        """Returns settings of the banks of n-grams that suit every column of the training texts."""
        reading = self.table_reading().text
        assert reading is not None
        columns = range(len(self._facts.of("text")))
        rows = (batch.tokens[:, column] for batch in self._batches(self._encoded_train) for column in columns)
        return self.config.model.texts.recommended(rows, reading, 1, 1)

    def model(self) -> nn.Module:
        """Builds the model, with the outputs of the target."""
        return self.config.model.build(self.table_reading(), self.target.num_outputs)

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits the model to all training rows."""
        assert isinstance(model, TableMachine)
        train = self.splits.train
        targets = self.target.targets(train.answers.values).to(device)
        rows = (TableBatch(*(part.to(device) for part in batch)) for batch in self._batches(self._encoded_train))
        batches = list(zip(rows, targets.split(CHUNK), strict=True))
        weights = None if train.example_weights is None else train.example_weights.to(device)
        model.fit(batches, self.target, groups=train.marks.group_numbers(device), weights=weights)

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: names of the outputs of the kernel machine, the trees and the logistic regression."""
        assert isinstance(model, TableMachine)
        axes = {"machine.dual": 1, "machine.bias": 0, "logistic.weight": 0, "logistic.bias": 0}
        if model.trees is not None:
            axes |= {"trees.leaves": 3, "trees.bias": 0}
        return {name: {axis: self.target.output_names} for name, axis in axes.items()}

    def input_importance(self, model: nn.Module) -> dict[str, float]:
        """See `Task.input_importance`: relevance of the columns (`TableMachine.counts`)."""
        assert isinstance(model, TableMachine)
        numbers, *others = (each.tolist() for each in model.counts())
        named, start = dict[str, float](), 0
        for column in self._facts.of("number", "date"):
            named[column.name] = max(numbers[start : start + len(column.parts)])
            start += len(column.parts)
        kinds: tuple[ColumnKind, ...] = ("category", "text", "image", "series")
        for kind, counts in zip(kinds, others, strict=True):
            named |= dict(zip((column.name for column in self._facts.of(kind)), counts, strict=True))
        return named

    @cached_property
    def _encoded_train(self) -> "_Encoded":
        return self._encode(self.splits.train.rows, "train")

    @cached_property
    def _encoded_held_out(self) -> OfEachSplit["_Encoded"]:
        return OfEachSplit(lambda split: self._encode(self.held_out(split).rows, split))

    def _encode(self, rows: Rows, split: Split | None = None) -> "_Encoded":
        """Converts rows to tensors. Warns where texts, of a split or to predict, are cut."""
        facts, count = self._facts, len(rows)
        numbers = [column.numbers(rows.cells[column.name], rows.place) for column in facts.of("number", "date")]
        categories = [column.categories(rows.cells[column.name]) for column in facts.of("category")]
        tokens, num_cut = list[list[Tensor]](), 0
        for column in facts.of("text"):
            assert self.tokenizer is not None
            found = [self.tokenizer.lay_out(text, None, LONGEST) for text in rows.cells[column.name]]
            tokens.append([each.tokens for each in found])
            num_cut += sum(each.is_cut for each in found)
        warn_of_cut(num_cut, count * len(tokens), LONGEST, split)
        images, has_image = self._pictures(rows)
        return _Encoded(
            torch.from_numpy(np.concatenate([np.empty((count, 0), np.float32), *numbers], axis=1)),
            torch.from_numpy(np.stack([*categories], axis=1) if categories else np.empty((count, 0), np.int64)),
            tokens,
            images,
            has_image,
            [SeriesOfRows.read(column, _files_or_none(rows, column)) for column in facts.of("series")],
        )

    def _pictures(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Images `(n, I, C, H, W)`, uint8, 0 where missing, and the mask of the existing ones `(n, I)`."""
        facts, columns = self._facts, self._facts.of("image")
        size = facts.image_size or (0, 0)
        images = torch.zeros(len(rows), len(columns), facts.channels, *size, dtype=torch.uint8)
        exists = torch.zeros(len(rows), len(columns), dtype=torch.bool)
        for k, column in enumerate(columns):
            files = rows.files(column.name)
            own = [i for i, file in enumerate(files) if file is not None]
            exists[own, k] = True
            if own:
                images[own, k] = read_images(_files(rows, column), facts.channels, size)
        return images, exists

    def _rows(self, encoded: "_Encoded", indices: Sequence[int]) -> TableBatch:
        """A batch of rows by index, with padded texts."""
        picked = torch.tensor(indices, dtype=torch.int64)
        texts = [column[i] for column in encoded.tokens for i in indices]
        if self.tokenizer is None or not texts:
            tokens = torch.zeros(len(indices), len(encoded.tokens), 0, dtype=torch.int64)
        else:
            padded = pad_sequence(texts, batch_first=True, padding_value=self.tokenizer.marks.pad).long()
            tokens = padded.view(len(encoded.tokens), len(indices), -1).transpose(0, 1)
        pictures = encoded.images[picked], encoded.has_image[picked]
        most = max((len(column.parts) for column in self._facts.of("series")), default=0)
        series = stacked(encoded.series, picked, most)
        return TableBatch(encoded.numbers[picked], encoded.categories[picked], tokens, *pictures, *series)

    def _batches(self, encoded: "_Encoded") -> Iterator[TableBatch]:
        """Yields all rows in order, in batches of CHUNK."""
        for start in range(0, len(encoded.numbers), CHUNK):
            yield self._rows(encoded, range(start, min(start + CHUNK, len(encoded.numbers))))

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Returns the fields of `TableBatch`, `targets` and any `example_weights`; nothing is random."""
        return self._batch(self._encoded_train, "train", indices)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Returns the fields of `TableBatch`, `targets` and any `example_weights` of a held-out split."""
        return self._batch(self._encoded_held_out[split], split, indices)

    def _batch(self, encoded: "_Encoded", split: Split, indices: Tensor) -> Batch:
        rows, answers = self._rows(encoded, indices.tolist()), self._part_of(split).answers
        return {
            **rows._asdict(),
            "targets": self.target.targets(answers.values[indices]),
            **self._weights(split, indices),
        }

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: the cells, one line for each column, and the images and series."""
        rows = self.held_out(split).rows
        words = [f"{column.name}: {rows.cells[column.name][index]}" for column in self._facts.columns]
        path, line = rows.places[index]
        encoded = self._encoded_held_out[split]
        views: list[View] = [TextView(parts=(TextPart("\n".join(words)),))]
        views += [
            ImageView(title=column.name, pixels=encoded.images[index, k])
            for k, column in enumerate(self._facts.of("image"))
            if bool(encoded.has_image[index, k])
        ]
        for column, series in zip(self._facts.of("series"), encoded.series, strict=True):
            values, times = (each[0] for each in series.of(torch.tensor([index])))
            there = ~times.isnan()
            names = column.parts[: MOST_LINES if bool(there.any()) else 0]
            lines = tuple(Line(name, "seen", times[there], values[there, c]) for c, name in enumerate(names))
            if lines:
                views.append(SeriesView(title=column.name, lines=lines))
        return ShownExample(name=f"{path.name}, line {line}", views=tuple(views))

    def _outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(TableBatch(*(batch[name] for name in TableBatch._fields))).float()

    @property
    def _train_answers(self) -> Answers:
        return self.splits.train.answers

    @torch.no_grad()
    def outputs(self, model: nn.Module, rows: Rows, device: torch.device) -> Tensor:
        """Returns outputs of the model `(n, num_outputs)`; warns of categories that are not in training."""
        return self._outputs_of(model, rows, self._encode(rows), device)

    @torch.no_grad()
    def _outputs_of(self, model: nn.Module, rows: Rows, encoded: "_Encoded", device: torch.device) -> Tensor:
        self._warn_of_new(rows)
        found = [
            model(TableBatch(*(part.to(device) for part in batch))).float().cpu() for batch in self._batches(encoded)
        ]
        return torch.cat(found)

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`; inputs are numbers in the table's units, category indices, tokens, pixels, series."""
        facts, target, reading = self._facts, self.target, self.table_reading()
        numeric = facts.of("number", "date")
        mean = torch.tensor([each for column in numeric for each in column.mean], dtype=torch.float64)
        deviation = torch.tensor([each for column in numeric for each in column.deviation], dtype=torch.float64)
        if (column := next((each for each in facts.of("series") if not each.is_regular), None)) is not None:
            raise ValueError(
                f"series of the column {column.name!r} have irregular times, which an exported model cannot read; "
                "write them at one spacing and train again, or ignore the column"
            )
        spacings = torch.tensor([column.spacing for column in facts.of("series")], dtype=torch.float64)
        slots = self._slots(len(mean), reading)

        def call(model: nn.Module, *inputs: Tensor) -> Tensor:
            given = dict(zip(slots, inputs, strict=True))
            numbers = inputs[0].new_zeros(inputs[0].shape[0], 0, dtype=torch.float32)
            if "numbers" in given:
                # in float64, since seconds of dates exceed the digits of float32 before their mean is subtracted
                numbers = ((given.pop("numbers") - mean.to(numbers.device)) / deviation.to(numbers.device)).float()
            if "series" in given:
                exists = given.pop("has_sample")
                steps = torch.arange(exists.shape[2], dtype=torch.float64, device=exists.device)
                times = steps * spacings.to(exists.device)[:, None]
                given["series_times"] = torch.where(exists, times, torch.nan)
            return target.answers(self._outputs(model, TableBatch.of(numbers, **given)._asdict()))

        def draw(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
            batch, pixels = sizes["batch"], (reading.num_images, reading.channels, *(reading.image_size or ()))
            drawn = torch.randn(batch, len(mean), generator=generator, dtype=torch.float64) * deviation + mean
            places = [torch.randint(-1, count, (batch,), generator=generator) for count in reading.num_categories]
            found = {"numbers": drawn}
            if places:
                found["categories"] = torch.stack(places, 1)
            if self.tokenizer is not None:
                tokens = self.tokenizer.draw(batch * reading.num_texts, 8, generator)
                found["tokens"] = tokens.view(batch, reading.num_texts, -1)
            if reading.num_images:
                found["images"] = random_pixels((batch, *pixels), generator)
                found["has_image"] = torch.arange(batch * reading.num_images).view(batch, -1) % 3 > 0
            if reading.series:
                samples, count = sizes["samples"], len(reading.series)
                most = max(len(column.parts) for column in facts.of("series"))
                found["series"] = torch.randn(batch, count, samples, most, generator=generator)
                found["has_sample"] = first_of_each(batch * count, samples).view(batch, count, samples)
            return tuple(found[name] for name in slots)

        return TensorForm(
            model=model,
            call=call,
            inputs=tuple(slots.values()),
            output=target.slot(BATCH),
            draw=draw,
            open_axes=self._open_axes(reading),
            names=target.axis_names,
            files={COLUMNS: self._columns_text(), **facts.files},
        )

    def _slots(self, num_numbers: int, reading: TableReading) -> dict[str, Slot]:
        """The inputs of the tensor form, by field of `TableBatch` and `has_sample`."""
        in_order, slots = f"in the order of {{}} in {COLUMNS}", list[Slot]()
        if num_numbers:
            about = f"as in a table, {in_order.format('numbers')}; NaN where one is missing"
            slots.append(Slot("numbers", (BATCH, Axis("number_columns", num_numbers)), about))
        if count := len(reading.num_categories):
            about = f"indices from 0 into the levels of the columns of categories in {COLUMNS}; -1 where one is missing"
            slots.append(Slot("categories", (BATCH, Axis("category_columns", count)), about))
        if self.tokenizer is not None:
            axes = (BATCH, Axis("texts", reading.num_texts), Axis("tokens", 8))
            slots.append(Slot("tokens", axes, f"a row for each column of texts; {self.tokenizer.slot.about}"))
        if reading.image_size is not None:
            columns, pixels = (
                Axis("image_columns", reading.num_images),
                pixel_axes(reading.channels, reading.image_size),
            )
            about = f"uint8, from 0 to 255, {in_order.format('images')}; anything where one is missing"
            slots.append(Slot("images", (BATCH, columns, *pixels), about))
            slots.append(Slot("has_image", (BATCH, columns), "whether each image exists"))
        if reading.series:
            columns, samples = Axis("series_columns", len(reading.series)), Axis("samples")
            channels = Axis("series_channels", max(len(column.parts) for column in self._facts.of("series")))
            about = f"in the unit of the data, {in_order.format('series')}, at the spacing given there"
            slots.append(Slot("series", (BATCH, columns, samples, channels), f"{about}; NaN where a value is missing"))
            about = "whether each sample exists; existing ones come first, and a row without a series has none"
            slots.append(Slot("has_sample", (BATCH, columns, samples), about))
        return {slot.name: slot for slot in slots}

    def _open_axes(self, reading: TableReading) -> dict[str, OpenAxis]:
        """Range of the number of samples, which is variable in an export."""
        if not reading.series:
            return {}
        longest = max(2, *(sampling.longest for sampling in reading.series))
        example = min(longest, 24)
        return {"samples": OpenAxis(example, example + 7 if longest < 31 else 31, longest)}

    def _columns_text(self) -> str:
        """The order of the columns in the inputs of the tensor form, as JSON."""
        facts = self._facts
        described = {
            "numbers": [
                {"column": column.name, **({"part": part} if part else {})}
                for column in facts.of("number", "date")
                for part in column.parts
            ],
            "categories": [{"column": column.name, "levels": column.levels} for column in facts.of("category")],
            "texts": [{"column": column.name} for column in facts.of("text")],
            "images": [{"column": column.name} for column in facts.of("image")],
            "series": [
                {"column": column.name, "channels": column.parts, "spacing": column.spacing}
                for column in facts.of("series")
            ],
        }
        return json.dumps(described, indent=2, ensure_ascii=False)

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """Returns for each row of the tables `file`, `line` and the target's answer.

        Files are tables as in training, and may lack the columns to predict.
        """
        rows: list[Prediction] = []
        for _, (found, encoded) in inputs.read(self._read, self.config.csv):
            answers = map(self.target.answer, self._outputs_of(model, found, encoded, device))
            rows += [
                Prediction(path, {"line": line, **cells}, probabilities)
                for (path, line), (cells, probabilities) in zip(found.places, answers, strict=True)
            ]
        return rows

    def _read(self, file: Path) -> tuple[Rows, "_Encoded"]:
        rows = read_rows_of(file, [column.name for column in self._facts.columns], self.config.columns)
        return rows, self._encode(rows)

    def _warn_of_new(self, rows: Rows) -> None:
        for column in self._facts.of("category"):
            cells = rows.cells[column.name]
            new = [
                cells[i]
                for i in np.flatnonzero(column.categories(cells) < 0).tolist()
                if cells[i].lower() not in MISSING
            ]
            if new:
                warnings.warn(
                    f"{rows.places[0][0]}: column {column.name!r}: {len(new)} of {len(cells):,} cells are not among "
                    f"the categories of the model, such as {new[0]!r}; they count as missing",
                    stacklevel=2,
                )


@final
@dataclass(frozen=True)
class _Encoded:
    """All rows as tensors, in order: the fields of `TableBatch`, with tokens and series by column."""

    numbers: Tensor
    categories: Tensor
    tokens: list[list[Tensor]]
    images: Tensor
    has_image: Tensor
    series: list[SeriesOfRows]


def _texts(rows: Rows, columns: Sequence[Column]) -> list[str]:
    return [text for column in columns for text in rows.cells[column.name]]


def _files(rows: Rows, column: Column) -> list[Path]:
    """The files of the rows that have one."""
    return [file for file in _files_or_none(rows, column) if file is not None]


def _files_or_none(rows: Rows, column: Column) -> list[Path | None]:
    """The file of each row, recorded as read; None: it has none."""
    return [None if file is None else recorded(file) for file in rows.files(column.name)]


def _with_files(column: Column, rows: Rows) -> Column:
    """The column, completed from its files if it is one of series."""
    return learn_series(column, _files(rows, column)) if column.kind == "series" else column


def _notes_on(learnt: LearntColumns, answers: Answers) -> tuple[str, ...]:
    """Notes on the kinds of columns, and on those left out or doubtful."""
    kinds: dict[ColumnKind, str] = {
        "number": "numbers",
        "date": "dates",
        "category": "categories",
        "text": "texts",
        "image": "images",
        "series": "series",
    }
    read = [
        f"{word}: {', '.join(names)}"
        for kind, word in kinds.items()
        if (names := [column.name for column in learnt.columns if column.kind == kind])
    ]
    answered = f"one of {len(answers.names)} classes" if answers.kind == "class" else ", ".join(answers.names)
    predicted = f"to predict: {answered}"
    dropped = [
        f"left out: {name or 'the column without a name'}, which {reason}" for name, reason in learnt.left_out.items()
    ]
    doubtful = [f"column {name} {reason}" for name, reason in learnt.doubtful.items()]
    return ("; ".join([predicted, *read]), *dropped, *doubtful)
