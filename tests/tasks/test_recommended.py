"""Settings that `Config.recommended` chooses for the data of each task, and explicit settings, which stay."""

import csv
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from fredholm.encoders import ImagePyramid
from fredholm.models import (
    Bert,
    BertMasked,
    CloudMachine,
    ConvNeXt,
    InfViT,
    ITNet,
    NGramBank,
    PointPooling,
    SentenceStackConfig,
)
from fredholm.models.language.itnet_text import ITNetMaskedModel
from fredholm.tasks import (
    ImageLearning,
    ImageTextLearning,
    LanguageModelling,
    MaskedLanguageModelling,
    OperatorLearning,
    PointLearning,
    Segmentation,
    SentenceLearning,
)
from fredholm.tasks.images.changes import ImageChanges
from fredholm.tasks.images.image_learning import WITHOUT_DROPOUT
from fredholm.tasks.masks import segmentation
from fredholm.tasks.points.augmentation import CloudAugmentation
from fredholm.tasks.points.point_learning import FEW_CLOUDS
from fredholm.tasks.points.point_set import PointSet
from fredholm.tasks.points.turns import turned
from fredholm.tasks.sentences.sentence import Sentence
from fredholm.tasks.task import Trained
from fredholm.tasks.text import Tokens, context_for
from tests.refusals import refused
from tests.tasks.image_texts.build import write_folder as write_image_texts
from tests.tasks.masks.build import squares, write_pairs


def sentences(folder: Path, length: int = 5, count: int = 60) -> str:
    rows = [(" ".join(f"{'abcdefghij'[(i + k) % 10]}{k}" for k in range(length)), i % 2) for i in range(count)]
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(folder / "rows.csv")


@pytest.mark.parametrize(("length", "small", "base"), [(5, 16, 16), (20, 32, 32), (400, 256, 512)])
def test_the_context_holds_every_sentence(tmp_path: Path, length: int, small: int, base: int) -> None:
    config = SentenceLearning.Config(data=sentences(tmp_path, length), model=SentenceStackConfig())
    found: Any = {preset: config.recommended(preset) for preset in ("small", "base")}
    assert {name: each.config.context for name, each in found.items()} == {"small": small, "base": base}
    assert [found[name].config.model.stack.embed_dim for name in found] == [64, 128]
    assert [found[name].config.model.stack.depth for name in found] == [1, 4]
    assert found["small"].schedule.batch_size == 32


@pytest.mark.parametrize("length", [5, 400, pytest.param(3000, marks=pytest.mark.long)])
def test_a_bank_of_sentences_covers_their_length_and_all_their_n_grams(tmp_path: Path, length: int) -> None:
    config, schedule, _ = SentenceLearning.Config(data=sentences(tmp_path, length, 12)).recommended("small")
    assert isinstance(config, SentenceLearning.Config)
    assert isinstance(config.model, NGramBank.Config)
    assert config.context == 65_536  # words missing from training have more tokens than known ones
    assert (schedule.epochs, schedule.patience) == (0, None)
    train = config.build()
    rows = [tuple(row[row != train.token_reading.pad].tolist()) for rows in train.train_rows() for row in rows]
    grams = {row[i : i + k] for row in rows for k in (1, 2) for i in range(len(row) - k + 1)}
    assert config.model.num_grams == len(grams)
    given = SentenceLearning.Config(
        data=sentences(tmp_path, length, 12), model=NGramBank.Config(num_grams=7, num_letter_grams=9), context=9000
    )
    found = given.recommended("small").config
    assert isinstance(found, SentenceLearning.Config)
    assert (found.model, found.context) == (given.model, 9000)


def test_a_bank_reads_the_end_of_a_text_of_new_words(tmp_path: Path) -> None:
    task: Any = SentenceLearning.Config(data=sentences(tmp_path)).recommended("small").config.build()
    model = task.model()
    task.initialise(model, torch.device("cpu"))
    ends = [Sentence("jihgfedcba " * 30 + end, None, Path("new.csv"), 1) for end in ("a0 c2 e4", "b0 d2 f4")]
    first, second = task.outputs(model, ends, torch.device("cpu"))
    assert not torch.allclose(first, second, atol=1e-3)


def test_both_sentences_of_a_pair_count() -> None:
    tokens = Tokens(vocab_size=40).learn(["a b " * 100])
    assert context_for(tokens, [("a " * 10,)], 64) == 16  # 10 and two marks
    assert context_for(tokens, [("a " * 10, "b " * 10)], 64) == 32
    assert context_for(tokens, [("a " * 100,)], 64) == 64


def test_explicit_settings_of_sentences_stay(tmp_path: Path) -> None:
    model = SentenceStackConfig(stack=ITNet.Config(embed_dim=18, depth=3))
    requested = SentenceLearning.Config(
        data=sentences(tmp_path), context=40, tokens=Tokens(vocab_size=90), model=model, valid_fraction=0
    )
    config, schedule, _ = requested.recommended("small")
    assert isinstance(config, SentenceLearning.Config)
    assert isinstance(config.model, SentenceStackConfig)
    stack: Any = config.model.stack
    assert (config.context, config.tokens, stack.embed_dim, stack.depth) == (40, requested.tokens, 18, 3)
    assert schedule.patience is None


def test_the_vocabulary_size_follows_the_length_of_the_text() -> None:
    assert Tokens().recommended(["ab " * 1000]).vocab_size == 2000
    assert Tokens().recommended(["abc " * 20_000, "abc " * 20_000]).vocab_size == 3200
    assert Tokens().recommended(["abc " * 200_000]).vocab_size == 8000
    assert Tokens().recommended(["".join(map(chr, range(0x4E00, 0x4E00 + 900)))]).vocab_size == 3600
    for given in (Tokens(kind="bytes"), Tokens(vocab_size=300), Tokens(file="there.json")):
        assert given.recommended(["ab " * 1000]) == given
    assert Tokens(kind="byte_pairs").recommended(["ab"]) == Tokens(kind="byte_pairs", vocab_size=2000)


def test_with_few_epochs_images_are_learnt_without_dropout() -> None:
    def rates(requested: ImageLearning.Config, epochs: int | None = None, share: float = 1.0) -> tuple[float, float]:
        model: Any = cast(Any, requested.recommended("small", share=share, epochs=epochs).config).model
        return model.dropout, model.drop_path

    usual, given = ImageLearning.Config(), ImageLearning.Config().model
    assert isinstance(given, ITNet.Config)
    assert rates(usual) == rates(usual, WITHOUT_DROPOUT + 1) == rates(usual, share=0.1) == (0.1, 0.1)
    assert rates(usual, WITHOUT_DROPOUT) == rates(usual, 1) == (0.0, 0.0)
    own = replace(usual, model=replace(given, dropout=0.3))
    assert (rates(own), rates(own, 1)) == ((0.3, 0.1), (0.3, 0.0))
    without = replace(usual, model=InfViT.Config())
    assert rates(without) == rates(without, 1) == (0.0, 0.0)


def test_recommended_settings_of_masked_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat and the dog lay in the log\n" * 60)
    requested = MaskedLanguageModelling.Config(data=str(tmp_path / "a.txt"))
    for preset, context, width, depth, batch in (("small", 128, 96, 4, 16), ("base", 512, 192, 8, 64)):
        found: Any = requested.recommended(preset)  # pyright: ignore[reportArgumentType]
        stack = found.config.model.stack
        assert (found.config.context, stack.embed_dim, stack.depth) == (context, width, depth)
        assert (found.config.tokens.vocab_size, found.schedule.batch_size) == (2000, batch)
    given = ITNetMaskedModel.Config(stack=ITNet.Config(embed_dim=24, depth=4), position_frequencies=3)
    config: Any = replace(requested, context=20, model=given).recommended("base")[0]
    # a depth equal to the default counts as not set
    assert (config.context, config.model.stack.embed_dim, config.model.stack.depth) == (20, 24, 8)
    assert config.model.position_frequencies == 3


def clouds(count: int, axes: str, *, size: int = 30, labels: bool = False) -> dict[str, Any]:
    """Rods and plates that are aligned (""), or rotated about z ("z"), or about all axes ("xyz")."""
    draw, found = np.random.default_rng(0), []
    for i in range(count):
        points = draw.normal(size=(size, 3)) * ([3, 1, 0.3] if i % 2 else [2, 1.5, 0.5])
        if axes == "z":
            angle = draw.uniform(0, 2 * np.pi)
            points[:, :2] @= np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        elif axes:
            points = points @ np.linalg.qr(draw.normal(size=(3, 3)))[0]
        found.append(points)
    got = {"labels": draw.integers(0, 2, (count, size))} if labels else {"y": np.arange(count) % 2}
    return {"x": np.stack(found), **got}


def point_set(count: int, axes: str) -> PointSet:
    return set_of(torch.from_numpy(clouds(count, axes)["x"]).double())


def set_of(x: torch.Tensor) -> PointSet:
    """Clouds `(n, N, 3)` without features."""
    return PointSet(
        pos=x.flatten(0, 1),
        features=torch.zeros(x.shape[0] * x.shape[1], 0),
        offsets=torch.arange(len(x) + 1) * x.shape[1],
        names=tuple(map(str, range(len(x)))),
    )


@pytest.mark.parametrize(("axes", "expected"), [("", "none"), ("z", "axis"), ("xyz", "all")])
def test_rotations_of_clouds_are_detected(axes: str, expected: str) -> None:
    assert turned(point_set(200, axes)) == expected
    assert turned(point_set(20, axes)) == "none"


def test_few_clouds_count_as_rotated_if_aligned_ones_predict_their_classes_better() -> None:
    few = {
        axes: replace(point_set(20, axes), labels=torch.arange(20) % 2, classes=("rod", "plate"))
        for axes in ("", "xyz")
    }
    assert [turned(few[axes]) for axes in ("", "xyz")] == ["none", "all"]
    x = few["xyz"].pos.reshape(20, -1, 3)
    longest = torch.linalg.svd(x - x.mean(1, keepdim=True))[2][:, 0]
    leans = (longest[:, 2].abs() > longest[:, 2].abs().median()).long()  # the orientation, which alignment removes
    assert turned(replace(few["xyz"], labels=leans)) == "none"
    assert turned(replace(few["xyz"], labels=torch.zeros(20, dtype=torch.long))) == "none"
    orders = list(itertools.permutations(range(3)))  # exchanged axes are no rotations
    pos = [cloud[:, orders[i // 2 % 6]] for i, cloud in enumerate(few[""].pos.split(30))]
    assert turned(replace(few[""], pos=torch.cat(pos))) == "none"


@pytest.mark.parametrize("upright", ["two heights", "dense below", "nothing"])
def test_upright_clouds_as_tall_as_wide_count_as_rotated_about_z_alone(upright: str) -> None:
    x = torch.randn(60, 80, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if upright == "two heights":
        x[..., 2] = x[..., 2].sign()
    elif upright == "dense below":  # a Weibull distribution with the kurtosis of a normal one, and of deviation 1
        x[..., 2] = 2.4 * (-torch.special.log_ndtr(x[..., 2])) ** (1 / 2.25)
    assert turned(set_of(x)) == ("all" if upright == "nothing" else "axis")


def test_clouds_that_lean_to_one_side_do_not_count_as_rotated() -> None:
    x = torch.randn(60, 80, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[..., 1] = 2.4 * (-torch.special.log_ndtr(x[..., 1])) ** (1 / 2.25)
    assert turned(set_of(x)) == "none"


def test_clouds_in_one_of_two_orientations_do_not_count_as_rotated() -> None:
    found = point_set(200, "")
    x = found.pos.reshape(200, -1, 3).clone()
    x[::2] = x[::2][..., [1, 0, 2]]
    x = x[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    assert turned(replace(found, pos=x.flatten(0, 1))) == "none"


def test_recommended_settings_of_points(tmp_path: Path) -> None:
    np.savez(tmp_path / "clouds.npz", **clouds(FEW_CLOUDS + 300, "xyz", size=100))
    requested = PointLearning.Config(data=str(tmp_path / "clouds.npz"))
    config: Any = requested.recommended("small")[0]
    assert (config.num_points, config.num_centres, config.label_smoothing) == (512, 64, 0.1)
    assert config.augmentation == CloudAugmentation.Config(scale=(0.8, 1.25), jitter=0.01)
    assert config.align
    assert (config.model.pool, config.model.embed_dim, config.model.depth) == ("max", 64, 3)
    config = requested.recommended("base")[0]
    assert (config.num_points, config.num_centres, config.model.embed_dim, config.model.depth) == (1024, None, 128, 6)
    given = replace(
        requested, num_centres=400, augmentation=CloudAugmentation.Config(jitter=0.2), model=PointPooling.Config()
    )
    config = given.recommended("small")[0]
    assert (config.num_points, config.num_centres, config.augmentation) == (800, 400, given.augmentation)
    assert isinstance(config.model, PointPooling.Config)


@pytest.mark.parametrize(("turns", "expected"), [("", "none"), ("xyz", "all")])
def test_few_clouds_get_a_machine_unless_a_network_is_requested(tmp_path: Path, turns: str, expected: str) -> None:
    np.savez(tmp_path / "clouds.npz", **clouds(60, turns, size=30))
    requested = PointLearning.Config(data=str(tmp_path / "clouds.npz"))
    recommended = requested.recommended("small")
    config: Any = recommended.config
    assert config.model == CloudMachine.Config(turns=expected, num_trees=100)  # pyright: ignore[reportArgumentType]
    assert (config.num_points, config.align, recommended.schedule.epochs) == (256, False, 0)
    assert config.build().splits.valid is None
    named: Any = replace(requested, model=CloudMachine.Config(num_trees=7)).recommended("small").config
    assert (named.model.turns, named.model.num_trees) == (expected, 7)
    named = replace(requested, model=CloudMachine.Config(turns="axis")).recommended("small").config
    assert named.model.turns == "axis"
    named = replace(requested, model=CloudMachine.Config(), align=True).recommended("small").config
    assert named.model.turns == "none"
    others = [
        replace(requested, augmentation=CloudAugmentation.Config(jitter=0.1)),
        replace(requested, num_neighbours=3),
        replace(requested, label_smoothing=0.2),
        replace(requested, model=ITNet.Config()),
    ]
    for config in (
        requested.recommended("small", epochs=3).config,
        *(each.recommended("small").config for each in others),
    ):
        assert isinstance(config, PointLearning.Config)
        assert config.model.learns_by_steps


def test_clouds_with_weights_get_a_network(tmp_path: Path) -> None:
    arrays = clouds(40, "", size=20)
    np.savez(tmp_path / "clouds.npz", **arrays, weights=np.ones(arrays["x"].shape[:2]))
    config: Any = PointLearning.Config(data=str(tmp_path / "clouds.npz")).recommended("small")[0]
    assert config.model.learns_by_steps
    with refused(ValueError, "CloudMachine", "weights"):
        PointLearning.Config(data=str(tmp_path / "clouds.npz"), model=CloudMachine.Config()).build()


def test_models_of_single_points_have_no_centres(tmp_path: Path) -> None:
    np.savez(tmp_path / "clouds.npz", **clouds(40, "", size=100, labels=True))
    config: Any = PointLearning.Config(data=str(tmp_path / "clouds.npz")).recommended("small")[0]
    assert (config.num_centres, config.augmentation.rotation, config.model.pool) == (None, "none", "cls")
    assert not config.align
    config.build().model()


@pytest.mark.parametrize(
    ("size", "small", "base"),
    [((64, 64), (None, (8,)), (None, (2,))), ((24, 200), ((16, 128), (16,)), (None, (8,)))],
)
def test_recommended_settings_of_pixels(
    tmp_path: Path, size: tuple[int, int], small: tuple[Any, Any], base: tuple[Any, Any]
) -> None:
    write_pairs(tmp_path, *squares(10, size))
    for preset, expected in (("small", small), ("base", base)):
        config: Any = Segmentation.Config(data=str(tmp_path)).recommended(preset)[0]  # pyright: ignore[reportArgumentType]
        assert (config.image_size, config.patch_sizes) == expected
        assert (config.augmentation.crop_scale, config.augmentation.horizontal_flip) == ((0.8, 1.0), 0.5)
        assert (config.stem_depth, config.model.depth) == ((1, 2) if preset == "small" else (2, 6))
        assert isinstance(config.build().model().encoder, ImagePyramid)
    given: Any = Segmentation.Config(data=str(tmp_path), patch_sizes=(2, 4)).recommended("small")[0]
    assert (given.image_size, given.patch_sizes, given.stem_depth) == (None, (2, 4), None)


def test_blocks_are_skipped_often_where_images_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pairs(tmp_path, *squares(10))
    given = Segmentation.Config(data=str(tmp_path))
    num_train = given.build().num_train
    for most, drop_path in ((num_train, 0.5), (num_train - 1, 0.1)):
        monkeypatch.setattr(segmentation, "FEW_IMAGES", most)
        config: Any = given.recommended("small")[0]
        assert config.model.drop_path == drop_path


@pytest.mark.parametrize("axis", [1, 2])
def test_masks_are_not_mirrored_where_direction_matters(tmp_path: Path, axis: int) -> None:
    drawn = np.random.default_rng(0)
    masks = (drawn.random((40, 16, 16)) < 0.4).astype(np.uint8)
    far = np.arange(16) >= 8
    masks[masks > 0] += np.broadcast_to(far[:, None] if axis == 1 else far, masks.shape)[masks > 0]
    images = (100 + 100 * (masks > 0)[..., None] + drawn.integers(0, 20, (40, 16, 16, 3))).astype(np.uint8)
    np.savez(tmp_path / "sides.npz", images=images, masks=masks)
    config: Any = Segmentation.Config(data=str(tmp_path / "sides.npz")).recommended("small")[0]
    flips = (config.augmentation.vertical_flip, config.augmentation.horizontal_flip)
    assert flips == ((0.0, 0.5) if axis == 1 else (0.5, 0.0))
    given: Any = replace(config, augmentation=replace(config.augmentation, horizontal_flip=0.1)).recommended("small")[0]
    assert given.augmentation.horizontal_flip == 0.1


@pytest.mark.parametrize("directed", [True, False])
def test_grey_masks_are_mirrored_where_shades_have_no_direction(tmp_path: Path, *, directed: bool) -> None:
    """Squares of two classes that become brighter to the right or to the left, or to the middle or to their sides."""
    drawn = np.random.default_rng(0)
    images, masks = drawn.normal(100, 5, (30, 24, 24)), np.zeros((30, 24, 24), np.uint8)
    shade = np.linspace(-40, 40, 10) if directed else 80 * np.abs(np.linspace(-1, 1, 10)) - 40
    for image, mask in zip(images, masks, strict=True):
        top, left, kind = drawn.integers(0, 14), drawn.integers(0, 14), drawn.integers(2)
        mask[top : top + 10, left : left + 10] = 1 + kind
        image[top : top + 10, left : left + 10] += (2 * kind - 1) * shade
    np.savez(tmp_path / "shades.npz", images=images.clip(0, 255).astype(np.uint8), masks=masks)
    config: Any = Segmentation.Config(data=str(tmp_path / "shades.npz")).recommended("small")[0]
    assert config.augmentation.horizontal_flip == (0 if directed else 0.5)
    assert config.augmentation.vertical_flip == 0.5


@pytest.mark.parametrize("differ", [True, False])
def test_functions_of_different_regions_are_not_brought_onto_one_grid(tmp_path: Path, *, differ: bool) -> None:
    draw = np.random.default_rng(0)
    lengths = draw.uniform(0.5, 1, (30, 1, 1)) if differ else 1.0
    pos = lengths * np.sort(draw.random((30, 12, 1)), axis=1)
    np.savez(tmp_path / "pairs.npz", values=pos[..., 0], pos=pos, target_values=pos[..., 0], target_pos=pos)
    config: Any = OperatorLearning.Config(data=str(tmp_path / "pairs.npz")).recommended("small")[0]
    assert config.fill_in != differ
    assert config.regression == 0
    asked: Any = OperatorLearning.Config(data=str(tmp_path / "pairs.npz"), regression=5).recommended("small")[0]
    assert asked.fill_in


def test_recommended_settings_of_images_with_text(tmp_path: Path) -> None:
    requested = ImageTextLearning.Config(data=str(write_image_texts(tmp_path, num_images=1)))
    config: Any = requested.recommended("small")[0]
    assert (config.patch_size, config.image_size, config.context, config.tokens.vocab_size) == (1, None, 16, 2000)
    assert (config.model.embed_dim, config.model.depth, config.position_sigma) == (64, 4, 1.0)
    assert (config.stem_depth, config.augmentation) == (None, ImageChanges.Config())
    config = replace(requested, modalities="image").recommended("small")[0]
    assert (config.tokens, config.context, config.patch_size) == (Tokens(), 64, 1)
    config = replace(requested, modalities="text", position_frequencies=0).recommended("small")[0]
    assert (config.patch_size, config.context, config.position_sigma) == (16, 16, 10.0)


@pytest.mark.parametrize(
    "model", [ITNet.Config(), ConvNeXt.Config(channels=1, depths=(1, 1), dims=(4, 6), patch_size=2)]
)
def test_weights_of_another_task_do_not_change_the_size_of_images(tmp_path: Path, model: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x_train=pixels, y_train=np.arange(20) % 2)
    config = ImageLearning.Config(data=str(tmp_path / "images.npz"), model=model)
    other = SentenceLearning.Config(data=sentences(tmp_path))
    found, alone = config.recommended("small", Trained(other, other.build().facts)), config.recommended("small")
    assert found.config == alone.config
    assert found.schedule.learning_rate == pytest.approx(0.3 * alone.schedule.learning_rate)
    found.config.build().model()


@pytest.mark.parametrize("kind", [LanguageModelling, MaskedLanguageModelling])
def test_a_note_reports_a_context_far_above_the_default_before_a_step_is_timed(kind: Any, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("it was the best of times " * 2000)
    found = {
        context: kind.Config(data=str(tmp_path), context=context).recommended("small").notes for context in (2040, 4096)
    }
    assert found[2040] == ()
    (note,) = found[4096]
    assert note.startswith("context=4096 is 32 times the usual 128: a step takes so many times as long")
    assert "up to 1,024 times with attention" in note


def test_a_new_masked_bert_has_the_learning_rate_and_heads_of_its_width(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("it was the best of times " * 400)
    for width, heads in ((240, 8), (36, 4)):
        stack = Bert.Config(num_segments=0, embed_dim=width)
        model = BertMasked.Config(stack=stack)
        found = MaskedLanguageModelling.Config(data=str(tmp_path), model=model).recommended("small")
        assert found.schedule.learning_rate == pytest.approx(min(0.002, 0.128 / width))
        config: Any = found.config
        assert config.model.stack.num_heads == heads
        config.build().model()
