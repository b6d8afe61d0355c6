"""Subjects for tests of settings: tasks, augmentation and the training engine, on small data in a folder."""

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fredholm.kernels import KernelInputs
from fredholm.models import (
    Bert,
    BertSentences,
    CloudMachine,
    ConditionalRandomField,
    FilterBank,
    GraphStackConfig,
    ITNet,
    ITNetMaskedModel,
    LagMachine,
    LinkMachine,
    MLPConfig,
    NeighbourhoodBank,
    NGramBank,
    NodeMachine,
    OnEdgesConfig,
    SentenceStackConfig,
    SpectralConfig,
    SummaryBank,
    TableMachine,
    TwoStream,
    ViT,
)
from fredholm.models.blended import Blended
from fredholm.models.fields.neural_field import FieldOperator
from fredholm.models.language.gpt2 import GPT2
from fredholm.models.series.ckcnn import CKCNN
from fredholm.pretrained import PretrainedImages, PretrainedMasked, PretrainedSentences, PretrainedText
from fredholm.tasks import (
    FieldLearning,
    Forecasting,
    GraphLearning,
    ImageLearning,
    ImageTextLearning,
    LanguageModelling,
    LinkLearning,
    MaskedLanguageModelling,
    NodeLearning,
    OperatorLearning,
    PointLearning,
    Segmentation,
    SentenceLearning,
    SeriesLearning,
    TableLearning,
    Task,
    WordLearning,
)
from fredholm.tasks.blending import BlendingTask
from fredholm.tasks.fields.answer import Answer
from fredholm.tasks.files.delimited import CsvSettings, DelimitedFile
from fredholm.tasks.graphs import open_graphs
from fredholm.tasks.graphs.inputs import GraphInputs
from fredholm.tasks.graphs.network import reading_of
from fredholm.tasks.images.augmentation import Augmentation
from fredholm.tasks.images.changes import ImageChanges, drawing
from fredholm.tasks.masks.augmentation import MaskAugmentation, Masked
from fredholm.tasks.points import NUM_SAMPLES
from fredholm.tasks.points.augmentation import CloudAugmentation, Clouds
from fredholm.tasks.series.thinning import Dropped
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.targets import ClassTarget
from fredholm.tasks.text import MarkedTokenizer, Tokens, checkpoint_tokens
from fredholm.training import Run, TrainingConfig, train
from fredholm.training.storage.checkpoint import Checkpoints
from tests.contracts.settings import Subject
from tests.pretrained.peers import write_text_tokens
from tests.tasks.graphs.build import rings, two_groups
from tests.tasks.image_texts.build import write_folder, write_npz
from tests.tasks.masks.build import squares
from tests.training.toy_task import ToyTask

SWITCH = (False, True)
OTHER_CSV = (CsvSettings(encoding="utf-32"),)
"""Another value of `csv` for every set of examples: no file here is in this encoding."""
CPU = torch.device("cpu")
OF_TARGETS: dict[str, tuple[object, ...]] = {
    "objective": ("macro_f1",),
    "class_weights": ("balanced",),
}
"""Other values of the settings of every task with a target."""
OF_NUMBERS: dict[str, tuple[object, ...]] = {**OF_TARGETS, "quantiles": ((0.1, 0.9),)}
"""Other values of the settings of every task that may predict numbers."""
CHANGES: dict[str, tuple[object, ...]] = {
    "shift": (0.2,),
    "rotation": (20.0,),
    "scale": ((0.7, 1.3),),
    "horizontal_flip": (1.0,),
    "crop_padding": (2,),
    "rand_augment_ops": (2,),
    "rand_augment_magnitude": (20,),
    "random_erasing": (1.0,),
}
"""Other values of the settings of every augmentation of images."""
CONFIGS_OF_TASKS: tuple[type, ...] = (
    Augmentation.Config,
    CloudAugmentation.Config,
    CsvSettings,
    ImageChanges.Config,
    FieldLearning.Config,
    GraphInputs,
    GraphLearning.Config,
    ImageLearning.Config,
    ImageTextLearning.Config,
    LanguageModelling.Config,
    LinkLearning.Config,
    MaskAugmentation.Config,
    MaskedLanguageModelling.Config,
    NodeLearning.Config,
    OperatorLearning.Config,
    PointLearning.Config,
    PretrainedImages,
    PretrainedMasked,
    PretrainedSentences,
    PretrainedText,
    Run.Config,
    Segmentation.Config,
    SentenceLearning.Config,
    Forecasting.Config,
    SeriesLearning.Config,
    TableLearning.Config,
    Tokens,
    TrainingConfig,
    WordLearning.Config,
)


def task_subjects(folder: Path) -> list[Subject]:
    """Subjects of all configs above, with their data in an empty folder."""
    return [*_of_tasks(folder), *_runs(folder / "start")]


def small_tasks(folder: Path) -> list[Task.Config]:
    """A small config of every task, with its data in an empty folder."""
    kinds = [(subject.of, subject.base) for subject in _of_tasks(folder)]
    return [kind(**base) for kind, base in kinds if isinstance(kind, type) and issubclass(kind, Task.Config)]


def _of_tasks(folder: Path) -> list[Subject]:
    return [
        _augmentation(),
        _image_changes(),
        _images(folder / "images"),
        _image_checkpoints(folder / "image checkpoints"),
        _image_texts(folder / "image texts"),
        _text(folder / "text"),
        _text_checkpoints(folder / "text checkpoints"),
        _masked(folder / "masked"),
        _masked_checkpoints(folder / "masked checkpoints"),
        _sentences(folder / "sentences"),
        _sentence_checkpoints(folder / "sentence checkpoints"),
        _words(folder / "words"),
        _table(folder / "table"),
        _tokens(folder / "tokens"),
        _csv(folder / "csv"),
        _series(folder / "series"),
        _forecasts(folder / "forecasts"),
        _fields(folder / "fields"),
        _operators(folder / "operators"),
        *_graphs(folder / "graphs"),
        _cloud_augmentation(),
        _points(folder / "points"),
        _mask_augmentation(),
        _segmentation(folder / "masks"),
    ]


def _task(built: Task) -> Iterator[object]:
    """Facts of the task, its batches, its model's weights and its loss."""
    yield from (built.facts, built.objective)
    splits: list[HeldOut] = [split for split in get_args(HeldOut) if built.num_held_out(split)]
    yield from (built.num_train, *(built.num_held_out(split) for split in splits))
    batch = built.train_batch(torch.arange(3), torch.Generator().manual_seed(0))
    held_out = (built.held_out_batch(split, torch.arange(min(2, built.num_held_out(split)))) for split in splits)
    for found in (batch, *held_out):
        yield list(found)
        yield from found.values()
    torch.manual_seed(0)
    model = built.model()
    tensors = model.state_dict()
    for name, axes in built.entry_names(model).items():
        assert all(tensors[name].shape[axis] == len(names) for axis, names in axes.items()), (name, axes)
    yield from tensors.values()
    with torch.no_grad():
        yield built.loss(model, batch)


def _blending_task(built: BlendingTask[Any]) -> Iterator[object]:
    """The observations of a task, and predictions of a network with a fitted model beside it."""
    yield from _task(built)
    torch.manual_seed(0)
    model = built.model()
    if isinstance(model, Blended):
        built.initialise(model, CPU)
        model.eval().share.fill_(0.5)
        yield built.outputs_and_targets(model, "valid", torch.arange(2))[0].detach()


def _augmentation() -> Subject:
    def augmented(built: Augmentation) -> Iterator[object]:
        images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
        yield from built(images, torch.tensor([0, 1, 2, 0]), torch.Generator().manual_seed(5))

    return Subject(
        Augmentation.Config,
        {},
        CHANGES | {"mixup_alpha": (1.0,), "cutmix_alpha": (1.0,), "label_smoothing": (0.1,)},
        augmented,
        make=lambda **settings: Augmentation(Augmentation.Config(**settings), ClassTarget(names=("a", "b", "c"))),
        modes={"operations": {"rand_augment_ops": 2}},
    )


def _image_changes() -> Subject:
    def changed(built: ImageChanges) -> Iterator[object]:
        images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
        with drawing(torch.Generator().manual_seed(5)):
            yield built.drawn(images.shape)(images, torch.arange(4))

    return Subject(
        ImageChanges.Config,
        {},
        CHANGES,
        changed,
        make=lambda **settings: ImageChanges(ImageChanges.Config(**settings)),
        modes={"operations": {"rand_augment_ops": 2}},
    )


def _images(folder: Path) -> Subject:
    pixels = np.random.default_rng(0).integers(0, 255, (2, 20, 8, 8), dtype=np.uint8)
    for name, count in (("few", 10), ("many", 20)):
        for label in range(2):
            path = folder / name / f"class {label}"
            path.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(pixels[label, index]).save(path / f"{index}.png")
    own, labels = folder / "own.npz", np.array([0, 1] * 5)
    np.savez(own, x_train=pixels[0, :10], y_train=labels, x_test=pixels[1, :10], y_test=labels)
    kernel = MLPConfig(width=3, num_frequencies=2, sigma=1.0)
    model = ITNet.Config(embed_dim=4, depth=1, num_heads=1, kernel=kernel)
    pixels_alone = {"patch_size": 16, "position_frequencies": 64, "position_sigma": 10.0}
    checkpoint = PretrainedImages(checkpoint=str(_vit(folder / "checkpoint")))

    return Subject(
        ImageLearning.Config,
        {
            "data": str(folder / "few"),
            "patch_size": 4,
            "position_frequencies": 2,
            "position_sigma": 1.0,
            "model": model,
        },
        {
            "data": (str(folder / "many"),),
            "image_size": ((4, 4),),
            "test_fraction": (0.5,),
            "split_seed": (1,),
            "split_by": ("time",),
            "csv": OTHER_CSV,
        }
        | {"valid_fraction": (0.4,), "patch_size": (2, (2, 4)), "position_frequencies": (3,), "position_sigma": (2.0,)}
        | {"stem_depth": (0, 1), "mean": ((0.3,), (0.3, 0.4, 0.5)), "deviation": ((0.2,),)}
        | {
            "model": (
                dataclasses.replace(model, depth=2),
                dataclasses.replace(model, kernel=dataclasses.replace(kernel, inputs=KernelInputs(product=False))),
            )
        }
        | {"augmentation": (Augmentation.Config(label_smoothing=0.1),), "target": ("number",), "bank": (6,)}
        | OF_NUMBERS,
        _blending_task,
        make=lambda **settings: ImageLearning.Config(**settings).build(),
        modes={
            "a split of its own": {"data": str(own)},
            "no positions": {"position_frequencies": 0, "position_sigma": 10.0},
            "moments": {"mean": (0.5,), "deviation": (0.5,)},
            "a bank": {"bank": 6},
            "pixels": {"model": VIT, **pixels_alone},
            "a checkpoint": {"model": checkpoint, "mean": (0.5,), "deviation": (0.5,), **pixels_alone},
        },
    )


VIT = ViT.Config(image_size=(8, 8), patch_size=(4, 4), channels=1, embed_dim=4, depth=1, num_heads=1)


def _vit(folder: Path, depth: int = 1) -> Path:
    """Writes a checkpoint with random weights."""
    torch.manual_seed(depth)
    dataclasses.replace(VIT, depth=depth).build().save_pretrained(folder)
    return folder


def _image_checkpoints(folder: Path) -> Subject:
    pixels = np.random.default_rng(0).integers(0, 255, (2, 10, 8, 8), dtype=np.uint8)
    folder.mkdir()
    np.savez(folder / "data.npz", x=pixels.reshape(20, 8, 8), y=np.arange(20) // 10)

    def make(**settings: Any) -> ImageLearning:
        model = PretrainedImages(**settings)
        given = {"data": str(folder / "data.npz"), "model": model, "mean": (0.5,), "deviation": (0.5,)}
        return ImageLearning.Config(**given).build()

    return Subject(
        PretrainedImages,
        {"checkpoint": str(_vit(folder / "one"))},
        {"checkpoint": (str(_vit(folder / "two", 2)), ""), "revision": ("main",)},
        _of_checkpoint,
        make=make,
    )


def _of_checkpoint(built: Task) -> Iterator[object]:
    yield from _task(built)
    elsewhere = built.pretrained_weights()
    assert elsewhere is not None
    yield from elsewhere.tensors.values()


def _image_texts(folder: Path) -> Subject:
    all_rows, own, one = write_folder(folder, num_images=3), folder / "own.npz", folder / "one.npz"
    train_and_test = folder / "two"
    write_folder(train_and_test, splits=True, num_images=3)
    (train_and_test / "valid.jsonl").unlink()
    write_npz(own, num_images=3)
    write_npz(one, num_images=1)
    kernel = MLPConfig(width=3, num_frequencies=2, sigma=1.0)
    sizes: dict[str, Any] = {"embed_dim": 4, "depth": 1, "num_heads": 1, "kernel": kernel}
    model, streams = ITNet.Config(**sizes), TwoStream.Config(**sizes)

    def task(built: ImageTextLearning) -> Iterator[object]:
        yield from _task(built)
        yield built.sources

    return Subject(
        ImageTextLearning.Config,
        {"data": str(all_rows), "patch_size": 8, "tokens": Tokens(vocab_size=60), "position_frequencies": 2}
        | {"model": model},
        {
            "data": (str(own),),
            "image_size": ((16, 16),),
            "test_fraction": (0.5,),
            "split_seed": (1,),
            "split_by": ("time",),
            "csv": OTHER_CSV,
        }
        | {"valid_fraction": (0.3,), "patch_size": (4, (2, 4)), "stem_depth": (0, 1), "context": (9,)}
        | {"tokens": (Tokens(vocab_size=50),), "position_frequencies": (3,), "position_sigma": (2.0,)}
        | {"modalities": ("image", "text"), "measure": ("uniform", "image-heavy", "text-heavy")}
        | {"images_apart": SWITCH, "shuffle_images": SWITCH, "label_smoothing": (0.1,)}
        | {"augmentation": (ImageChanges.Config(shift=0.2),)}
        | {"image_run": ("there",), "text_run": ("there",), "model": (dataclasses.replace(model, depth=2), streams)}
        | {"table_machine": (6,)}
        | OF_TARGETS,
        task,
        make=lambda **settings: ImageTextLearning.Config(**settings).build(),
        modes={
            "a split of its own": {"data": str(own)},
            "a split without validation": {"data": str(train_and_test)},
            "one image": {"data": str(one)},
            "images alone": {"modalities": "image", "tokens": Tokens()},
            "texts alone": {"modalities": "text", "patch_size": 16},
            "two streams": {"model": streams},
            "a table machine": {"table_machine": 6},
            "apart": {"images_apart": True},
            "no positions": {"position_frequencies": 0},
        },
    )


def _texts(folder: Path) -> None:
    """Writes two texts of some documents, and a folder with splits."""
    folder.mkdir()
    words = ["the cat\nsat on", "a mat\n\nand the", "dog sat\non a", "log and\n\nthen both", "went home\nto eat"]
    text = " ".join(words[i % 5] + f" {i}" for i in range(40))
    (folder / "one.txt").write_text(text)
    (folder / "two.txt").write_text(text[::-1])
    own = folder / "own"
    own.mkdir()
    for split in ("train", "valid", "test"):
        (own / f"{split}.txt").write_text(f"{split} {text[len(split) :]}")
    rows = [json.dumps({"text": f"{line} {line}", "other": line[::-1]}) for line in text.split("\n") if line]
    (folder / "rows.jsonl").write_text("\n".join(rows))


def _masked(folder: Path) -> Subject:
    _texts(folder)
    kernel = MLPConfig(width=3, num_frequencies=2, sigma=1.0)
    stack = ITNet.Config(embed_dim=4, depth=1, num_heads=1, kernel=kernel, dropout=0.0)
    model, tokens = ITNetMaskedModel.Config(stack=stack), Tokens(vocab_size=80)
    checkpoint = PretrainedMasked(checkpoint=str(_bert(folder / "checkpoint", head="tokens")))

    def task(built: MaskedLanguageModelling) -> Iterator[object]:
        yield from _task(built)
        yield from (
            built.for_epoch(torch.Generator().manual_seed(1)).train_batch(torch.arange(2), torch.Generator()).values()
        )
        yield from built.held_out_batch("test", torch.arange(2)).values()

    return Subject(
        MaskedLanguageModelling.Config,
        {"data": str(folder / "one.txt"), "valid_fraction": 0.2, "context": 16, "tokens": tokens, "model": model},
        {"data": (str(folder / "two.txt"),), "documents": ("line", "blank line"), "test_fraction": (0.3,)}
        | {"text_column": ("other",)}
        | {
            "valid_fraction": (0.3,),
            "context": (12,),
            "mask_fraction": (0.5,),
            "packed": (False,),
        }
        | {"tokens": (Tokens(vocab_size=70), Tokens(kind="bytes", vocab_size=8000))}
        | {"model": (dataclasses.replace(model, position_frequencies=3),)},
        task,
        make=lambda **settings: MaskedLanguageModelling.Config(**settings).build(),
        modes={
            "splits of its own": {"data": str(folder / "own"), "valid_fraction": 0.1},
            "rows": {"data": str(folder / "rows.jsonl")},
            "a checkpoint": {"model": checkpoint, "tokens": Tokens()},
        },
    )


def _masked_checkpoints(folder: Path) -> Subject:
    _texts(folder)

    def make(**settings: Any) -> MaskedLanguageModelling:
        model = PretrainedMasked(**settings)
        return MaskedLanguageModelling.Config(data=str(folder / "one.txt"), model=model, context=12).build()

    return Subject(
        PretrainedMasked,
        {"checkpoint": str(_bert(folder / "first", head="tokens"))},
        {"checkpoint": (str(_bert(folder / "second", 2)), ""), "revision": ("main",)},
        _of_checkpoint,
        make=make,
    )


def _text(folder: Path) -> Subject:
    _texts(folder)
    own, brought = folder / "own", _gpt2(folder / "checkpoint")
    model = GPT2.Config(embed_dim=4, depth=1, num_heads=1, dropout=0.0)

    def task(built: LanguageModelling) -> Iterator[object]:
        yield from _task(built)
        yield from (
            built.for_epoch(torch.Generator().manual_seed(1)).train_batch(torch.arange(2), torch.Generator()).values()
        )
        yield from (stream.num_targets for stream in built.held_out_streams.values())
        torch.manual_seed(0)
        model = built.model()
        if isinstance(model, Blended):
            built.initialise(model, CPU)
            model.eval().share.fill_(0.5)
            yield model(built.held_out_batch("valid", torch.arange(2))["inputs"])

    return Subject(
        LanguageModelling.Config,
        {"data": str(folder / "one.txt"), "valid_fraction": 0.2, "context": 8, "model": model},
        {"data": (str(folder / "two.txt"),), "documents": ("line", "blank line"), "test_fraction": (0.3,)}
        | {"text_column": ("other",)}
        | {"valid_fraction": (0.3,), "vocab_size": (270,), "context": (6,), "stride": (4,)}
        | {"tokenizer": (str(brought / "other.json"),), "model": (dataclasses.replace(model, depth=2),)}
        | {"ngrams": (2,), "recall": (5,)},
        task,
        make=lambda **settings: LanguageModelling.Config(**settings).build(),
        modes={
            "splits of its own": {"data": str(own), "valid_fraction": 0.1},
            "rows": {"data": str(folder / "rows.jsonl")},
            "n-grams": {"ngrams": 3, "recall": 9},
            "a checkpoint": {"model": PretrainedText(checkpoint=str(brought))},
        },
    )


def _gpt2(folder: Path, depth: int = 1) -> Path:
    """Writes a checkpoint with random weights and a tokenizer, and another tokenizer as a run stores it."""
    size = write_text_tokens(folder / "tokens", "Llama 3")
    torch.manual_seed(depth)
    GPT2.Config(embed_dim=4, depth=depth, num_heads=1).build(size, 24).save_pretrained(folder / "model")
    for file in (folder / "tokens").iterdir():
        shutil.copy(file, folder / "model")
    write_text_tokens(folder / "other", "GPT-2")
    other = checkpoint_tokens(folder / "other")
    assert other is not None
    (folder / "model" / "other.json").write_text(other.state)
    return folder / "model"


def _text_checkpoints(folder: Path) -> Subject:
    _texts(folder)

    def make(**settings: Any) -> LanguageModelling:
        model = PretrainedText(**settings)
        return LanguageModelling.Config(data=str(folder / "one.txt"), model=model, context=8).build()

    return Subject(
        PretrainedText,
        {"checkpoint": str(_gpt2(folder / "first"))},
        {"checkpoint": (str(_gpt2(folder / "second", 2)), ""), "revision": ("main",)},
        _of_checkpoint,
        make=make,
    )


def _sentences(folder: Path) -> Subject:
    folder.mkdir()
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "very", "good"]
    rows = [f"{' '.join(words[i % 4 : 4 + i % 6])},{words[i % 9]} {i},{i % 2},{i * i % 3}" for i in range(40)]
    for name, shift in (("one", 0), ("two", 1)):
        (folder / f"{name}.csv").write_text("\n".join(["text,other,label,score", *rows[shift:]]))
    (folder / "bare.csv").write_text("\n".join(rows))
    own = folder / "own"
    own.mkdir()
    for split in ("train", "valid", "test"):
        (own / f"{split}.csv").write_text("\n".join(["text,other,label,score", *rows[len(split) :]]))
    stack = ITNet.Config(embed_dim=4, depth=1, num_heads=1, kernel=MLPConfig(width=3, num_frequencies=2, sigma=1.0))
    model = SentenceStackConfig(stack=stack, position_frequencies=2)
    tokens = Tokens(vocab_size=60)

    checkpoint = PretrainedSentences(checkpoint=str(_bert(folder / "checkpoint")))

    def task(built: SentenceLearning) -> Iterator[object]:
        yield from _task(built)
        yield built.objective.metric

    return Subject(
        SentenceLearning.Config,
        {"data": str(folder / "one.csv"), "context": 12} | {"tokens": tokens, "model": model},
        {"data": (str(folder / "two.csv"),), "text_column": ("other",), "second_column": ("other",)}
        | {"label_columns": (("score",),), "columns": (("label", "text", "other", "score"),), "target": ("number",)}
        | {
            **OF_NUMBERS,
            "objective": ("matthews", "spearman"),
            "test_fraction": (0.5,),
            "valid_fraction": (0.3,),
            "split_seed": (1,),
            "split_by": ("time",),
            "csv": OTHER_CSV,
        }
        | {"tokens": (Tokens(kind="bytes"),), "context": (6,), "weights": ("score",)}
        | {"model": (dataclasses.replace(model, position_frequencies=3), NGramBank.Config(num_grams=100), BERT)},
        task,
        make=lambda **settings: SentenceLearning.Config(**settings).build(),
        modes={
            "numbers": {"target": "number", "label_columns": ("score",)},
            "no header": {"data": str(folder / "bare.csv"), "columns": ("text", "other", "label", "score")},
            "splits of its own": {"data": str(own)},
            "a checkpoint": {"model": checkpoint, "tokens": Tokens()},
        },
    )


def _words(folder: Path) -> Subject:
    folder.mkdir()
    words = ["the", "cat", "sat", "On", "a", "Mat-2", "and", "very", "good"]
    labels = ["O", "B-x", "I-x", "O", "B-y", "O", "I-x", "B-x", "O"]
    own, rows = folder / "own", list[dict[str, object]]()
    own.mkdir()
    for i in range(40):
        places = [(i * k) % 9 for k in range(1, 4 + i % 3)]
        rows.append({"tokens": [words[k] for k in places], "tags": [labels[k] for k in places], "time": i})
        rows[-1] |= {"other": rows[-1]["tokens"][::-1], "kinds": [f"k{k % 2}" for k in places]}  # type: ignore
    for name, some in (
        ("one", rows),
        ("two", rows[3:]),
        ("own/train", rows),
        ("own/valid", rows[9:]),
        ("own/test", rows[:9]),
    ):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some))

    def task(built: WordLearning) -> Iterator[object]:
        yield from _task(built)
        yield built.objective.metric

    return Subject(
        WordLearning.Config,
        {"data": str(own)},
        {"data": (str(folder / "two.jsonl"),), "word_column": ("other",), "label_column": ("kinds",)}
        | {"objective": ("macro_f1",), "model": (ConditionalRandomField.Config(num_features=100),)}
        | {
            "test_fraction": (0.5,),
            "valid_fraction": (0.3,),
            "split_seed": (1,),
            "split_by": ("time",),
            "csv": OTHER_CSV,
        },
        task,
        make=lambda **settings: WordLearning.Config(**settings).build(),
        modes={"one file": {"data": str(folder / "one.jsonl")}},
    )


STACK = Bert.Config(embed_dim=4, depth=1, num_heads=1, head="none")
BERT = BertSentences.Config(stack=STACK)


def _bert(folder: Path, depth: int = 1, head: Literal["none", "tokens"] = "none") -> Path:
    """Writes a checkpoint with random weights and a tokenizer."""
    torch.manual_seed(depth)
    tokenizer = MarkedTokenizer.word_pieces(["the cat sat on a mat and very good"], 50)
    dataclasses.replace(STACK, depth=depth, head=head).build(tokenizer.vocab_size, 20).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.state)
    return folder


def _sentence_checkpoints(folder: Path) -> Subject:
    folder.mkdir()
    (folder / "data.csv").write_text("\n".join(["text,label", *(f"the cat sat,{i % 2}" for i in range(20))]))

    def make(**settings: Any) -> SentenceLearning:
        model = PretrainedSentences(**settings)
        return SentenceLearning.Config(data=str(folder / "data.csv"), model=model, context=12).build()

    return Subject(
        PretrainedSentences,
        {"checkpoint": str(_bert(folder / "one"))},
        {"checkpoint": (str(_bert(folder / "two", 2)), ""), "revision": ("main",), "pooling": ("relu", "mean")},
        _of_checkpoint,
        make=make,
    )


def _table(folder: Path) -> Subject:
    folder.mkdir()
    header = "number,date,area,word,time,label,score"
    rows = [
        f"{'' if i % 5 == 4 else i * i},2026-{1 + i % 6:02}-{1 + i % 9:02},{i % 3},"
        f"{'the cat' if i % 4 < 2 else 'a dog'},{i},{i % 4 // 2},{0.5 * i}"
        for i in range(30)
    ]
    for name, shift in (("one", 0), ("two", 6)):
        (folder / f"{name}.csv").write_text("\n".join([header, *rows[shift:]]))
    (folder / "bare.csv").write_text("\n".join(rows))
    own = folder / "own"
    own.mkdir()
    for split in ("train", "valid", "test"):
        (own / f"{split}.csv").write_text("\n".join([header, *rows[len(split) :]]))
    noise = np.random.default_rng(0).integers(0, 256, (30, 9, 8), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    photos = [row.replace("the cat", f"{i}.png").replace("a dog", f"{i}.png") for i, row in enumerate(rows)]
    (folder / "photos.csv").write_text("\n".join([header, *photos]))
    for i in range(30):
        np.save(folder / f"{i}.npy", noise[i, : 5 + i % 4, 0])
    series = [row.replace(".png", ".npy") for row in photos]
    (folder / "series.csv").write_text("\n".join([header, *series]))

    def fitted(built: TableLearning) -> Iterator[object]:
        yield from _task(built)
        yield built.objective.metric
        torch.manual_seed(0)
        model = built.model()
        built.initialise(model, CPU)
        yield from (tensor.nan_to_num() for tensor in model.state_dict().values())

    return Subject(
        TableLearning.Config,
        {"data": str(folder / "one.csv"), "model": TableMachine.Config(num_centres=20)},
        {"data": (str(folder / "two.csv"),), "ignore": (("number",),), "label_columns": (("area",),)}
        | {"categories": (("area",),), "texts": (("word",),), "target": ("number",), "weights": ("area",)}
        | {"columns": (("score", "date", "area", "word", "time", "label", "number"),)}
        | {**OF_NUMBERS, "objective": ("matthews", "spearman"), "test_fraction": (0.5,), "split_seed": (1,)}
        | {
            "valid_fraction": (0.3,),
            "split_by": ("time",),
            "csv": OTHER_CSV,
            "tokens": (Tokens(kind="bytes"),),
            "model": (TableMachine.Config(num_centres=9),),
            "image_size": ((8, 7),),
        },
        fitted,
        make=lambda **settings: TableLearning.Config(**settings).build(),
        modes={
            "numbers": {"label_columns": ("score",), "target": "number"},
            "no header": {"data": str(folder / "bare.csv"), "columns": tuple(header.split(","))},
            "texts": {"texts": ("word",), "tokens": Tokens(vocab_size=60)},
            "images": {"data": str(folder / "photos.csv")},
            "series": {"data": str(folder / "series.csv")},
            "splits of its own": {"data": str(own)},
        },
    )


def _tokens(folder: Path) -> Subject:
    folder.mkdir()
    texts = ["The cat sat on the mat.", "the other Cat ate it"]
    (folder / "tokenizer.json").write_text(MarkedTokenizer.word_pieces(texts, 50).state)

    def learnt(tokens: Tokens) -> Iterator[object]:
        yield tokens.learn(texts).state

    return Subject(
        Tokens,
        {"vocab_size": 34},
        {"kind": ("bytes", "byte_pairs"), "vocab_size": (36,), "lowercase": SWITCH}
        | {"file": (str(folder / "tokenizer.json"),)},
        learnt,
        modes={
            "bytes": {"kind": "bytes", "vocab_size": 8000},
            "byte pairs": {"kind": "byte_pairs", "vocab_size": 270},
            "from a file": {"file": str(folder / "tokenizer.json"), "vocab_size": 8000},
        },
    )


def _csv(folder: Path) -> Subject:
    folder.mkdir()
    (folder / "data.csv").write_text("a;b|c\n1,5;ä|d\n1,234;e|f\n")

    def read(built: CsvSettings) -> Iterator[object]:
        with built.reading(folder):
            yield [record.cells for record in DelimitedFile(folder / "data.csv").records()]

    others = {"sep": ("pipe",), "decimal": ("point",), "encoding": ("utf-16", "latin-1")}
    return Subject(CsvSettings, {"sep": "semicolon"}, others, read)


def _forecasts(folder: Path) -> Subject:
    folder.mkdir()
    drawn = np.random.default_rng(0)
    for name in ("one", "two"):
        values = drawn.normal(size=(60, 2)).cumsum(0)
        values[::7, 0] += 30  # a weekday, read from the dates
        days = np.datetime64("2024-01-01") + np.arange(60)
        rows = [f"{day},{x},{y}" for day, (x, y) in zip(days, values.tolist(), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["time,x,y", *rows]))
    model = CKCNN.Config(embed_dim=3, depth=1, kernel_width=3, dropout=0.0)

    def task(built: Forecasting) -> Iterator[object]:
        """The observations of a task, and its scores."""
        yield from _task(built)
        torch.manual_seed(0)
        metrics = built.metrics()
        built.score(built.model(), built.held_out_batch("test", torch.arange(2)), metrics)
        yield from (metric.compute() for metric in metrics.values())

    return Subject(
        Forecasting.Config,
        {"data": str(folder / "one.csv"), "horizon": 3, "context": 6, "season": 2, "model": model},
        {"data": (str(folder / "two.csv"),), "test_fraction": (0.4,), "valid_fraction": (0.3,), "split_seed": (1,)}
        | {
            "split_by": ("time",),
            "csv": OTHER_CSV,
            "bin": (2 * 86400.0,),
            "horizon": (2, None),
            "context": (5, None),
            "channels": (("y",),),
            "known": (("y",),),
            "calendar": ("none",),
            "season": (3, None),
            "base": (0.5,),
        }
        | {"quantiles": ((0.2, 0.8),), "scale": ("training",), "num_windows": (7,)}
        | {
            "model": (
                dataclasses.replace(model, depth=2),
                FilterBank.Config(num_groups=0, num_lags=3),
                LagMachine.Config(num_coordinates=4),
            )
        },
        task,
        make=lambda **settings: Forecasting.Config(**settings).build(),
    )


def _series(folder: Path) -> Subject:
    folder.mkdir()
    drawn = np.random.default_rng(0)
    values = drawn.normal(size=(24, 12, 2)).astype(np.float32)
    values[:, 3:5, 0] = np.nan
    arrays: dict[str, Any] = {"values": values, "labels": np.arange(24) % 2, "spacing": 0.5}
    arrays["example_times"] = drawn.permutation(24)
    np.savez(folder / "one.npz", **arrays)
    others: dict[str, Any] = arrays | {"values": values + 1}
    np.savez(folder / "two.npz", **others)
    np.savez(folder / "own.npz", **arrays, is_test=np.arange(24) >= 16)
    of_samples: dict[str, Any] = arrays | {"labels": drawn.integers(0, 2, (24, 12))}
    np.savez(folder / "samples.npz", **of_samples)
    model = CKCNN.Config(embed_dim=3, depth=1, kernel_width=3, dropout=0.0)
    dropped: Dropped = "absent"
    return Subject(
        SeriesLearning.Config,
        {"data": str(folder / "one.npz"), "model": model},
        {
            "data": (str(folder / "two.npz"),),
            "test_fraction": (0.5,),
            "split_seed": (1,),
            "split_by": ("time",),
            "csv": OTHER_CSV,
            "train_every": (2,),
            "target": ("number", "samples"),
        }
        | {"window": (5,), "sample_machine": (60,)}
        | {"valid_fraction": (0.4,), "objective": ("loss",), "class_weights": ("balanced",), "quantiles": ((0.2, 0.8),)}
        | {"test_every": (2,), "train_drop": (0.5,), "test_drop": (0.5,), "drop_seed": (1,), "dropped": (dropped,)}
        | {"permute_seed": (0,), "bin": (1.0,), "fill": ("last", "linear"), "limit": (0.5,)}
        | {
            "model": (
                dataclasses.replace(model, depth=2),
                FilterBank.Config(num_thresholds=2, num_groups=1),
                SummaryBank.Config(),
            )
        },
        _blending_task,
        make=lambda **settings: SeriesLearning.Config(**settings).build(),
        modes={
            "dropped in training": {"train_drop": 0.3},
            "dropped in test": {"test_drop": 0.3},
            "a split of its own": {"data": str(folder / "own.npz")},
            "numbers": {"target": "number"},
            "samples": {"data": str(folder / "samples.npz")},
            "parts of series": {"data": str(folder / "samples.npz"), "window": 6},
            "a machine beside it": {"data": str(folder / "samples.npz"), "window": 6, "sample_machine": 40},
        },
    )


def _fields(folder: Path) -> Subject:
    folder.mkdir()
    drawn = np.random.default_rng(0)
    pos, values = drawn.uniform(0, 2, (12, 6, 2)), drawn.normal(size=(12, 6))
    for name, shift in (("one", 0.0), ("two", 1.0)):
        rows = [
            f"{i},{x},{y},{value + shift}" for i in range(12) for (x, y), value in zip(pos[i], values[i], strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["field,x,y,height", *rows]))
    np.savez(folder / "own.npz", pos=pos, values=values, is_test=np.arange(12) >= 8)
    np.savez(folder / "new.npz", pos=pos[:2], values=values[:2])
    model = FieldOperator.Config(embed_dim=4, depth=1, num_heads=1, num_seeds=2, head_dim=4, num_frequencies=2)

    def task(built: FieldLearning) -> Iterator[object]:
        """The observations of a task, its score and its predictions, which refine."""
        yield from _task(built)
        torch.manual_seed(0)
        model, metrics = built.model(), built.metrics()
        built.score(model, built.held_out_batch("test", torch.arange(2)), metrics)
        yield from (metric.compute() for metric in metrics.values())
        if len(built.facts.coordinates) == 2:
            yield built.predict(model, [folder / "new.npz"], CPU)

    return Subject(
        FieldLearning.Config,
        {"data": str(folder / "one.csv"), "width": 4, "omega_0": 4.0, "model": model},
        {
            "data": (str(folder / "two.csv"),),
            "test_fraction": (0.5,),
            "split_seed": (1,),
            "split_by": ("time",),
            "csv": OTHER_CSV,
            "coordinates": (("x",),),
        }
        | {
            "valid_fraction": (0.4,),
            "shown": (3,),
            "shown_seed": (1,),
            "target_samples": (3,),
            "proper": SWITCH,
            "average": SWITCH,
            "weigh_frame": SWITCH,
        }
        | {"frame": ("identity", "isotropic", "diagonal", "affine", "rotational", "periodic")}
        | {"field": ("siren", "sinusoidal", "free_sinusoidal"), "width": (5,), "depth": (2,), "omega_0": (5.0,)}
        | {
            "refine_steps": (2,),
            "refine_rate": (0.1,),
            "spline": (0.0, 1.0),
            "spline_kernel": ("exponential", "matern32", "matern52", "gaussian"),
            "spline_length": (0.5,),
            "model": (dataclasses.replace(model, depth=2),),
        }
        | {"answer": (Answer(grid=(2, 2)),)},
        task,
        make=lambda **settings: FieldLearning.Config(**settings).build(),
        modes={
            "axes": {"frame": "rotational"},
            "no frame": {"frame": "identity"},
            "sum": {"field": "sinusoidal"},
            "some shown": {"shown": 3},
            "refined": {"refine_steps": 2},
            "kriging": {"spline": 0.1, "spline_kernel": "matern32", "spline_length": 1.0},
            "a split of its own": {"data": str(folder / "own.npz")},
        },
    )


def _graphs(folder: Path) -> list[Subject]:
    """Subjects of tasks on graphs, nodes and links, and of features computed from a graph."""
    own, nodes = str(rings(folder / "own", split=True, one_way=True)), str(two_groups(folder / "nodes", one_way=True))
    kernel = OnEdgesConfig(kernel=MLPConfig(width=3, num_frequencies=2, sigma=1.0), long_range=None)
    sizes: dict[str, Any] = {"embed_dim": 4, "depth": 1, "num_heads": 1, "kernel": kernel, "dropout": 0.0}
    stack, at_nodes = ITNet.Config(**sizes, pool="mean"), ITNet.Config(**sizes, pool="none")
    whole = GraphStackConfig(stack=stack)
    inputs, walks = GraphInputs(num_walks=2, num_positions=2), GraphInputs(num_walks=2, positions="none")
    more: dict[str, tuple[object, ...]] = {
        "inputs": (dataclasses.replace(inputs, num_walks=3),),
        "test_fraction": (0.4,),
        "valid_fraction": (0.3,),
        "split_seed": (1,),
        "split_by": ("time",),
        "csv": OTHER_CSV,
        "directed": SWITCH,
    }

    def pairs(built: LinkLearning) -> Iterator[object]:
        """The observations of a task, and the graph that its network sees."""
        yield from _task(built)
        yield built.loss(built.model(), built.held_out_batch("test", torch.arange(2))).detach()

    return [
        Subject(
            GraphLearning.Config,
            {"data": str(rings(folder / "rings", one_way=True)), "inputs": inputs, "model": whole},
            more
            | {"data": (str(rings(folder / "more", count=30)),)}
            | {"model": (GraphStackConfig(stack=dataclasses.replace(stack, depth=2)),)}
            | {"num_folds": (4,), "fold": (1,)}
            | OF_NUMBERS,
            _task,
            make=lambda **settings: GraphLearning.Config(**settings).build(),
            modes={
                "folds": {"num_folds": 4},
                "a split of its own": {"data": own},
                "a bank": {"model": NeighbourhoodBank.Config(num_waves=20), "inputs": GraphInputs(num_walks=2)},
            },
        ),
        Subject(
            NodeLearning.Config,
            {"data": nodes, "inputs": inputs, "model": at_nodes},
            more
            | {
                "data": (str(two_groups(folder / "fewer", size=12)),),
                "model": (dataclasses.replace(at_nodes, depth=2),),
            }
            | {"train_per_class": (3,), "node_machine": (6,)}
            | OF_NUMBERS,
            _blending_task,
            make=lambda **settings: NodeLearning.Config(**settings).build(),
            modes={
                "a split of its own": {"data": str(two_groups(folder / "split nodes", split=True, one_way=True))},
                "numbers": {"data": str(two_groups(folder / "numbers", targets=True, one_way=True))},
                "a machine": {"model": NodeMachine.Config(num_trees=2), "inputs": walks},
                "a machine beside it": {"node_machine": 6},
            },
        ),
        Subject(
            LinkLearning.Config,
            {"data": nodes, "inputs": inputs, "model": at_nodes, "code_dim": 3},
            more
            | {"data": (str(two_groups(folder / "fewer links", size=12)),), "code_dim": (4,), "num_negatives": (2,)}
            | {"model": (dataclasses.replace(at_nodes, depth=2),), "pair_features": SWITCH},
            pairs,
            make=lambda **settings: LinkLearning.Config(**settings).build(),
            modes={
                "a machine": {
                    "model": LinkMachine.Config(num_trees=2),
                    "inputs": GraphInputs(),
                    "code_dim": LinkLearning.Config().code_dim,
                }
            },
        ),
        _graph_inputs((folder / "own", folder / "nodes")),
    ]


def _graph_inputs(folders: tuple[Path, ...]) -> Subject:
    def computed(built: GraphInputs) -> Iterator[object]:
        for folder in folders:
            graphs = open_graphs(folder, is_directed=True)
            preparation = built.learn(graphs)
            found = built.prepare(graphs, preparation)
            yield from (preparation, found.features, found.pos, built.turns_signs)
            yield str(reading_of(preparation, built).encoder(4))

    return Subject(
        GraphInputs,
        {"num_walks": 2, "num_positions": 2},
        {
            "scale": ("standard", "rows", "none"),
            "num_walks": (0, 3),
            "degrees": SWITCH,
            "surroundings": SWITCH,
            "sizes": SWITCH,
            "num_positions": (3,),
        }
        | {"positions": ("none",), "flip_signs": SWITCH, "adds_positions": SWITCH, "feature_dropout": (0.5,)},
        computed,
        modes={"no positions": {"positions": "none", "num_positions": 8}},
    )


def _cloud_augmentation() -> Subject:
    def augmented(built: CloudAugmentation) -> Iterator[object]:
        drawn = torch.Generator().manual_seed(2)
        pos, features = torch.randn(3, 5, 3, generator=drawn), torch.randn(3, 5, 3, generator=drawn)
        yield from built(Clouds(pos, features, torch.ones(3, 5) > 0), torch.Generator().manual_seed(5))

    return Subject(
        CloudAugmentation.Config,
        {},
        {
            "scale": ((0.5, 2.0),),
            "rotation": ("axis", "all"),
            "axis": ("x",),
            "jitter": (0.04,),
            "jitter_limit": (0.01,),
        }
        | {"drop": (0.9,)},
        augmented,
        make=lambda **settings: CloudAugmentation(CloudAugmentation.Config(**settings), (0, 1, 2)),
        modes={"about an axis": {"rotation": "axis"}, "jittered": {"jitter": 0.02}},
    )


def _points(folder: Path) -> Subject:
    meshes, own, found, whole, numbers = (
        folder / name for name in ("meshes", "own.npz", "labelled.npz", "whole.npz", "numbers.npz")
    )
    drawn = np.random.default_rng(0)
    for name in ("flat", "long"):
        (meshes / name).mkdir(parents=True)
        for i in range(8):
            vertices = drawn.normal(size=(4, 3)) * ([4, 1, 1] if name == "long" else [1, 1, 0.1])
            rows = ["OFF", "4 2 0", *(" ".join(map(str, vertex)) for vertex in vertices), "3 0 1 2", "3 1 2 3", ""]
            (meshes / name / f"{i}.off").write_text("\n".join(rows))
    x, y = drawn.normal(size=(18, 9, 4)), np.arange(18) % 2
    of_two = {"x_train": x[:12], "y_train": y[:12], "x_test": x[12:], "y_test": y[12:]}
    np.savez(own, **of_two)
    np.savez(whole, **of_two, x_valid=x[:4], y_valid=y[:4])
    np.savez(found, x=x, y=y, labels=drawn.integers(0, 3, (18, 9)))
    np.savez(numbers, x=x, targets=drawn.normal(size=(18, 2)))
    np.savez(folder / "new.npz", x=x[:2])
    kernel = MLPConfig(width=3, num_frequencies=2, sigma=1.0)
    model = ITNet.Config(embed_dim=4, depth=1, num_heads=1, kernel=kernel)

    def task(built: PointLearning) -> Iterator[object]:
        """The observations of a task, its scores and its predictions, which vote."""
        yield from _task(built)
        torch.manual_seed(0)
        model, metrics = built.model(), built.metrics()
        built.score(model, built.held_out_batch("valid", torch.arange(2)), metrics)
        yield from (metric.compute() for metric in metrics.values())
        if built.classifies_points or built.target.kind == "number":
            yield [list(row) for row in built.predict(model, [folder / "new.npz"], CPU)]

    return Subject(
        PointLearning.Config,
        {"data": str(meshes), "num_samples": 12, "num_points": 8, "num_neighbours": 3, "model": model},
        {"data": (str(own),), "channels": (("heat",),), "target": ("points",), "num_samples": (14,)}
        | {"normals": SWITCH, "num_points": (7, None), "num_centres": (5,), "normalise": SWITCH, "align": SWITCH}
        | {"position_frequencies": (3,), "position_sigma": (2.0,), "num_neighbours": (0, 2), "label_smoothing": (0.1,)}
        | {"sizes": SWITCH}
        | {"augmentation": (CloudAugmentation.Config(rotation="all"),), "votes": (2,)}
        | {
            "test_fraction": (0.5,),
            "split_seed": (1,),
            "split_by": ("time",),
            "csv": OTHER_CSV,
            "model": (dataclasses.replace(model, depth=2), CloudMachine.Config()),
        }
        | {"valid_fraction": (0.3,)}
        | OF_NUMBERS,
        task,
        make=lambda **settings: PointLearning.Config(**settings).build(),
        modes={
            "no positions": {"position_frequencies": 0},
            "all points": {"num_points": None},
            "a split of its own": {"data": str(own), "num_samples": NUM_SAMPLES},
            "a validation split of its own": {"data": str(whole), "num_samples": NUM_SAMPLES},
            "points are labelled": {"data": str(found), "num_samples": NUM_SAMPLES},
            "points have numbers": {"data": str(numbers), "num_samples": NUM_SAMPLES},
        },
    )


def _operators(folder: Path) -> Subject:
    folder.mkdir(parents=True)
    drawn, model = np.random.default_rng(0), OperatorLearning.Config().model
    model = dataclasses.replace(model, embed_dim=4, depth=1, kernel=SpectralConfig(num_waves_per_axis=1))

    def write(name: str, **shapes: tuple[int, ...]) -> str:
        arrays: dict[str, Any] = {array: drawn.normal(size=shape) for array, shape in shapes.items()}
        np.savez(folder / name, **arrays)
        return str(folder / name)

    pairs, others = (write(name, values=(20, 4, 4), target_values=(20, 4, 4)) for name in ("pairs.npz", "others.npz"))
    moving = write("moving.npz", trajectories=(20, 4, 6))
    fixed = write(
        "fixed.npz",
        **{f"{part}_{name}": (20, 4, 4) for part in ("train", "test") for name in ("values", "target_values")},
    )
    rows = [
        f"{f},{x},{y},{y + x},{y - x}"
        for f in range(20)
        for x, y in zip((0, 1, 2.5, 4, 4.5), drawn.normal(size=5).tolist(), strict=True)
    ]
    table = folder / "table.csv"
    table.write_text("\n".join(["field,x,y,a,b", *rows]))
    darcy = {f"darcy_train_16_{name}": (12, 16, 16) for name in "xy"}
    darcy |= {f"darcy_test_{size}_{name}": (3, size, size) for name in "xy" for size in (16, 32)}
    parts = ("train", "test")
    burgers = {f"burgers_{part}_16_x": (12, 16) for part in parts} | {
        f"burgers_{part}_16_y": (12, 17, 16) for part in parts
    }
    neuralop = write("neuralop_pde.npz", **darcy, **burgers)

    pos = [drawn.random((5, axes)) for axes in (1, 2)]
    scattered = [folder / f"scattered {axes}.npz" for axes in (1, 2)]
    for path, places in zip(scattered, pos, strict=True):
        np.savez(path, values=drawn.normal(size=(2, 5)), pos=places)

    def task(built: OperatorLearning) -> Iterator[object]:
        """The observations of a task, its scores and its predictions."""
        yield from _task(built)
        torch.manual_seed(0)
        model, metrics = built.model(), built.metrics()
        built.initialise(model, CPU)
        if isinstance(model, Blended):
            model.eval().share.fill_(0.5)
        built.score(model, built.held_out_batch("valid", torch.arange(2)), metrics)
        yield from (metric.compute() for metric in metrics.values())
        inputs = built.config.data if built.config.data in (moving, str(table)) else others
        yield [list(row) for row in built.predict(model, [Path(inputs)], CPU)]
        if built.config.data != str(table):
            on_no_grid = scattered[len(built.facts.coordinates) - 1]
            yield [list(row.values()) for row in built.predict(model, [on_no_grid], CPU)]

    return Subject(
        OperatorLearning.Config,
        {"data": pairs, "position_frequencies": 2, "model": model},
        {"data": (others,), "coordinates": (("y",),), "targets": (("b",), ("a",)), "problem": ("burgers",)}
        | {"resolution": (32,), "is_periodic": SWITCH, "symmetries": (("mirror",),), "shown": (0.5,)}
        | {
            "fill_in": SWITCH,
            "min_shown": (0.25,),
            "target_samples": (3,),
            "loss": ("h1",),
            "unroll": (2,),
            "position_frequencies": (3,),
            "regression": (6,),
        }
        | {"position_sigma": (2.0,), "model": (dataclasses.replace(model, depth=2),), "answer": (Answer(grid=(2, 2)),)}
        | {
            "test_fraction": (0.5,),
            "split_seed": (1,),
            "split_by": ("time",),
            "csv": OTHER_CSV,
            "valid_fraction": (0.3,),
        },
        task,
        make=lambda **settings: OperatorLearning.Config(**settings).build(),
        modes={
            "no positions": {"position_frequencies": 0},
            "a torus": {"is_periodic": True},
            "half shown": {"shown": 0.5},
            "a regression": {"regression": 6},
            "differences": {"loss": "h1"},
            "trajectories": {"data": moving},
            "a split of its own": {"data": fixed},
            "a table": {"data": str(table), "coordinates": ("x",), "targets": ("b",)},
            "neuralop": {"data": neuralop},
        },
    )


def _mask_augmentation() -> Subject:
    def augmented(built: MaskAugmentation) -> Iterator[object]:
        drawn = torch.Generator().manual_seed(2)
        images, masks = torch.rand(4, 3, 6, 8, generator=drawn), torch.randint(3, (4, 6, 8), generator=drawn)
        yield from built(Masked(images, masks.to(torch.uint8)), torch.Generator().manual_seed(5))

    return Subject(
        MaskAugmentation.Config,
        {},
        {"crop_scale": ((0.3, 0.8),), "crop_ratio": ((1.0, 1.0),), "horizontal_flip": (1.0,), "vertical_flip": (1.0,)}
        | {"brightness": (0.3,), "contrast": (0.3,), "saturation": (0.5,), "hue": (0.2,)},
        augmented,
        make=lambda **settings: MaskAugmentation(MaskAugmentation.Config(**settings), 3),
        modes={"cropped": {"crop_scale": (0.4, 0.6)}},
    )


def _segmentation(folder: Path) -> Subject:
    folder.mkdir()
    images, masks = squares(24, (8, 8))
    known: dict[str, Any] = {"images": images, "masks": masks}
    np.savez(folder / "one.npz", **known)
    np.savez(folder / "two.npz", images=images[::-1], masks=masks[::-1])
    np.savez(folder / "own.npz", **known, split=np.arange(24) // 8)
    np.savez(folder / "two parts.npz", **known, split=2 * (np.arange(24) // 16))
    Image.fromarray(images[0]).save(folder / "new.png")
    model = ITNet.Config(embed_dim=4, depth=1, num_heads=1, kernel=MLPConfig(width=3, num_frequencies=2, sigma=1.0))

    def task(built: Segmentation) -> Iterator[object]:
        """The observations of a task, its scores and its predictions."""
        yield from _task(built)
        torch.manual_seed(0)
        model, metrics = built.model().eval(), built.metrics()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        yield model.encoder(torch.zeros(1, 3, 8, 8))[1].weights
        built.score(model, built.held_out_batch("valid", torch.arange(1)), metrics)
        yield from (metric.compute() for metric in metrics.values())
        seen = list[tuple[int, ...]]()
        model.encoder.register_forward_hook(lambda _, given, __: seen.append(tuple(given[0].shape)))
        yield [list(row) for row in built.predict(model, [folder / "new.png"], CPU)]
        yield seen

    return Subject(
        Segmentation.Config,
        {"data": str(folder / "one.npz"), "patch_sizes": (4,), "num_pixels": 8, "model": model},
        {"data": (str(folder / "two.npz"),), "image_size": ((4, 8),), "patch_sizes": ((2,), (2, 4)), "stride": (3,)}
        | {"balance_scales": SWITCH, "position_frequencies": (3, 0), "position_sigma": (2.0,), "stem_depth": (0, 1)}
        | {"num_pixels": (9, None), "label_smoothing": (0.1,), "tile": ((4, 4),)}
        | {"augmentation": (MaskAugmentation.Config(horizontal_flip=1.0),)}
        | {"model": (dataclasses.replace(model, depth=2),), "valid_fraction": (0.3,)}
        | {"test_fraction": (0.5,), "split_seed": (1,), "split_by": ("time",), "csv": OTHER_CSV}
        | OF_TARGETS,
        task,
        make=lambda **settings: Segmentation.Config(**settings).build(),
        modes={
            "scales": {"patch_sizes": (2, 4)},
            "no positions": {"position_frequencies": 0},
            "a split of its own": {"data": str(folder / "own.npz")},
            "no validation split": {"data": str(folder / "two parts.npz")},
        },
    )


def _trained(config: Run.Config) -> Iterator[object]:
    """All observations of a run except times: its log, checkpoints, weights, and batches of evaluation."""
    saved, measured = [], []
    save, held_out_batch = Checkpoints.save, ToyTask.held_out_batch

    def saving(self: Checkpoints, step: int, *parts: Any) -> None:
        saved.append(step)
        save(self, step, *parts)

    def measuring(self: ToyTask, split: HeldOut, indices: Tensor) -> dict[str, Tensor]:
        measured.append((split, len(indices)))
        return held_out_batch(self, split, indices)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with patch.object(Checkpoints, "save", saving), patch.object(ToyTask, "held_out_batch", measuring):
            train(config, path, tasks=(ToyTask,))
        yield from (saved, measured, sum("events" in file.name for file in path.rglob("*")))
        for line in (path / "metrics.jsonl").read_text().splitlines():
            timings = ("examples_per_second", "unix_time")
            yield {name: value for name, value in json.loads(line).items() if name not in timings}
        for name in ("weights", "ema"):
            yield (path / "checkpoints" / f"step-{saved[-1]:08}" / f"{name}.safetensors").read_bytes()


def _runs(folder: Path) -> list[Subject]:
    toy = ToyTask.Config(num_examples=16, width=4)
    training: dict[str, Any] = {"epochs": 4, "batch_size": 8, "learning_rate": 0.3, "log_every": 1, "device": "cpu"}
    training["tensorboard"] = False
    shorter: dict[str, Any] = training | {"epochs": 1}

    def run(**settings: Any) -> Run.Config:
        return Run.Config(task=toy, training=TrainingConfig(**settings))

    train(Run.Config(task=toy, training=TrainingConfig(**shorter), seed=9), folder, tasks=(ToyTask,))
    return [
        Subject(
            TrainingConfig,
            training,
            {"epochs": (3,), "batch_size": (4,), "accumulation": (2, 9), "learning_rate": (1e-3,), "log_every": (2,)}
            | {
                "final_learning_rate": (1e-3,),
                "decay": ("linear",),
                "warmup_fraction": (0.5,),
                "weight_decay": (0.5,),
                "betas": ((0.8, 0.9),),
            }
            | {"adam_epsilon": (1e-2,), "gradient_clip": (0.1,), "ema_decay": (0.05,), "precision": ("bfloat16",)}
            | {"device": ("cuda:99",), "num_workers": (1,), "evaluation_batch_size": (5,), "evaluate_every": (2,)}
            | {"patience": (1,)}
            | {"checkpoint_every": (1,), "tensorboard": SWITCH, "shard": (True,)},
            _trained,
            make=run,
        ),
        Subject(
            Run.Config,
            {"task": toy, "training": TrainingConfig(**training)},
            {"task": (dataclasses.replace(toy, width=5),), "seed": (1,)}
            | {"training": (TrainingConfig(**shorter),), "init": (str(folder),)},
            _trained,
        ),
    ]
