"""Small models of the original libraries with random weights, saved in their formats."""

import functools
import importlib
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm.storage.tensors import fill
from fredholm.tasks.task import Task
from fredholm.tasks.text import MARKS
from fredholm.tasks.text.byte_pairs import byte_letters
from fredholm.training.start import SourceRun, starting_tensors

VOCABULARY = 19
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TEXT: dict[str, Any] = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 24}
KEYS: dict[str, Any] = {**TEXT, "num_key_value_heads": 2}
IMAGE: dict[str, Any] = {**SIZES, "image_size": 12, "patch_size": 4, "num_labels": 5}
GPT2: dict[str, Any] = {"vocab_size": VOCABULARY, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 4}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
DISTILBERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 24,
    "max_position_embeddings": 24,
}
MAMBA: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}

Made = tuple[str, str, dict[str, Any]]
"""Names of a model class and a configuration class of transformers, and settings."""

CAUSAL: dict[str, Made] = {
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "GPT-2, scaled by layer, wider, untied": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {**GPT2, "n_inner": 40, "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False}
        | {"activation_function": "relu"},
    ),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", KEYS),
    "Llama, constants, tied": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**KEYS, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 4},
    ),
    "Llama 3.1": ("LlamaForCausalLM", "LlamaConfig", {**KEYS, "rope_parameters": LLAMA3}),
    "Llama, stretched": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**KEYS, "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
    ),
    "Mistral": ("MistralForCausalLM", "MistralConfig", KEYS),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", KEYS),
    "Mamba": ("MambaForCausalLM", "MambaConfig", MAMBA),
}
BOTH_SIDES: dict[str, Made] = {
    "BERT, tokens": ("BertForMaskedLM", "BertConfig", TEXT),
    "BERT, classes": ("BertForSequenceClassification", "BertConfig", {**TEXT, "num_labels": 3, "hidden_act": "relu"}),
    "BERT, signal": ("BertModel", "BertConfig", TEXT),
    "RoBERTa, tokens": ("RobertaForMaskedLM", "RobertaConfig", TEXT),
    "RoBERTa, classes": ("RobertaForSequenceClassification", "RobertaConfig", {**TEXT, "num_labels": 3}),
    "DistilBERT, tokens": ("DistilBertForMaskedLM", "DistilBertConfig", DISTILBERT),
    "DistilBERT, classes": ("DistilBertForSequenceClassification", "DistilBertConfig", DISTILBERT),
    "DistilBERT, signal": ("DistilBertModel", "DistilBertConfig", DISTILBERT),
}
IMAGES: dict[str, Made] = {
    "ViT": ("ViTForImageClassification", "ViTConfig", IMAGE),
    "ViT, without constants": ("ViTForImageClassification", "ViTConfig", {**IMAGE, "qkv_bias": False}),
    "DeiT": ("DeiTForImageClassification", "DeiTConfig", IMAGE),
    "DeiT with teacher": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", IMAGE),
}
SMALL_VIT: dict[str, Any] = {"embed_dim": 192, "depth": 2, "img_size": 32, "num_classes": 5}
TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("vit_tiny_patch16_224", SMALL_VIT),
    "ViT, mean": ("vit_tiny_patch16_224", {**SMALL_VIT, "global_pool": "avg"}),
    "DeiT": ("deit_tiny_patch16_224", SMALL_VIT),
    "DeiT, distilled": ("deit_tiny_distilled_patch16_224", SMALL_VIT),
    "DeiT III": ("deit3_small_patch16_224", {**SMALL_VIT, "embed_dim": 384}),
    "DINOv2": ("vit_small_patch14_reg4_dinov2", {**SMALL_VIT, "embed_dim": 384, "img_size": 28, "num_classes": 0}),
    "CLIP": ("vit_base_patch16_clip_224", {**SMALL_VIT, "embed_dim": 768, "depth": 1}),
    "ViT of 16 heads": ("vit_base_patch16_gap_224", {**SMALL_VIT, "embed_dim": 768, "depth": 1, "num_heads": 16}),
    "SigLIP": ("vit_base_patch32_siglip_gap_256", {**SMALL_VIT, "embed_dim": 768, "depth": 1, "img_size": 64}),
    "ConvNeXt, norms of 1e-5": ("convnext_xxlarge", {"depths": (1, 1, 1, 1), "dims": (8, 12, 16, 20)}),
    "ConvNeXt": ("convnext_atto", {"depths": (2, 1, 1, 1), "dims": (8, 12, 16, 20), "num_classes": 5}),
}
BUILT_SMALLER = ("embed_dim", "depth", "depths", "dims")
"""Settings of an architecture that these tests reduce, and that the loader infers from the tensors."""


WORDS = ("the", "cat", "sat", "good", "bad", "un", "##aff", "##able", "##s", "##at", "number", "straße", "cafe", "数学")
JOINED = ("t h", "th e", "Ġ c", "a t", "Ġc at", "Ġ g", "o o", "Ġg oo", "Ġgoo d", "Ã ¤")


def write_word_pieces(folder: Path, letters: str = "") -> int:
    """Writes a `vocab.txt` of BERT with words, letters and continuation letters; returns the number of tokens."""
    known = sorted({letter for letter in letters + "abcdefghijklmnopqrstuvwxyz0123456789.,!?" if not letter.isspace()})
    tokens = [*MARKS, *WORDS, *known[::2], *(f"##{letter}" for letter in known)]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(tokens)) + "\n", encoding="utf-8")
    return len(dict.fromkeys(tokens))


def write_byte_pairs(folder: Path) -> int:
    """Writes `vocab.json` and `merges.txt` in RoBERTa's format; returns the number of tokens."""
    joined = [pair.replace(" ", "") for pair in JOINED]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(byte_letters()), *joined, "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: n for n, token in enumerate(tokens)}), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *JOINED]) + "\n", encoding="utf-8")
    return len(tokens)


def transformers() -> Any:
    """The library transformers; skips the test if it is missing."""
    return pytest.importorskip("transformers", reason="compares with transformers; pip install 'fredholm[peers]'")


def noisy(model: nn.Module) -> nn.Module:
    """Adds noise to all weights, so that every tensor has an influence."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("A_log"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def saved(made: Made, folder: Path, **form: Any) -> nn.Module:
    """Saves a model of the original library with random weights, and returns it."""
    library, (model, config, settings) = transformers(), made
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2} if "vocab_size" in settings else {}
    built = noisy(getattr(library, model)(getattr(library, config)(**{**ids, **settings})))
    built.save_pretrained(folder, **form)  # pyright: ignore[reportCallIssue]
    return built


def tokens(length: int = 11, batch: int = 3) -> Tensor:
    """Tokens other than padding."""
    return torch.randint(3, VOCABULARY, (batch, length))


TORCHVISION = (
    "torchvision",
    "torchvision.ops",
    "torchvision.ops.misc",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.models",
    "torchvision.models.feature_extraction",
    "torchvision.datasets",
)
"""Modules of torchvision that timm imports."""


class Nothing(type):
    """A metaclass whose attributes are their own names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Empty(types.ModuleType):
    """A module that has every attribute, none of which does anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {})


@functools.cache
def timm() -> Any:
    """The library timm; skips the test if it is missing.

    timm imports torchvision, which it needs for data alone and which is not available everywhere that these tests
    run. Empty modules replace it while timm is imported.
    """
    if importlib.util.find_spec("timm") is None:
        pytest.skip("compares with timm; pip install --no-deps timm")
    absent = () if importlib.util.find_spec("torchvision") is not None else TORCHVISION
    for name in absent:
        module = sys.modules[name] = Empty(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, module)
    try:
        return importlib.import_module("timm")
    finally:
        for name in absent:
            del sys.modules[name]


def saved_by_timm(architecture: str, settings: dict[str, Any], folder: Path) -> nn.Module:
    """Saves a model of timm with random weights and reduced sizes, and returns it."""
    library = timm()
    if architecture.startswith(("vit", "deit")):
        settings = {"num_heads": HEADS[settings["embed_dim"]], **settings}
    model = noisy(library.create_model(architecture, **settings))
    importlib.import_module("timm.models._hub").save_for_hf(model, folder, safe_serialization=True)
    config = json.loads((folder / "config.json").read_text())
    config["model_args"] = {
        name: value for name, value in config["model_args"].items() if name not in (*BUILT_SMALLER, "num_heads")
    }
    (folder / "config.json").write_text(json.dumps(config))
    return model


HEADS = {192: 3, 384: 6, 768: 12}


TEXT_MARKS = {"GPT-2": (None, "<|endoftext|>"), "Llama 3": ("<|begin_of_text|>", "<|end_of_text|>")}
TEXT_MARKS |= {"GPT-NeoX": (None, "<|endoftext|>"), "Llama 2": ("<s>", "</s>")}
"""Marks at the start and the end of a text, by kind of tokenizer."""


def write_text_tokens(folder: Path, kind: str, files: str = "tokenizer.json") -> int:
    """Writes the tokenizer of a language model; returns the number of tokens.

    Llama 2's is over characters, with a space before every text and bytes for what is no token; the others are over
    bytes. GPT-NeoX's has runs of spaces as added tokens and composes letters.
    """
    library = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    (start, end), pairs = TEXT_MARKS[kind], [(pair.split(" ")[0], pair.split(" ")[1]) for pair in JOINED]
    marks = [mark for mark in (start, end) if mark is not None]
    if kind == "Llama 2":
        pairs = [(first.replace("Ġ", "▁"), second) for first, second in pairs[:-1]]
        pairs += [("s", ">"), ("<", "/"), ("</", "s>")]
        letters = ["▁", *"abcdefghijklmnopqrstuvwxyz<>/é"]
        alphabet = [*(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    else:
        alphabet = sorted(byte_letters())
    joined = ["".join(pair) for pair in pairs]
    vocabulary = {token: n for n, token in enumerate(dict.fromkeys(["<unk>", *marks, *alphabet, *joined]))}
    made = library.Tokenizer(models.BPE(vocabulary, pairs, unk_token="<unk>", byte_fallback=kind == "Llama 2"))
    made.add_special_tokens(["<unk>", *marks])
    if kind == "Llama 2":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        spaces, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
        made.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), strip])
    else:
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if kind == "Llama 3":
        words = pre_tokenizers.Split(library.Regex(r" ?\w+|\s+|[^\w\s]+"), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([words, level])
    if kind == "GPT-NeoX":
        made.normalizer = normalizers.NFC()
        made.add_tokens([library.AddedToken(" " * size, normalized=True) for size in (4, 2)])
    if start is not None:
        made.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, made.token_to_id(start))]
        )
    folder.mkdir(exist_ok=True, parents=True)
    named = end if files != "tokenizer.json" else {"__type": "AddedToken", "content": end, "special": True}
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}), encoding="utf-8")
    if files == "tokenizer.json":
        made.save(str(folder / "tokenizer.json"))
    else:
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *JOINED]) + "\n", encoding="utf-8")
    return max(made.get_vocab().values()) + 1


def no_run(place: str) -> SourceRun:
    raise AssertionError(place)


def started(task: Task) -> Any:
    """The model of a task as a new run has it before its first step, in evaluation mode."""
    tensors = starting_tensors(task, 0, None, no_run)
    torch.manual_seed(1)
    model = task.model().eval()
    fill(model, tensors)
    return model


def as_gradients(peer: Any) -> Any:
    """Replaces the parameters of a model by their gradients, so that a checkpoint of it holds gradients."""
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    return peer
