"""Checkpoints that cannot be read: a one-line error names the problem and what to do."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fredholm import from_pretrained
from tests.pretrained.peers import BOTH_SIDES, CAUSAL, IMAGES, TIMM, saved, saved_by_timm
from tests.refusals import refused

TENSORS = "model.safetensors"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    saved(CAUSAL["Llama"], folder)
    return folder


@pytest.fixture
def copied(llama: Path, tmp_path: Path) -> Path:
    return shutil.copytree(llama, tmp_path / "copy")


def changed(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_pickles_are_refused_by_name_and_not_read(copied: Path) -> None:
    (copied / TENSORS).unlink()
    (copied / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with refused(FileNotFoundError, "pytorch_model.bin", "can run code", "save the model as safetensors"):
        from_pretrained(copied)


def test_a_missing_shard(tmp_path: Path) -> None:
    saved(CAUSAL["Llama"], tmp_path, max_shard_size="4KB")
    missing = sorted(tmp_path.glob("*.safetensors"))[1]
    missing.unlink()
    with refused(FileNotFoundError, "lacks the shard", missing.name):
        from_pretrained(tmp_path)


def test_a_wrong_index(tmp_path: Path) -> None:
    saved(CAUSAL["Llama"], tmp_path, max_shard_size="4KB")
    index = next(tmp_path.glob("*.index.json"))
    found = json.loads(index.read_text())
    first = next(iter(found["weight_map"].values()))
    found["weight_map"]["nowhere"] = first
    index.write_text(json.dumps(found))
    with refused(ValueError, "names the tensor 'nowhere'", first):
        from_pretrained(tmp_path)
    found["weight_map"]["nowhere"] = "../outside.safetensors"
    index.write_text(json.dumps(found))
    with refused(ValueError, "files of the same folder"):
        from_pretrained(tmp_path)
    index.write_text("{")
    with refused(ValueError, index.name, "no index of shards"):
        from_pretrained(tmp_path)


def test_a_damaged_file(copied: Path) -> None:
    whole = (copied / TENSORS).read_bytes()
    for damaged in (b"", b"garbage", whole[: len(whole) // 2]):
        (copied / TENSORS).write_bytes(damaged)
        with refused(ValueError, TENSORS, "damaged", "fetch it again"):
            from_pretrained(copied)


WRONG_TENSORS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], list[str]]] = {
    "another shape": (
        lambda found: found.update({"model.norm.weight": torch.ones(17)}),
        ["'norm.weight'", "has shape (17,)", "by the configuration it has (16,)"],
    ),
    "missing": (lambda found: found.pop("model.layers.1.mlp.up_proj.weight"), ["'layers.1.mlp.up_proj.weight'"]),
    "left over": (
        lambda found: found.update({"model.layers.1.self_attn.q_norm.weight": torch.ones(4)}),
        ["'layers.1.self_attn.q_norm.weight'", "no place in Llama", "not supported"],
    ),
    "not a number": (
        lambda found: found["model.norm.weight"][3:4].fill_(torch.nan),
        ["norm.weight holds NaN or infinite numbers"],
    ),
    "whole numbers": (
        lambda found: found.update({"model.norm.weight": torch.ones(16, dtype=torch.int8)}),
        ["'norm.weight'", "torch.int8", "floating-point"],
    ),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_tensors_of_wrong_names_or_shapes(copied: Path, name: str) -> None:
    change, message = WRONG_TENSORS[name]
    found = load_file(copied / TENSORS)
    change(found)
    save_file(found, copied / TENSORS)
    with refused(ValueError, str(copied), *message):
        from_pretrained(copied)


UNSUPPORTED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "architecture": ({"model_type": "t5"}, ["model_type='t5'", "supported: gpt2, llama"]),
    "no architecture": ({"model_type": None}, ["model_type=None"]),
    "activation": ({"hidden_act": "mish"}, ["hidden_act='mish'", "supported: gelu"]),
    "rotary positions": (
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
        ["rope_type='yarn'", "supported: default, linear, llama3"],
    ),
    "rotary positions of older configurations": (
        {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        ["rope_scaling: rope_type='yarn'", "supported: default, linear, llama3"],
    ),
    "rotary factor": ({"rope_parameters": {"rope_type": "linear"}}, ["factor must be a positive number", "None"]),
    "more blocks than tensors": ({"num_hidden_layers": 10**9}, ["num_hidden_layers is 1000000000", "tensors in all"]),
    "heads": ({"head_dim": 8}, ["head_dim=8", "supported: 4"]),
    "sizes": ({"num_hidden_layers": 0}, ["num_hidden_layers must be a whole number of at least 1", "got 0"]),
    "heads that do not divide": ({"num_attention_heads": 3, "head_dim": None}, ["num_heads must divide embed_dim"]),
    "words for numbers": ({"rms_norm_eps": "small"}, ["rms_norm_eps must be a positive number", "'small'"]),
    "words for flags": ({"mlp_bias": "yes"}, ["mlp_bias must be true or false", "'yes'"]),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_configurations(copied: Path, name: str) -> None:
    fields, message = UNSUPPORTED[name]
    changed(copied, **fields)
    with (
        refused(ValueError, "config.json", *message)
        if name != "heads that do not divide"
        else refused(ValueError, *message)
    ):
        from_pretrained(copied)


OTHERS: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "GPT-2": (CAUSAL["GPT-2"], {"scale_attn_weights": False}, ["scale_attn_weights=False", "supported: True"]),
    "Mamba": (CAUSAL["Mamba"], {"use_bias": True}, ["use_bias=True", "supported: False"]),
    "BERT": (BOTH_SIDES["BERT, signal"], {"is_decoder": True}, ["is_decoder=True"]),
    "RoBERTa's head": (
        BOTH_SIDES["RoBERTa, tokens"],
        {"hidden_act": "relu"},
        ["hidden_act='relu' is not supported beside RoBERTa's head over tokens", "supported: gelu"],
    ),
    "relative places": (
        BOTH_SIDES["BERT, signal"],
        {"position_embedding_type": "relative_key"},
        ["position_embedding_type='relative_key'"],
    ),
    "ViT": (IMAGES["ViT"], {"image_size": [12]}, ["image_size must be", "[12]"]),
    "rate": (CAUSAL["GPT-2"], {"resid_pdrop": 1.5}, ["resid_pdrop must be a number from 0 to below 1", "1.5"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_options_of_other_architectures_are_refused(name: str, tmp_path: Path) -> None:
    made, fields, message = OTHERS[name]
    saved(made, tmp_path)
    changed(tmp_path, **fields)
    with refused(ValueError, "config.json", *message):
        from_pretrained(tmp_path)


@pytest.mark.slow
def test_unsupported_architectures_of_timm(tmp_path: Path) -> None:
    saved_by_timm(*TIMM["ViT"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for fields, message in (
        ({"architecture": "resnet50"}, ["architecture='resnet50'", "vit_"]),
        ({"architecture": "vit_base_patch16_224"}, ["vit_base_patch16_224", "192 channels"]),
        ({"architecture": "vit_tiny_patch16_quickgelu_224"}, ["quickgelu"]),
        ({"architecture": "vit_tiny_patch16_rpn_224"}, ["rpn", "norms before their branches"]),
        ({"model_args": {**config["model_args"], "qk_norm": True}}, ["qk_norm=True", "supported: global_pool"]),
        ({"model_args": {**config["model_args"], "global_pool": "map"}}, ["global_pool='map'", "token, avg"]),
    ):
        changed(tmp_path, **(config | fields))
        with refused(ValueError, "config.json", *message):
            from_pretrained(tmp_path)


def test_paths_that_are_no_checkpoint(copied: Path, tmp_path: Path) -> None:
    with refused(FileNotFoundError, "no folder '/nowhere/at/all'", "or hf://owner/name"):
        from_pretrained("/nowhere/at/all")
    with refused(ValueError, "'hf://gpt2' names no repository of the hub", "expected hf://owner/name"):
        from_pretrained("hf://gpt2")
    with refused(ValueError, "is a file", "pass the folder"):
        from_pretrained(copied / TENSORS)
    with refused(ValueError, "revision='main' has no effect", "leave it out"):
        from_pretrained(copied, revision="main")
    with refused(ValueError, "dtype must be a floating-point type", "torch.int8"):
        from_pretrained(copied, dtype=torch.int8)
    with refused(ValueError, "dtype must be a floating-point type", "'float16'"):
        from_pretrained(copied, dtype="float16")  # pyright: ignore[reportArgumentType]
    (copied / "config.json").write_text("[]")
    with refused(ValueError, "config.json", "holds list"):
        from_pretrained(copied)
    (copied / "config.json").write_text("{")
    with refused(ValueError, "config.json", "is not JSON"):
        from_pretrained(copied)
    (copied / "config.json").unlink()
    with refused(FileNotFoundError, "has no config.json"):
        from_pretrained(copied)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "gpt2"}')
    with refused(FileNotFoundError, "has no model.safetensors"):
        from_pretrained(tmp_path / "empty")


def test_a_repository_without_network_access(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="asks the hub; pip install 'fredholm[hub]'")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refused(OSError, "hf://nobody/nothing: the hub gave no such repository", "check the name and the network"):
        from_pretrained("hf://nobody/nothing")


def test_without_the_client_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with refused(ModuleNotFoundError, "pip install 'fredholm[hub]'", "pass a folder"):
        from_pretrained("hf://nobody/nothing")
    with refused(FileNotFoundError, "no folder 'nobody/nothing'", "is written hf://nobody/nothing"):
        from_pretrained("nobody/nothing")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt2", "openai-community/gpt2"),
        ("gpt2-medium", "openai-community/gpt2-medium"),
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("gpt2x", "owner/gpt2x"),
    ],
)
def test_the_error_for_a_bare_name_suggests_its_owner(name: str, message: str) -> None:
    with refused(FileNotFoundError, f"no folder {name!r}", f"is written hf://{message})"):
        from_pretrained(name)
