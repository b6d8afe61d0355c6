import dataclasses
import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.encoders import ImageText, ImageTextBatch
from fredholm.models import AttentionConfig, EachImage, ITNet, ITNetMaskedModel, MLPConfig, TwoStream
from fredholm.storage.config_json import from_json, to_json
from fredholm.storage.tensors import model_tensors
from fredholm.tasks import ImageLearning, ImageTextLearning, MaskedLanguageModelling
from fredholm.tasks.images.changes import ImageChanges
from fredholm.tasks.text import Tokens
from fredholm.training import Run, TrainingConfig, train
from fredholm.training.scoring import score_split
from tests.refusals import refused
from tests.tasks.image_texts.build import examples, pixels, write_folder, write_jsonl, write_npz, write_pictures

CPU = torch.device("cpu")
KERNEL = MLPConfig(width=4, num_frequencies=2, sigma=1.0)
SMALL = ITNet.Config(embed_dim=8, depth=1, num_heads=2, kernel=KERNEL, dropout=0.0, drop_path=0.0)
STREAMS = TwoStream.Config(embed_dim=8, depth=1, num_heads=2, kernel=KERNEL, dropout=0.0, drop_path=0.0)
TOKENS = Tokens(vocab_size=80)
WORDLESS: dict[str, Any] = {"tokens": Tokens(), "context": 64}
"""Settings of text at their defaults."""
BRIEF = TrainingConfig(epochs=1, batch_size=8, tensorboard=False)


def config(data: Path, **settings: Any) -> ImageTextLearning.Config:
    given = {"model": SMALL, "patch_size": 4, "context": 16, "position_frequencies": 2, "tokens": TOKENS}
    return ImageTextLearning.Config(data=str(data), **given | settings)


def test_facts_are_the_training_splits(tmp_path: Path) -> None:
    task = config(write_npz(tmp_path / "a.npz")).build()
    facts = task.facts
    assert (facts.target.names, facts.num_images, facts.channels, facts.image_size) == (("false", "true"), 2, 3, (8, 8))
    assert (task.num_train, task.num_held_out("valid"), task.objective.metric) == (16, 7, "accuracy")
    shown = task.splits.train.images(torch.arange(16)).double() / 255
    torch.testing.assert_close(torch.tensor(facts.mean).double(), shown.mean((0, 1, 3, 4)))
    torch.testing.assert_close(
        torch.tensor(facts.deviation).double(),
        shown.transpose(1, 2).flatten(2).transpose(0, 1).flatten(1).std(1, correction=0),
    )
    assert from_json(to_json(facts), ImageTextLearning.Facts, ImageTextLearning.parts) == facts
    assert task.config.build(facts).num_held_out("test") == 7


def test_batches_hold_standardised_images_and_padded_tokens(tmp_path: Path) -> None:
    rows = examples(12)
    rows[1]["text"] = "there is a longer sentence for this one"
    write_pictures(tmp_path / "pictures")
    for name in ("train", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    task = config(tmp_path, valid_fraction=0.2, context=24).build()
    batch = task.train_batch(torch.arange(3), torch.Generator())
    part = task.splits.train
    assert batch["images"].shape == (3, 2, 3, 8, 8)
    mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in (task.facts.mean, task.facts.deviation))
    torch.testing.assert_close(batch["images"] * deviation + mean, part.images(torch.arange(3)) / 255)
    marks = task.tokenizer.marks
    for row, example in zip(batch["tokens"], part.examples, strict=False):
        laid = task.tokenizer.lay_out(example.text, None, 24).tokens.long()
        assert torch.equal(row[: len(laid)], laid)
        assert (row[len(laid) :] == marks.pad).all()
        assert (row[0], laid[-1]) == (marks.class_token, marks.separator)
    assert part.labels is not None
    assert torch.equal(batch["targets"], part.labels[:3])
    assert task.num_targets(batch) == 3


def test_a_context_that_cuts_warns_once(tmp_path: Path) -> None:
    task = config(write_npz(tmp_path / "a.npz"), context=5).build()
    with pytest.warns(UserWarning, match="16 of 16 training texts"):
        batch = task.train_batch(torch.arange(2), torch.Generator())
    assert batch["tokens"].shape == (2, 5)
    with warnings.catch_warnings(action="error"):
        task.train_batch(torch.arange(2), torch.Generator())
    with pytest.warns(UserWarning, match=r"^test texts of more than 5 tokens, .* are cut at the end: (\d+) of \1$"):
        task.held_out_batch("test", torch.arange(2))
    with pytest.warns(UserWarning, match=r"^texts of more than 5 tokens, .* are cut at the end: (\d+) of \1$"):
        task.predict(task.model().eval(), [tmp_path / "a.npz"], CPU, part="test")


def test_training_images_are_augmented_one_by_one_and_rows_match_the_whole_batch(tmp_path: Path) -> None:
    data, changes = write_npz(tmp_path / "a.npz", num_images=3), ImageChanges.Config(shift=0.2, rotation=10.0)
    plain, changed = config(data).build(), config(data, augmentation=changes).build()
    indices, rows = torch.tensor([3, 3, 5, 0, 9]), slice(1, 4)
    whole = changed.train_batch(indices, torch.Generator().manual_seed(1))
    part = changed.train_batch_rows(indices, rows, torch.Generator().manual_seed(1))
    assert all(torch.equal(part[name], whole[name][rows]) for name in whole)
    other = changed.train_batch(indices, torch.Generator().manual_seed(2))["images"]
    still = plain.train_batch(indices, torch.Generator())["images"]
    assert whole["images"].shape == still.shape
    ways = (whole["images"][0], whole["images"][1], other[0], still[0])  # versions of one example
    assert all(not torch.equal(one, two) for one, two in itertools.combinations(ways, 2))
    moved = (whole["images"] - still).flatten(2).abs().amax(-1)
    assert (moved > 0.1).all()
    # pixels that enter at the border are black
    black = (-changed._mean / changed._deviation).flatten().min()
    assert whole["images"].min() >= black - 1e-5
    for split in ("valid", "test"):
        assert torch.equal(
            changed.held_out_batch(split, torch.arange(3))["images"],
            plain.held_out_batch(split, torch.arange(3))["images"],
        )


def test_shuffled_images_are_in_orders_drawn_per_batch(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz", num_images=3)
    plain, shuffled = config(data).build(), config(data, shuffle_images=True).build()
    indices = torch.arange(16)
    own = plain.train_batch(indices, torch.Generator())["images"]
    drawn, again, other = (
        shuffled.train_batch(indices, torch.Generator().manual_seed(seed))["images"] for seed in (0, 0, 1)
    )
    assert torch.equal(drawn, again)
    assert not torch.equal(drawn, other)
    key = own.flatten(2).sum(2).sort(1).values
    torch.testing.assert_close(drawn.flatten(2).sum(2).sort(1).values, key)
    assert torch.equal(
        shuffled.held_out_batch("valid", torch.arange(3))["images"],
        plain.held_out_batch("valid", torch.arange(3))["images"],
    )


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, ITNet),
        ({"measure": "text-heavy"}, ITNet),
        ({"images_apart": True}, EachImage),
        ({"images_apart": True, "modalities": "image", **WORDLESS}, EachImage),
        ({"model": STREAMS}, TwoStream),
        ({"model": dataclasses.replace(STREAMS, fusion="concatenation"), "images_apart": True}, EachImage),
    ],
)
def test_the_model_predicts_for_each_text(tmp_path: Path, settings: dict[str, Any], kind: type) -> None:
    task = config(write_npz(tmp_path / "a.npz"), **settings).build()
    model, batch = task.model().eval(), task.held_out_batch("valid", torch.arange(4))
    assert type(model) is kind
    logits = model(ImageTextBatch(batch["images"], batch["tokens"]))
    assert logits.shape == (4, 2)
    expected = torch.nn.functional.cross_entropy(logits, batch["targets"], reduction="sum")
    torch.testing.assert_close(task.loss(model, batch), expected)


def test_label_smoothing_enters_the_loss_only_in_training(tmp_path: Path) -> None:
    task = config(write_npz(tmp_path / "a.npz"), label_smoothing=0.2).build()
    model, batch = task.model().eval(), task.held_out_batch("valid", torch.arange(7))
    logits = model(ImageTextBatch(batch["images"], batch["tokens"])).detach()
    smooth = torch.nn.functional.cross_entropy(logits, batch["targets"], reduction="sum", label_smoothing=0.2)
    torch.testing.assert_close(task.loss(model, batch), smooth)
    found = score_split(task, "valid", model, batch_size=3, device=CPU, dtype=torch.float32)
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, batch["targets"])))
    assert found["accuracy"] == pytest.approx(float((logits.argmax(-1) == batch["targets"]).float().mean()))


@pytest.mark.parametrize("modalities", ["image", "text"])
def test_a_modality_left_out_has_no_influence(tmp_path: Path, modalities: Any) -> None:
    more = WORDLESS if modalities == "image" else {"patch_size": 16}
    task = config(write_npz(tmp_path / "a.npz"), modalities=modalities, **more).build()
    model, batch = task.model().eval(), task.held_out_batch("valid", torch.arange(4))
    images, tokens = batch["images"], batch["tokens"]
    predicted = model(ImageTextBatch(images, tokens))
    other_images, other_tokens = model(ImageTextBatch(-images, tokens)), model(ImageTextBatch(images, tokens.flip(0)))
    assert torch.equal(predicted, other_images) == (modalities == "text")
    assert torch.equal(predicted, other_tokens) == (modalities == "image")


def test_predictions_match_the_model_line_by_line(tmp_path: Path) -> None:
    task = config(write_folder(tmp_path)).build()
    model = task.model().eval()
    unlabelled = write_jsonl(tmp_path / "asked.jsonl", [{**row, "label": "?"} for row in examples(5)])
    rows = task.predict(model, [unlabelled, tmp_path / "all.jsonl"], CPU)
    assert len(rows) == 45
    assert rows[:5] == [{**row, "file": str(unlabelled)} for row in rows[5:10]]
    assert [row["line"] for row in rows[:5]] == [1, 2, 3, 4, 5]
    everything = task._examples
    batch = task._batch(
        everything.images(torch.arange(5)) / 255,
        everything,
        [task._lay_out(example.text)[0] for example in everything.examples],
        torch.arange(5),
    )
    probabilities = model(ImageTextBatch(batch["images"], batch["tokens"])).softmax(-1)
    assert [row["class"] for row in rows[:5]] == [task.facts.target.names[i] for i in probabilities.argmax(-1).tolist()]
    assert [row["probability"] for row in rows[:5]] == pytest.approx(probabilities.amax(-1).tolist(), abs=1e-6)


def masked_run(folder: Path, tokens: Tokens = TOKENS, context: int = 16) -> Path:
    (folder / "book.txt").write_text("\n".join(row["text"] for row in examples(60)))
    model = ITNetMaskedModel.Config(stack=SMALL, position_frequencies=2)
    task = MaskedLanguageModelling.Config(data=str(folder / "book.txt"), tokens=tokens, context=context, model=model)
    train(Run.Config(task=task, training=BRIEF), folder / "masked")
    return folder / "masked"


def image_run(folder: Path, patch_size: int = 4, stem_depth: int | None = None, bank: int | None = None) -> Path:
    shown = np.concatenate([pixels([name]) for name in ("red", "blue") * 8])
    labels = np.array([0, 1] * 8)
    np.savez(folder / "images.npz", x_train=shown, y_train=labels, x_test=shown, y_test=labels)
    task = ImageLearning.Config(
        data=str(folder / "images.npz"),
        patch_size=patch_size,
        stem_depth=stem_depth,
        position_frequencies=2,
        model=SMALL,
        bank=bank,
    )
    train(Run.Config(task=task, training=BRIEF), folder / f"images-{patch_size}")
    return folder / f"images-{patch_size}"


@pytest.mark.parametrize("settings", [{}, {"images_apart": True}, {"model": STREAMS}, {"stem_depth": 1}])
def test_encoders_start_from_other_runs(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, data = masked_run(tmp_path), write_npz(tmp_path / "a.npz")
    # also for a network beside a bank
    images = image_run(tmp_path, stem_depth=settings.get("stem_depth"), bank=None if settings else 4)
    tokens = Tokens(file=str(texts / "tokenizer.json"))
    task = config(data, tokens=tokens, image_run=str(images), text_run=str(texts), **settings)
    still = dataclasses.replace(BRIEF, learning_rate=1e-12, final_learning_rate=1e-12, weight_decay=0.0)
    train(Run.Config(task=task, training=still), tmp_path / "run")
    printed = capsys.readouterr().out
    assert f"from {images}: " in printed
    assert f"from {texts}: " in printed
    here = model_tensors(Run(tmp_path / "run").model())
    apart = "model." if "images_apart" in settings else ""
    stack = "image_blocks" if "model" in settings else "blocks"
    of_images, of_texts = (model_tensors(Run(path).model()) for path in (images, texts))
    for name, tensor in of_images.items():
        name = name.removeprefix("network.")
        place = name.replace("encoder.", f"{apart}encoder.image.").replace("blocks.", f"{apart}{stack}.")
        if name.startswith(("encoder.", "blocks.")):
            torch.testing.assert_close(here[place], tensor, rtol=0, atol=1e-6)
    for name, tensor in of_texts.items():
        if name.startswith("encoder."):
            torch.testing.assert_close(here[f"{apart}encoder.text.{name[8:]}"], tensor, rtol=0, atol=1e-6)
    (images / "config.json").unlink()  # a run in progress needs neither
    assert len(Run(tmp_path / "run").predict([data], part="train")) == 16


def test_mismatched_encoder_runs_are_refused_in_one_line(tmp_path: Path) -> None:
    texts, images, data = masked_run(tmp_path), image_run(tmp_path, 2), write_npz(tmp_path / "a.npz")

    def refuses(*message: str, **settings: Any) -> None:
        with refused(ValueError, *message):
            train(Run.Config(task=config(data, **settings), training=BRIEF), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    refuses("image_run: ", "its patch_embedding.weight is (8, 12), expected (8, 48)", image_run=str(images))
    refuses("image_run: ", "it has no patch_embedding.weight, expected (8, 48)", image_run=str(texts))
    by_convolutions = image_run(tmp_path, stem_depth=1)
    pass_them = "pass --task.patch-size 4 --task.stem-depth 1 --task.position-frequencies 2 --task.model.embed-dim 8"
    refuses("image_run: ", pass_them, image_run=str(by_convolutions))
    refuses("image_run: ", "give both the same sizes", image_run=str(texts))
    refuses("the tokenizer of", "pass --task.tokens.file", text_run=str(texts))
    kept = Tokens(file=str(texts / "tokenizer.json"))
    refuses("the context of", "pass --task.context 16", text_run=str(texts), tokens=kept, context=12)
    refuses(
        "text_run: ",
        "its position_weight is (8, 4), expected (8, 6)",
        text_run=str(texts),
        tokens=kept,
        position_frequencies=3,
    )
    refuses("text_run: ", "it has no weight, expected", text_run=str(images))
    refuses("nowhere", text_run="nowhere")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modalities": "sound"}, "modalities is 'sound'; expected one of both, image, text"),
        ({"measure": "even"}, "measure is 'even'; expected one of uniform, balanced"),
        (
            {"modalities": "text", "measure": "uniform", "patch_size": 16},
            "measure='uniform' has no effect with modalities='text'",
        ),
        ({"modalities": "text"}, "patch_size=4 has no effect"),
        ({"modalities": "text", "patch_size": 16, "stem_depth": 0}, "stem_depth=0 has no effect"),
        ({"stem_depth": -1}, "image-text: stem_depth must be at least 0; got -1"),
        ({"modalities": "text", "patch_size": 16, "images_apart": True}, "images_apart=True has no effect"),
        ({"modalities": "text", "patch_size": 16, "image_run": "a"}, "image_run='a' has no effect"),
        (
            {"modalities": "text", "patch_size": 16, "augmentation": ImageChanges.Config(shift=0.1)},
            "augmentation is given, and has no effect with modalities='text'",
        ),
        ({"modalities": "image", "tokens": Tokens()}, "context=16 has no effect with modalities='image'"),
        ({"modalities": "image", "context": 64}, "tokens are given, and have no effect"),
        ({"modalities": "image", "text_run": "a", **WORDLESS}, "text_run='a' has no effect"),
        ({"modalities": "image", "model": STREAMS}, "model is of two streams"),
        ({"measure": "uniform", "model": STREAMS}, "measure='uniform' has no effect with a model of two streams"),
        ({"position_frequencies": 0, "position_sigma": 3.0}, "position_sigma=3.0 has no effect"),
        ({"model": dataclasses.replace(SMALL, pool="none")}, "model.pool is 'none'"),
        ({"label_smoothing": 1.0}, "label_smoothing must be in [0, 1)"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        config(Path("a.npz"), **settings)


def test_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    one = write_npz(tmp_path / "one.npz", num_images=1)
    for name in ("images_apart", "shuffle_images"):
        with refused(ValueError, f"{name}=True has no effect with one image a text"):
            config(one, **{name: True}).build()
    with refused(ValueError, "no images with text are given"):
        ImageTextLearning.Config().build()
    write_pictures(tmp_path / "pictures")
    alike = write_jsonl(tmp_path / "alike.jsonl", [{**row, "label": "a"} for row in examples(20)])
    with refused(ValueError, "has the classes ['a']; expected at least 2"):
        config(alike).build()
    whole = write_npz(tmp_path / "a.npz")
    facts = config(whole).build().facts
    with refused(ValueError, "context is 12; the run was made with 16"):
        config(whole, context=12).build(facts)
    with refused(ValueError, "the image_size of", "(4, 4)"):
        _ = config(whole, image_size=(4, 4)).build(facts).splits
    with refused(ValueError, "test_fraction=0.4 has no effect with", "its own split"):
        config(whole, test_fraction=0.4).build()


@pytest.mark.slow
def test_it_learns_what_neither_modality_shows_alone(tmp_path: Path) -> None:
    rows = [(shade, word) for _ in range(24) for shade in (40, 210) for word in ("dark", "light")]
    images = np.array([np.full((8, 8, 3), shade, np.uint8) for shade, _ in rows])
    label = [(shade == 40) == (word == "dark") for shade, word in rows]
    split = np.repeat(["train", "valid", "test"], [48, 24, 24])
    np.savez(tmp_path / "a.npz", images=images, text=[f"a {word} one" for _, word in rows], label=label, split=split)
    model = ITNet.Config(embed_dim=16, depth=2, num_heads=2, kernel=AttentionConfig(), dropout=0.0, drop_path=0.0)
    training = TrainingConfig(epochs=15, batch_size=8, learning_rate=5e-3, ema_decay=0.9, tensorboard=False)
    task = config(tmp_path / "a.npz", patch_size=8, model=model)
    assert train(Run.Config(task=task, training=training), tmp_path / "run").metrics["accuracy"] == 1.0


def test_the_encoder_follows_the_settings(tmp_path: Path) -> None:
    model = config(write_npz(tmp_path / "a.npz"), measure="image-heavy").build().model()
    encoder = model.get_submodule("encoder")
    assert isinstance(encoder, ImageText)
    assert (encoder.measure, encoder.num_images, encoder.has_class_token) == ("image-heavy", 2, True)
