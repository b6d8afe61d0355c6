"""Runs on text that start from a checkpoint: tokens, logits, gradients and samples equal those of the original."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm.models import Bert, BertMasked, Llama, Sampling
from fredholm.models.itnet import ITNet
from fredholm.models.language.ckcnn_text import CKCNNText
from fredholm.models.language.itnet_text import ITNetLanguageModel
from fredholm.pretrained import PretrainedImages, PretrainedMasked, PretrainedSentences, PretrainedText
from fredholm.tasks import ImageLearning, LanguageModelling, MaskedLanguageModelling, SentenceLearning
from fredholm.tasks.task import Task
from fredholm.tasks.text import (
    IGNORED,
    CheckpointTokens,
    MarkedTokenizer,
    Tokens,
    checkpoint_tokenizer,
    checkpoint_tokens,
)
from fredholm.tasks.text.language_modelling import FEWEST_COUNTED
from fredholm.training import Run, TrainingConfig, train
from tests.pretrained.peers import (
    BOTH_SIDES,
    CAUSAL,
    TEXT_MARKS,
    Made,
    as_gradients,
    noisy,
    saved,
    started,
    transformers,
    write_byte_pairs,
    write_text_tokens,
    write_word_pieces,
)
from tests.refusals import refused

pytest.importorskip("tokenizers")
TRAINING = TrainingConfig(epochs=2, batch_size=4, tensorboard=False, log_every=1, device="cpu")
DOCUMENTS = ("the cat sat on the good cat", "goodness, a cat café", "the  end\nof   it", "12 cats 🙂 ä ok")
KINDS = {
    "GPT-2": ("GPT-2", "tokenizer.json"),
    "GPT-2, older files": ("GPT-2", "vocab.json"),
    "GPT-NeoX": ("GPT-NeoX", "tokenizer.json"),
    "Llama 2": ("Llama 2", "tokenizer.json"),
    "Llama 3": ("Llama 3", "tokenizer.json"),
}


def brought(kind: str, folder: Path) -> CheckpointTokens:
    found = checkpoint_tokens(folder)
    assert found is not None, kind
    return found


def write_text(folder: Path) -> str:
    path = folder / "text.txt"
    path.write_text("\n\n".join(DOCUMENTS * 6), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", KINDS)
def test_texts_have_the_tokens_of_the_original_and_decode_to_their_bytes(name: str, tmp_path: Path) -> None:
    kind, files = KINDS[name]
    write_text_tokens(tmp_path, kind, files)
    (tmp_path / "config.json").write_text("{}")
    tokenizer, (start, end) = brought(kind, tmp_path), TEXT_MARKS[kind]
    if files == "tokenizer.json":
        peer: Any = transformers().PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / files))
    else:
        peer = transformers().GPT2Tokenizer.from_pretrained(tmp_path)
    for text in (*DOCUMENTS, "", " ", "\n\n", "a" * 300, "\x00\x7f é x", "数学 straße"):
        found = tokenizer.encode(text)
        assert found.tolist() == peer(text, add_special_tokens=False)["input_ids"], text
        got = tokenizer.decode(found.tolist())
        assert got.decode() == (f" {text}" if text and kind == "Llama 2" else text)
        assert int(tokenizer.num_bytes[found.long()].sum()) == len(got)
    assert tokenizer.end_of_text == peer.convert_tokens_to_ids(end)
    assert tokenizer.start_of_text == (None if start is None else peer.convert_tokens_to_ids(start))
    assert tokenizer.num_bytes[tokenizer.end_of_text] == 1
    assert tokenizer.vocab_size == len(peer)
    for mark in filter(None, ("<unk>" if files == "tokenizer.json" else None, start, end)):
        assert tokenizer.token_bytes(peer.convert_tokens_to_ids(mark)) == b""
    assert tokenizer.reads_pieces == (kind == "GPT-2")  # the others may look across lines
    for mark in filter(None, (start, end)):  # a mark written out is text
        spelt = tokenizer.encode(f"the {mark} cat").tolist()
        assert not {tokenizer.end_of_text, tokenizer.start_of_text} & {*spelt}
        assert tokenizer.decode(spelt).decode().strip() == f"the {mark} cat"
    assert len({*tokenizer.token_names}) == tokenizer.vocab_size
    again = CheckpointTokens(tokenizer.state)
    assert (again.state, again.end_of_text, again.start_of_text) == (
        tokenizer.state, tokenizer.end_of_text, tokenizer.start_of_text,
    )  # fmt: skip


def text_peer(name: str, folder: Path, kind: str, more: int = 3) -> Any:
    """Saves a language model of the original library with random weights and a tokenizer, and `more` unused rows."""
    size = write_text_tokens(folder, kind)
    model, config, settings = CAUSAL[name]
    # without padding, whose row has no gradient in some original models
    return saved((model, config, {**settings, "vocab_size": size + more, "pad_token_id": None}), folder)


def text_task(checkpoint: Path, **settings: Any) -> LanguageModelling:
    given = {"data": write_text(checkpoint.parent), "documents": "blank line", "context": 16, **settings}
    return LanguageModelling.Config(**given, model=PretrainedText(checkpoint=str(checkpoint))).build()


def check_gradients(task: Task, model: nn.Module, expected: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    assert parameters.keys() == expected.keys()
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
    for name, gradient in expected.items():
        found = parameters[name].grad
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=5e-5, msg=lambda got, name=name: f"{name}: {got}")


PEERS = {"GPT-2": "GPT-2", "GPT-2, scaled by layer, wider, untied": "GPT-2", "Llama": "Llama 2", "Llama 3.1": "Llama 3"}
PEERS |= {"Qwen2": "GPT-2", "Mamba": "GPT-NeoX"}


@pytest.mark.parametrize("name", PEERS)
def test_the_loss_of_a_batch_and_its_gradients_equal_those_of_the_original(name: str, tmp_path: Path) -> None:
    peer = text_peer(name, tmp_path / "peer", PEERS[name])
    task = text_task(tmp_path / "peer")
    model = started(task)
    batch = task.train_batch(torch.arange(3), torch.Generator())
    assert batch["inputs"].shape == (3, 16)
    size = task.tokenizer.vocab_size
    loss = task.loss(model, batch)
    logits = peer(batch["inputs"]).logits[..., :size]  # rows without a token are removed
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    loss.backward()
    expected.backward()
    as_gradients(peer).save_pretrained(tmp_path / "gradients")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "peer" / file, tmp_path / "gradients")
    elsewhere = text_task(tmp_path / "gradients").pretrained_weights()
    assert elsewhere is not None
    check_gradients(task, model, elsewhere.tensors)


@pytest.mark.parametrize("kind", TEXT_MARKS)
def test_documents_are_joined_with_the_marks_of_the_original(kind: str, tmp_path: Path) -> None:
    text_peer("GPT-2", tmp_path / "peer", kind)
    task = text_task(tmp_path / "peer")
    tokenizer = task.tokenizer
    start, end = tokenizer.start_of_text, tokenizer.end_of_text
    expected = list[int]()
    texts = [*task.splits.train]
    assert len(texts) > len(DOCUMENTS)
    for text in texts:
        own = tokenizer.encode(text).tolist()
        expected += [end, *own] if start is None else [start, *own, end]
    assert task.train_stream.tokens.tolist() == expected


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_generated_text_equals_that_of_the_original(name: str, tmp_path: Path) -> None:
    peer = text_peer(name, tmp_path / "peer", PEERS[name], more=0)
    task = text_task(tmp_path / "peer")
    model, tokenizer = started(task), task.tokenizer
    start = [] if tokenizer.start_of_text is None else [tokenizer.start_of_text]
    given = torch.tensor([[*start, *tokenizer.encode("the cat").tolist()]])
    expected = peer.generate(given, do_sample=False, max_new_tokens=6, eos_token_id=None, pad_token_id=0)[
        0, given.shape[1] :
    ]
    options = {"max_tokens": 6, "sampling": Sampling(temperature=0), "device": torch.device("cpu")}
    drawn = task.generate(model, "the cat", generator=torch.Generator(), **options)
    found = [piece.token for piece in drawn]
    assert found == expected.tolist()[: len(found)]
    assert len(found) == 6 or found[-1] == tokenizer.end_of_text


@pytest.mark.parametrize("kind", ["BERT", "RoBERTa", "DistilBERT"])
def test_masked_tokens_are_predicted_as_by_the_original(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    folder.mkdir()
    size = write_byte_pairs(folder) if kind == "RoBERTa" else write_word_pieces(folder)
    model, config, settings = BOTH_SIDES[f"{kind}, tokens"]
    pad = {"pad_token_id": 1 if kind == "RoBERTa" else 0}
    peer: Any = saved((model, config, {**settings, "vocab_size": size + 2, **pad}), folder)
    task = masked_task(folder, packed=False)
    ours = started(task)
    assert isinstance(ours, BertMasked)
    batch = task.train_batch(torch.arange(5), torch.Generator().manual_seed(0))
    exists = batch["inputs"] != task.tokenizer.marks.pad
    assert not exists.all()
    logits = peer(batch["inputs"], attention_mask=exists.long()).logits[..., :size]
    torch.testing.assert_close(ours(batch["inputs"])[exists], logits[exists], rtol=1e-5, atol=1e-5)
    hidden = batch["targets"] != IGNORED
    expected = nn.functional.cross_entropy(logits[hidden], batch["targets"][hidden], reduction="sum")
    task.loss(ours, batch).backward()
    expected.backward()
    as_gradients(peer).save_pretrained(tmp_path / "gradients")
    for file in folder.glob("*[!s]"):
        if file.suffix != ".safetensors" and file.name != "config.json":
            shutil.copy(file, tmp_path / "gradients")
    elsewhere = masked_task(tmp_path / "gradients", packed=False).pretrained_weights()
    assert elsewhere is not None
    check_gradients(task, ours, elsewhere.tensors)


def masked_task(checkpoint: Path, **settings: Any) -> MaskedLanguageModelling:
    given = {"data": write_text(checkpoint.parent), "documents": "blank line", "context": 16, **settings}
    return MaskedLanguageModelling.Config(**given, model=PretrainedMasked(checkpoint=str(checkpoint))).build()


def test_a_missing_head_of_tokens_is_newly_initialised(tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    folder.mkdir()
    size = write_word_pieces(folder)
    for number, head in enumerate(("signal", "classes")):
        model, config, settings = BOTH_SIDES[f"BERT, {head}"]
        saved((model, config, {**settings, "vocab_size": size, "pad_token_id": 0}), folder)
        elsewhere, task = masked_task(folder).pretrained_weights(), masked_task(folder)
        assert elsewhere is not None
        new = dict(task.model().named_parameters()).keys() - elsewhere.tensors.keys()
        assert new == {f"bert.head.{name}" for name in ("map.weight", "map.bias", "norm.weight", "norm.bias", "bias")}
        assert torch.isfinite(task.loss(started(task), task.train_batch(torch.arange(2), torch.Generator()))), number


@pytest.mark.parametrize("command", ["text", "masked"])
def test_a_run_does_not_need_the_checkpoint_after_its_start(command: str, tmp_path: Path) -> None:
    peer = tmp_path / "peer"
    if command == "text":
        text_peer("Llama", peer, "Llama 2")
        task: Any = text_task(peer).config
    else:
        peer.mkdir()
        size = write_word_pieces(peer)
        model, config, settings = BOTH_SIDES["BERT, tokens"]
        saved((model, config, {**settings, "vocab_size": size, "pad_token_id": 0}), peer)
        task = masked_task(peer).config
    whole = Run.Config(task=task, training=TRAINING)
    first = train(whole, tmp_path / "run")
    shutil.rmtree(peer)
    run, steps = Run(tmp_path / "run"), Run(tmp_path / "run").step("last")
    assert run.evaluate("test") == pytest.approx(first.metrics)
    run.save_pretrained(tmp_path / "given", "a card")
    files = [Path(task.data)]
    assert Run(tmp_path / "given").predict(files) == run.predict(files)
    longer = dataclasses.replace(whole, training=dataclasses.replace(TRAINING, epochs=3))
    train(longer, tmp_path / "run", resume=True)
    after: Any = Run(tmp_path / "run")
    assert after.step("last") == steps * 3 // 2
    started_from = dataclasses.replace(whole, init=str(tmp_path / "run"), task=dataclasses.replace(
        after.task.config.in_folder(tmp_path / "run", after.task.facts), data=task.data
    ))  # fmt: skip
    train(started_from, tmp_path / "next")
    next_run: Any = Run(tmp_path / "next")
    assert next_run.task.tokenizer.state == after.task.tokenizer.state


def test_sentence_models_start_from_an_adapted_masked_bert(tmp_path: Path) -> None:
    tokenizer = MarkedTokenizer.word_pieces([*DOCUMENTS, "good bad"] * 3, 60)
    torch.manual_seed(5)
    stack = Bert.Config(embed_dim=8, depth=1, num_heads=2, num_segments=0)
    adapted: Any = noisy(BertMasked.Config(stack=stack).build(tokenizer.vocab_size, 24, pad=0, separator=3))
    adapted.save_pretrained(tmp_path / "adapted")
    (tmp_path / "adapted" / "tokenizer.json").write_text(tokenizer.state)
    data = tmp_path / "data.csv"
    data.write_text("\n".join(["text,label", *(f"the cat {n} is {w},{w}" for n in range(9) for w in ("good", "bad"))]))
    model = PretrainedSentences(checkpoint=str(tmp_path / "adapted"))
    sentences = started(SentenceLearning.Config(data=str(data), context=20, model=model).build())
    given = torch.tensor([[2, 6, 7, 8, 3, 0, 0]])
    assert isinstance(sentences.bert, Bert)
    exists = given != 0
    signal = sentences.signal(given)
    predicted = adapted.bert.head(signal, adapted.bert.tokens.weight)
    torch.testing.assert_close(predicted[exists], adapted(given)[exists])
    again = started(masked_task(tmp_path / "adapted"))
    torch.testing.assert_close(again(given)[exists], adapted(given)[exists])


def test_a_model_of_this_library_needs_a_tokenizer(tmp_path: Path) -> None:
    torch.manual_seed(5)
    size = write_text_tokens(tmp_path / "tokens", "Llama 3")
    own: Any = noisy(Llama.Config(embed_dim=8, depth=1, num_heads=2, num_kv_heads=1).build(size, 24))
    own.save_pretrained(tmp_path / "own")
    with refused(ValueError, "has no tokenizer: expected tokenizer.json, or vocab.json and merges.txt"):
        text_task(tmp_path / "own")
    shutil.copy(tmp_path / "tokens" / "tokenizer.json", tmp_path / "own")
    with refused(ValueError, "the end-of-text token is missing", "eos_token"):
        text_task(tmp_path / "own")
    shutil.copy(tmp_path / "tokens" / "tokenizer_config.json", tmp_path / "own")
    model = started(text_task(tmp_path / "own"))
    given = torch.randint(size, (2, 9))
    torch.testing.assert_close(model(given), own(given))


def test_a_shorter_context_uses_the_first_positions(tmp_path: Path) -> None:
    peer = text_peer("GPT-2", tmp_path / "peer", "GPT-2", more=0)
    given = torch.randint(20, (2, 7))
    for context in (7, 24):
        model = started(text_task(tmp_path / "peer", context=context))
        assert model.context == context
        torch.testing.assert_close(model(given), peer(given).logits, rtol=1e-5, atol=1e-5)
    task = text_task(tmp_path / "peer", context=25)
    for call in (task.pretrained_weights, lambda: task.config.recommended("small")):  # before a step is timed
        with refused(ValueError, "the context is 25, and the model of", "has 24; pass a smaller one"):
            call()


def test_no_ngrams_are_fitted_beside_a_checkpoint(tmp_path: Path) -> None:
    text_peer("GPT-2", tmp_path / "peer", "GPT-2")
    (text := tmp_path / "long.txt").write_text("\n".join(f"{n} times {n} is {n * n}" for n in range(400)))
    task = text_task(tmp_path / "peer", data=str(text), context=16)
    assert task.train_stream.num_targets > FEWEST_COUNTED
    recommended = task.config.recommended("small").config
    assert isinstance(recommended, LanguageModelling.Config)
    assert recommended.ngrams == 0
    with refused(ValueError, "ngrams is 3 with model=PretrainedText"):
        dataclasses.replace(task.config, ngrams=3)


def test_scalar_tensors_are_loaded(tmp_path: Path) -> None:
    torch.manual_seed(5)
    size = write_text_tokens(tmp_path / "tokens", "GPT-2")
    own: Any = noisy(CKCNNText.Config().build(size, 24))
    assert any(tensor.ndim == 0 for tensor in own.state_dict().values())
    own.save_pretrained(tmp_path / "own")
    write_text_tokens(tmp_path / "own", "GPT-2")
    given = torch.randint(size, (2, 9))
    torch.testing.assert_close(started(text_task(tmp_path / "own"))(given), own(given))


def test_an_itnet_keeps_its_context_which_is_its_unit_of_length(tmp_path: Path) -> None:
    torch.manual_seed(5)
    size = write_text_tokens(tmp_path / "tokens", "GPT-2")
    config = ITNetLanguageModel.Config(position_frequencies=2, stack=ITNet.Config(embed_dim=8, depth=1))
    own: Any = noisy(config.build(size, 24))
    own.save_pretrained(tmp_path / "own")
    write_text_tokens(tmp_path / "own", "GPT-2")
    given = torch.randint(size, (2, 9))
    torch.testing.assert_close(started(text_task(tmp_path / "own", context=24))(given), own(given))
    with refused(ValueError, "the context is 16", "whose unit of length it is, has 24; pass context=24"):
        text_task(tmp_path / "own").pretrained_weights()


REFUSED: dict[str, tuple[Made | None, dict[str, Any], tuple[str, ...]]] = {
    "an encoder": (BOTH_SIDES["BERT, tokens"], {}, ("holds a Bert; the next tokens are read by GPT-2, Llama",)),
    "tokens that are learnt": (None, {"vocab_size": 300}, ("vocab_size=300 has no effect with", "tokens of its own")),
    "more tokens than rows": (CAUSAL["GPT-2"], {}, ("the number of tokens is", "has 19; take the tokenizer that")),
    "somebody's tokenizer": (
        None,
        {"tokenizer": "peer/tokenizer.json"},
        ("tokenizer.json: this tokenizer does not lay out a document", "of a run that began with a checkpoint"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_checkpoints_and_settings_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, settings, message = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    text_peer("GPT-2", tmp_path / "peer", "GPT-2")
    if made is not None:
        shutil.rmtree(tmp_path / "peer")
        write_text_tokens(tmp_path / "peer", "GPT-2")
        saved(made, tmp_path / "peer")
    with refused(ValueError, *message):
        text_task(tmp_path / "peer", **settings).pretrained_weights()


def test_a_tokenizer_that_is_not_over_bytes_is_refused(tmp_path: Path) -> None:
    write_text_tokens(tmp_path, "GPT-2")
    (tmp_path / "config.json").write_text("{}")
    found = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**found, "decoder": None}))
    with refused(ValueError, str(tmp_path), "stand for no bytes; expected byte pairs over bytes"):
        checkpoint_tokens(tmp_path)
    vocabulary = {token: number for token, number in found["model"]["vocab"].items() if token != "Ĳ"}
    assert len(vocabulary) < len(found["model"]["vocab"])
    (tmp_path / "tokenizer.json").write_text(json.dumps({**found, "model": {**found["model"], "vocab": vocabulary}}))
    with refused(ValueError, "1 bytes have no token in tokenizer.json, such as Ĳ; expected all 256"):
        checkpoint_tokens(tmp_path)


@pytest.mark.parametrize("mark", ["!", "Ċ"])
def test_a_mark_equal_to_the_token_of_a_byte_is_refused(mark: str, tmp_path: Path) -> None:
    write_text_tokens(tmp_path, "GPT-2")
    number = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"][mark]
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": number}))
    byte = {"!": "0x21", "Ċ": "0x0a"}[mark]
    with refused(ValueError, "with the marks ", f"no token is left for the byte {byte}"):
        checkpoint_tokens(tmp_path)


def rewritten(folder: Path, **parts: Any) -> CheckpointTokens:
    """The tokenizer of a folder after some parts of its tokenizer.json are replaced."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))
    return brought("of a checkpoint", folder)


def test_texts_are_encoded_completely_despite_truncation_and_padding_in_the_tokenizer(tmp_path: Path) -> None:
    write_text_tokens(tmp_path, "GPT-2")
    expected = brought("GPT-2", tmp_path).encode(DOCUMENTS[0]).tolist()
    assert 2 < len(expected) < 90
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    fill_up = {"strategy": {"Fixed": 90}, "direction": "Right", "pad_to_multiple_of": None}
    fill_up |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"}
    for parts in ({"truncation": cut}, {"truncation": None, "padding": fill_up}):
        assert rewritten(tmp_path, **parts).encode(DOCUMENTS[0]).tolist() == expected


def test_a_start_mark_equal_to_the_end_mark_is_used_once(tmp_path: Path) -> None:
    write_text_tokens(tmp_path, "Llama 3")
    start = brought("Llama 3", tmp_path).start_of_text
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|begin_of_text|>"}')
    tokenizer = brought("Llama 3", tmp_path)
    assert (tokenizer.start_of_text, tokenizer.end_of_text) == (None, start)


def test_the_first_of_several_end_marks_is_used(tmp_path: Path) -> None:
    write_text_tokens(tmp_path, "Llama 3")
    end = brought("Llama 3", tmp_path).end_of_text
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [end, 0]}))
    assert brought("Llama 3", tmp_path).end_of_text == end


def test_tokenizers_that_prepend_a_space_read_texts_exactly(tmp_path: Path) -> None:
    write_text_tokens(tmp_path, "GPT-2")
    level = {"type": "ByteLevel", "trim_offsets": True}
    for prefix, regex in ((False, True), (True, True), (False, False)):
        found = rewritten(tmp_path, pre_tokenizer={**level, "add_prefix_space": prefix, "use_regex": regex})
        assert found.reads_pieces == (not prefix and regex)


def test_an_end_of_text_mark_that_is_not_a_token_is_refused(tmp_path: Path) -> None:
    write_text_tokens(tmp_path, "GPT-2")
    (tmp_path / "config.json").write_text('{"eos_token_id": 1}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    with refused(ValueError, "tokenizer_config.json: eos_token is '<end>', which is none of the tokens"):
        checkpoint_tokens(tmp_path)


@pytest.mark.parametrize(
    ("task", "model"),
    [
        (LanguageModelling, PretrainedText), (MaskedLanguageModelling, PretrainedMasked),
        (SentenceLearning, PretrainedSentences), (ImageLearning, PretrainedImages),
    ],
)  # fmt: skip
def test_the_settings_name_the_initial_checkpoint(task: Any, model: Any) -> None:
    assert task.Config(data="here").initial_checkpoint is None
    assert task.Config(data="here", model=model(checkpoint="bert")).initial_checkpoint == "bert"
    assert task.Config(data="here", model=model(checkpoint="bert", revision="main")).initial_checkpoint == "bert (main)"


def test_the_error_for_a_damaged_file_names_it_once(tmp_path: Path) -> None:
    write_byte_pairs(tmp_path)
    file = tmp_path / "vocab.json"
    file.write_text("{")
    with pytest.raises(ValueError, match="is not JSON") as found:
        checkpoint_tokenizer(tmp_path)
    assert str(found.value).count(str(file)) == 1


def test_masked_models_refuse_settings_that_contradict_a_checkpoint(tmp_path: Path) -> None:
    model = PretrainedMasked(checkpoint="nowhere")
    with refused(ValueError, "vocab_size=300 has no effect with", "tokens of its own"):
        MaskedLanguageModelling.Config(data="text.txt", tokens=Tokens(vocab_size=300), model=model)
    with refused(ValueError, "models.BertMasked: stack.head='none' predicts no masked tokens"):
        BertMasked.Config(stack=Bert.Config(head="none"))
