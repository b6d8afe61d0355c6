"""Runs that start from a checkpoint: before the first step everything except the new head equals the original."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fredholm import kernels
from fredholm.models import Bert, BertSentences, ConvNeXt, ViT
from fredholm.pretrained import PretrainedImages, PretrainedSentences, add_kernel
from fredholm.tasks import ImageLearning, SentenceLearning
from fredholm.tasks.text import MarkedTokenizer, Tokens
from fredholm.training import Run, TrainingConfig, train
from tests.pretrained.peers import (
    BOTH_SIDES,
    CAUSAL,
    IMAGES,
    SIZES,
    TIMM,
    as_gradients,
    noisy,
    saved,
    saved_by_timm,
    started,
    transformers,
    write_byte_pairs,
    write_word_pieces,
)
from tests.refusals import refused

PAIRS = [
    ("The cats sat", "a good one!"),
    ("unaffable", "the cat 42, the number"),
    ("bad " * 9, "sat " * 7),
    ("a", "b"),
]
CUT = pytest.mark.filterwarnings("ignore:.*and are cut")
TRAINING = TrainingConfig(epochs=2, batch_size=8, tensorboard=False, log_every=1, device="cpu")


def write_sentences(folder: Path, pairs: bool) -> str:
    """Two classes, with five copies of each pair, or of the first sentence of each."""
    head = "sentence1,sentence2,label" if pairs else "text,label"
    rows = (f'"{a}","{b}",{n % 2}' if pairs else f'"{a}",{n % 2}' for _ in range(5) for n, (a, b) in enumerate(PAIRS))
    path = folder / "data.csv"
    path.write_text("\n".join([head, *rows]))
    return str(path)


def bert_folder(kind: str, folder: Path) -> nn.Module:
    """Saves a classifier of the original library with random weights and a tokenizer."""
    folder.mkdir()
    size = write_byte_pairs(folder) if kind == "RoBERTa" else write_word_pieces(folder)
    model, config, settings = BOTH_SIDES[f"{kind}, classes"]
    pad = {"pad_token_id": 1 if kind == "RoBERTa" else 0}
    return saved((model, config, {**settings, "vocab_size": size + 2, "num_labels": 2, **pad}), folder)


def sentence_task(checkpoint: Path, *, pairs: bool = False, **settings: Any) -> SentenceLearning:
    given = {"data": write_sentences(checkpoint.parent, pairs), "context": 20, **settings}
    return SentenceLearning.Config(**given, model=PretrainedSentences(checkpoint=str(checkpoint))).build()


def check_close(got: Tensor, expected: Tensor, name: str = "") -> None:
    assert expected.abs().max() > 1e-3, name
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, msg=lambda found: f"{name}: {found}")


@CUT
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("kind", ["BERT", "RoBERTa", "DistilBERT"])
def test_a_batch_of_sentences_equals_that_of_the_original(kind: str, pairs: bool, tmp_path: Path) -> None:
    peer: Any = bert_folder(kind, tmp_path / "peer")
    task = sentence_task(tmp_path / "peer", pairs=pairs)
    model = started(task)
    assert isinstance(model, BertSentences)
    tokenizer = getattr(transformers(), "RobertaTokenizer" if kind == "RoBERTa" else "BertTokenizer")
    sentences = [task.splits.train.sentences[n] for n in range(8)]
    texts = [list(column) for column in zip(*(each.texts for each in sentences), strict=True)]
    given = tokenizer.from_pretrained(tmp_path / "peer")(
        *texts, padding=True, truncation="longest_first", max_length=20, return_tensors="pt"
    )
    batch = task.train_batch(torch.arange(8), torch.Generator())
    assert torch.equal(batch["tokens"], given["input_ids"])
    more = {"token_type_ids": given["token_type_ids"]} if kind == "BERT" else {}
    # the original lacks the new head
    last = peer.classifier.out_proj if kind == "RoBERTa" else peer.classifier
    with torch.no_grad():
        last.weight.copy_(model.head.weight)
        last.bias.copy_(model.head.bias)
    answer = peer(given["input_ids"], attention_mask=given["attention_mask"], output_hidden_states=True, **more)
    exists = given["attention_mask"].bool()
    assert not exists.all()
    check_close(model.signal(batch["tokens"])[exists], answer.hidden_states[-1][exists])
    check_close(model(batch["tokens"]), answer.logits)
    for logits in (model(batch["tokens"]), answer.logits):
        (logits.sin() * torch.arange(1, 3)).sum().backward()
    as_gradients(peer).save_pretrained(tmp_path / "gradients")
    brought = PretrainedSentences(checkpoint=str(tmp_path / "gradients")).open_pretrained()
    assert brought.tensors is not None
    expected = brought.tensors(brought.model)
    assert expected.keys() == {name for name, _ in model.named_parameters()} - {"head.weight", "head.bias"}
    for name, gradient in expected.items():
        found = dict(model.named_parameters())[name].grad
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=2e-5, msg=lambda got, name=name: f"{name}: {got}")
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3


def test_padding_and_batch_mates_change_nothing(tmp_path: Path) -> None:
    bert_folder("BERT", tmp_path / "peer")
    model = started(sentence_task(tmp_path / "peer"))
    row = torch.tensor([[2, 6, 7, 3]])
    wide = torch.tensor([[2, 6, 7, 3, 0, 0, 0], [2, 5, 5, 5, 5, 5, 3]])
    check_close(model(wide)[:1], model(row))


KEPT = {
    "BERT, signal": ("BertModel", True),
    "BERT, tokens": ("BertForMaskedLM", False),
    "RoBERTa, tokens": ("RobertaForMaskedLM", False),
    "DistilBERT, signal": ("DistilBertModel", False),
    "DistilBERT, classes": ("DistilBertForSequenceClassification", True),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_pretrained_pooler_is_kept_if_there_is_one(name: str, tmp_path: Path) -> None:
    (model, config, settings), (_, has_pooler) = BOTH_SIDES[name], KEPT[name]
    saved((model, config, settings), tmp_path)
    brought = PretrainedSentences(checkpoint=str(tmp_path)).open_pretrained()
    assert brought.tensors is not None
    found = brought.tensors(brought.model)
    assert ("pooler.weight" in found) == has_pooler
    assert not [each for each in found if each.startswith("head.")]
    stored = load_file(tmp_path / "model.safetensors")
    maps = [stored[each] for each in stored if each.endswith(("pooler.dense.weight", "pre_classifier.weight"))]
    if has_pooler:
        assert torch.equal(found["pooler.weight"], maps[0])
    assert isinstance(brought.model, BertSentences.Config)
    assert brought.model.pooling == ("relu" if name.startswith("DistilBERT") else "tanh")


def write_images(folder: Path, size: tuple[int, int], channels: int = 3, count: int = 24) -> str:
    shape = (count, *size, 3) if channels == 3 else (count, *size)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    path = folder / "data.npz"
    np.savez(path, x=pixels, y=np.arange(count) % 2)
    return str(path)


PREPROCESSOR = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "size": {"height": 12, "width": 12}}


def image_task(checkpoint: Path, size: tuple[int, int], channels: int = 3, **settings: Any) -> ImageLearning:
    data = write_images(checkpoint.parent, size, channels)
    return ImageLearning.Config(data=data, model=PretrainedImages(checkpoint=str(checkpoint)), **settings).build()


def seen(task: ImageLearning, mean: list[float], deviation: list[float]) -> tuple[Tensor, Tensor]:
    """A batch of the task, and the same pixels standardised here."""
    indices = torch.arange(3)
    pixels = task.splits.train.images(indices) / 255
    columns = (torch.tensor(each).view(-1, 1, 1) for each in (mean, deviation))
    return task.train_batch(indices, torch.Generator())["images"], (pixels - next(columns)) / next(columns)


def check_images(features: nn.Module, gradients: Callable[[], dict[str, Tensor]], images: Tensor, model: Any) -> None:
    """Compares outputs and all gradients, where `features` gives the pooled channels of the original model."""
    pooled = features(images)
    answer = torch.nn.functional.linear(pooled, model.head.weight, model.head.bias)
    check_close(model(images), answer)
    for logits in (model(images), answer):
        (logits.sin() * torch.arange(1, 3)).sum().backward()
    expected = gradients()
    parameters = dict(model.named_parameters())
    assert expected.keys() == parameters.keys() - {"head.weight", "head.bias"}
    for name, gradient in expected.items():
        found = parameters[name].grad
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=2e-5, msg=lambda got, name=name: f"{name}: {got}")


def brought_images(folder: Path) -> dict[str, Tensor]:
    brought = PretrainedImages(checkpoint=str(folder)).open_pretrained()
    assert brought.tensors is not None
    return brought.tensors(brought.model)


class _First(nn.Module):
    """The last signal of an original model at its class token."""

    def __init__(self, peer: Any) -> None:
        super().__init__()
        self.peer = peer

    def forward(self, images: Tensor) -> Tensor:
        return self.peer(images).last_hidden_state[:, 0]


@pytest.mark.parametrize("name", ["ViT", "DeiT", "DeiT with teacher"])
def test_images_give_the_outputs_and_gradients_of_the_original(name: str, tmp_path: Path) -> None:
    peer: Any = saved(IMAGES[name], tmp_path / "peer")
    (tmp_path / "peer" / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    task = image_task(tmp_path / "peer", (12, 12))
    images, expected = seen(task, PREPROCESSOR["image_mean"], PREPROCESSOR["image_std"])
    check_close(images, expected)
    model = started(task)
    assert isinstance(model, ViT)
    backbone = peer.vit if name == "ViT" else peer.deit

    def gradients() -> dict[str, Tensor]:
        as_gradients(peer).save_pretrained(tmp_path / "gradients")
        return brought_images(tmp_path / "gradients")

    check_images(_First(backbone), gradients, images, model)


@pytest.mark.parametrize("name", ["ViT, mean", "DeiT III", "ConvNeXt"])
def test_images_give_the_outputs_and_gradients_of_timm(name: str, tmp_path: Path) -> None:
    architecture, settings = TIMM[name]
    peer: Any = saved_by_timm(architecture, settings, tmp_path / "peer")
    task = image_task(tmp_path / "peer", (32, 32))
    found = json.loads((tmp_path / "peer" / "config.json").read_text())["pretrained_cfg"]
    images, expected = seen(task, list(found["mean"]), list(found["std"]))
    check_close(images, expected)
    model = started(task)
    peer.reset_classifier(0)

    def gradients() -> dict[str, Tensor]:
        shutil.copytree(tmp_path / "peer", tmp_path / "gradients")
        state = {key: value.contiguous() for key, value in as_gradients(peer).state_dict().items()}
        stored = load_file(tmp_path / "peer" / "model.safetensors")
        save_file(stored | state, tmp_path / "gradients" / "model.safetensors")
        return brought_images(tmp_path / "gradients")

    check_images(peer, gradients, images, model)


@torch.no_grad()
def test_positions_are_interpolated_as_in_the_original(tmp_path: Path) -> None:
    peer: Any = saved(IMAGES["ViT"], tmp_path / "peer")
    (tmp_path / "peer" / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    for size in ((20, 8), (8, 12)):
        task = image_task(tmp_path / "peer", size)
        model, images = started(task), torch.randn(2, 3, *size)
        state = peer.vit(images, interpolate_pos_encoding=True).last_hidden_state[:, 0]
        check_close(model(images), model.head(state))
    with refused(ValueError, "patches of (4, 4) pixels must divide images of (10, 12)"):
        image_task(tmp_path / "peer", (10, 12))


@torch.no_grad()
def test_grey_images_become_equal_channels(tmp_path: Path) -> None:
    saved(IMAGES["ViT"], tmp_path / "peer")
    (tmp_path / "peer" / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    task = image_task(tmp_path / "peer", (12, 12), channels=1)
    grey = task.train_batch(torch.arange(2), torch.Generator())["images"]
    assert grey.shape == (2, 3, 12, 12)
    pixels = grey * torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1) + torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    check_close(pixels[:, 0], pixels[:, 2])
    assert task.model()(grey).shape == (2, 2)


def own_bert(folder: Path, **settings: Any) -> Bert:
    torch.manual_seed(5)
    config: dict[str, Any] = {"embed_dim": 8, "depth": 1, "num_heads": 2, "head": "none", **settings}
    model = noisy(Bert.Config(**config).build(44, 24))
    assert isinstance(model, Bert)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("head", [{}, {"head": "classes", "num_classes": 5, "pooling": "relu"}])
@torch.no_grad()
def test_fine_tuning_a_bert_of_this_library(head: dict[str, Any], tmp_path: Path) -> None:
    own = own_bert(tmp_path / "own", **head)
    tokenizer = MarkedTokenizer.word_pieces(["the cats sat unaffable good one bad number"] * 3, 44)
    (tmp_path / "tokenizer.json").write_text(tokenizer.state)
    with refused(ValueError, "has no tokenizer", "vocab.txt", "pass tokens.file"):
        sentence_task(tmp_path / "own")
    task = sentence_task(tmp_path / "own", tokens=Tokens(file=str(tmp_path / "tokenizer.json")))
    model = started(task)
    for name, tensor in model.bert.state_dict().items():
        assert torch.equal(tensor, own.state_dict()[name])
    if head:
        assert torch.equal(model.pooler.weight, own.state_dict()["head.map.weight"])
        assert isinstance(model.activation, nn.ReLU)


def test_checkpoints_with_changed_kernels_are_refused(tmp_path: Path) -> None:
    own = own_bert(tmp_path / "own")
    add_kernel(own, kernels.LowRankMLP(8, num_heads=2, pos_dim=1, rank=2))
    own.save_pretrained(tmp_path / "own", overwrite=True)
    with refused(ValueError, "holds a model with other kernels than in its settings"):
        sentence_task(tmp_path / "own")


@torch.no_grad()
def test_fine_tuning_image_models_of_this_library(tmp_path: Path) -> None:
    vit = ViT.Config(image_size=(8, 8), patch_size=(4, 4), embed_dim=8, depth=1, num_heads=2, num_classes=7)
    convnext = ConvNeXt.Config(depths=(1, 1), dims=(4, 6), patch_size=2, num_classes=3)
    for number, config in enumerate((vit, convnext)):
        torch.manual_seed(6)
        own: Any = noisy(config.build())
        folder = tmp_path / str(number)
        own.save_pretrained(folder)
        with refused(ValueError, "does not say how pixels are standardised", "pass mean and deviation"):
            image_task(folder, (8, 8))
        model = started(image_task(folder, (8, 8), mean=(0.5,) * 3, deviation=(0.25,) * 3))
        images = torch.randn(2, 3, 8, 8)
        own.head = nn.Identity()
        check_close(model(images), model.head(own(images)))


@CUT
def test_a_run_does_not_need_the_checkpoint_after_its_start(tmp_path: Path) -> None:
    bert_folder("BERT", tmp_path / "peer")
    data = write_sentences(tmp_path, pairs=True)
    task = SentenceLearning.Config(
        data=data, context=20, model=PretrainedSentences(checkpoint=str(tmp_path / "peer")), valid_fraction=0.2
    )
    config = Run.Config(task=task, training=TRAINING)
    first = train(config, tmp_path / "run")
    shutil.rmtree(tmp_path / "peer")
    run = Run(tmp_path / "run")
    assert run.evaluate("test") == pytest.approx(first.metrics)
    run.save_pretrained(tmp_path / "given", "a card")
    files = [Path(data)]
    assert Run(tmp_path / "given").predict(files) == run.predict(files)
    longer = dataclasses.replace(config, training=dataclasses.replace(TRAINING, epochs=3))
    train(longer, tmp_path / "run", resume=True)
    assert Run(tmp_path / "run").step("last") == 3 * 2


REFUSED_SENTENCES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "longer than positions": ({"context": 30}, ("context=30 is more than there are positions, 24; pass fewer",)),
    "tokens that are learnt": (
        {"tokens": Tokens(vocab_size=300)},
        ("vocab_size=300 has no effect with", "tokens of its"),
    ),
}


@pytest.mark.parametrize("name", REFUSED_SENTENCES)
def test_settings_that_contradict_the_checkpoint_are_refused(name: str, tmp_path: Path) -> None:
    settings, message = REFUSED_SENTENCES[name]
    bert_folder("BERT", tmp_path / "peer")
    with refused(ValueError, *message):
        sentence_task(tmp_path / "peer", **settings).model()


def test_texts_truncated_to_the_number_of_positions_are_reported(tmp_path: Path) -> None:
    bert_folder("BERT", tmp_path / "peer")
    data = tmp_path / "long.csv"
    data.write_text("\n".join(["text,label", *(f"{'the cat ' * 20},{n % 2}" for n in range(20))]))
    for context, remedy in ((24, "the model has no more positions"), (20, "a larger context sees all")):
        task = sentence_task(tmp_path / "peer", data=str(data), context=context)
        with pytest.warns(UserWarning, match=remedy):
            assert task.train_lengths.max() == context


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    own_bert(tmp_path / "own")
    write_word_pieces(tmp_path / "own")
    with refused(ValueError, "vocab_size=44, and there are 78 tokens"):
        sentence_task(tmp_path / "own").model()


def test_checkpoints_of_the_wrong_kind_are_named(tmp_path: Path) -> None:
    saved(CAUSAL["GPT-2"], tmp_path / "gpt2")
    saved(IMAGES["ViT"], tmp_path / "vit")
    with refused(ValueError, "holds a GPT2; images are read by ViT, DeiT or ConvNeXt"):
        image_task(tmp_path / "gpt2", (12, 12))
    with refused(ValueError, "holds a ViT; sentences are read by BERT, RoBERTa or DistilBERT"):
        sentence_task(tmp_path / "vit")
    with refused(FileNotFoundError, "no folder", "nowhere"):
        sentence_task(tmp_path / "nowhere")
    with refused(ValueError, "does not say how pixels are standardised"):
        image_task(tmp_path / "vit", (12, 12))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"image_mean": [0.5, "x", 0.5]}, "must be numbers"),
        ({"image_std": [0.5, 0.0, 0.5]}, "must be numbers"),
        ({"rescale_factor": 1.0}, "do_rescale=True by 1.0 is not supported"),
        ({"size": {"height": 12}}, "size must be height and width in pixels"),
    ],
)
def test_the_preprocessor_configuration_is_checked(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved(IMAGES["ViT"], tmp_path / "peer")
    (tmp_path / "peer" / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR | changed))
    with refused(ValueError, "preprocessor_config.json", message):
        image_task(tmp_path / "peer", (12, 12))


def test_init_is_refused_with_a_checkpoint(tmp_path: Path) -> None:
    bert_folder("BERT", tmp_path / "peer")
    with refused(ValueError, "init='there' has no effect with model.checkpoint=", "leave one out"):
        Run.Config(task=sentence_task(tmp_path / "peer").config, training=TRAINING, init="there")


def test_the_learning_rate_of_a_wide_model_is_reduced(tmp_path: Path) -> None:
    data, rates = write_sentences(tmp_path, pairs=True), dict[int, float]()
    for width in (16, 64, 96):
        folder = tmp_path / str(width)
        folder.mkdir()
        size = write_word_pieces(folder)
        settings = {**SIZES, "hidden_size": width, "vocab_size": size, "max_position_embeddings": 24}
        saved(("BertModel", "BertConfig", settings), folder)
        given = SentenceLearning.Config(data=data, model=PretrainedSentences(checkpoint=str(folder)))
        found = given.recommended("small")
        config: Any = found.config
        assert config.context == 24  # the number of positions
        assert config.model == PretrainedSentences(checkpoint=str(folder))
        rates[width] = found.schedule.learning_rate
        assert (found.schedule.epochs, found.schedule.batch_size, found.schedule.weight_decay) == (20, 8, 0.01)
    assert rates == {16: pytest.approx(6e-4), 64: pytest.approx(6e-4), 96: pytest.approx(4e-4)}
