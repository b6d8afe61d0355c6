"""Checkpoints written by other libraries give the same logits, with masks and caches, and the same texts."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, from_pretrained
from fredholm.models import Bert, Sampling, generate
from fredholm.models.language.decoder import Decoder
from fredholm.pretrained.timm import ARCHITECTURES
from tests.pretrained.peers import (
    BOTH_SIDES,
    CAUSAL,
    IMAGES,
    TIMM,
    noisy,
    saved,
    saved_by_timm,
    timm,
    tokens,
    transformers,
)

PADDED = torch.ones(3, 11, dtype=torch.bool)
PADDED[0, 8:] = False
PADDED[2, 5:] = False

LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 2.0}
ROTARY: list[dict[str, Any]] = [
    {},
    {"rope_theta": 50.0},
    {"rope_theta": 50.0, "rope_parameters": {"rope_type": "default"}},
    {"rope_theta": 50.0, "rope_parameters": LINEAR},
    {"rope_theta": 50.0, "rope_parameters": {**LINEAR, "rope_theta": 70.0}},
    {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_theta": 50.0, "rope_scaling": LINEAR, "rope_parameters": {"rope_type": "default", "rope_theta": 70.0}},
]
"""Fields of configurations of several versions, all of which `transformers` reads."""


def check_close(got: Tensor, expected: Tensor) -> None:
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def has_operators(model: torch.nn.Module, blocks: int) -> bool:
    return sum(isinstance(module, IntegralOperator) for module in model.modules()) == blocks


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_language_models(name: str, tmp_path: Path) -> None:
    peer: Any = saved(CAUSAL[name], tmp_path)
    model, given = from_pretrained(tmp_path), tokens()
    assert isinstance(model, Decoder)
    assert not model.training
    assert has_operators(model, 2)
    check_close(model(given), peer(given).logits)
    # masked tokens on the right do not change earlier ones
    check_close(model(given, PADDED)[PADDED], peer(given, attention_mask=PADDED.long()).logits[PADDED])


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_masked_tokens_on_the_left(name: str, tmp_path: Path) -> None:
    peer: Any = saved(CAUSAL[name], tmp_path)
    model, given, mask = from_pretrained(tmp_path), tokens(), PADDED.flip(1)
    places = {} if name == "Mamba" else {"position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    expected = peer(given, attention_mask=mask.long(), **places).logits
    check_close(model(given, mask)[mask], expected[mask])
    check_close(model(given, mask)[0, 3:], model(given[:1, 3:])[0])


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_text_is_continued_as_by_the_original(name: str, tmp_path: Path) -> None:
    peer: Any = saved(CAUSAL[name], tmp_path)
    model, prompt = from_pretrained(tmp_path), tokens(5, batch=2)
    assert isinstance(model, Decoder)
    drawn = generate(model, prompt, Sampling(temperature=0))
    ours = torch.stack([next(drawn) for _ in range(16)], dim=1)
    peer.generation_config.eos_token_id = None
    theirs = peer.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=16)
    assert torch.equal(ours, theirs[:, 5:])


@torch.no_grad()
def test_a_cache_has_the_sizes_of_that_of_the_original(tmp_path: Path) -> None:
    peer: Any = saved(CAUSAL["Llama 3.1"], tmp_path)
    model, given = from_pretrained(tmp_path), tokens()
    assert isinstance(model, Decoder)
    _, state = model.advance(given[:, :7], model.initial_state(3))
    cache = peer(given[:, :7], use_cache=True).past_key_values
    for (keys, values), layer in zip(state[1:], cache.layers, strict=True):
        check_close(keys, layer.keys)
        check_close(values, layer.values)
    check_close(model.advance(given[:, 7:], state)[0], peer(given[:, 7:], past_key_values=cache).logits)


@pytest.mark.parametrize("fields", ROTARY, ids=repr)
@torch.no_grad()
def test_rotary_positions_follow_the_configuration(fields: dict[str, Any], tmp_path: Path) -> None:
    saved(CAUSAL["Llama"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    peer: Any = transformers().LlamaForCausalLM.from_pretrained(tmp_path).eval()
    given = tokens()
    check_close(from_pretrained(tmp_path)(given), peer(given).logits)


def test_a_sliding_window_limits_the_context(tmp_path: Path) -> None:
    model, config, settings = CAUSAL["Mistral"]
    saved((model, config, {**settings, "max_position_embeddings": 9000}), tmp_path)
    found = json.loads((tmp_path / "config.json").read_text())
    del found["sliding_window"]
    for window, context in (({}, 4096), ({"sliding_window": None}, 9000), ({"sliding_window": 7}, 7)):
        (tmp_path / "config.json").write_text(json.dumps({**found, **window}))
        loaded = from_pretrained(tmp_path)
        assert isinstance(loaded, Decoder)
        assert loaded.context == context
    model, config, settings = CAUSAL["Llama"]  # this model has none
    saved((model, config, {**settings, "max_position_embeddings": 9000}), tmp_path)
    loaded = from_pretrained(tmp_path)
    assert isinstance(loaded, Decoder)
    assert loaded.context == 9000


@pytest.mark.parametrize("name", BOTH_SIDES)
@torch.no_grad()
def test_bidirectional_models(name: str, tmp_path: Path) -> None:
    peer: Any = saved(BOTH_SIDES[name], tmp_path)
    model, given = from_pretrained(tmp_path), torch.where(PADDED, tokens(), 1)
    assert isinstance(model, Bert)
    assert has_operators(model, 2)
    more = {} if name.startswith("DistilBERT") else {"token_type_ids": (torch.arange(11) > 5).long().expand(3, -1)}
    segments = more.get("token_type_ids")
    expected = peer(given, attention_mask=PADDED.long(), **more)[0]
    got = model(given, PADDED, segments)
    at = (slice(None),) if name.endswith("classes") else (PADDED,)
    check_close(got[at], expected[at])
    turned = model(given.flip(1), PADDED.flip(1), None if segments is None else segments.flip(1))
    assert turned.shape == got.shape


@pytest.mark.parametrize("name", BOTH_SIDES)
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(name: str, tmp_path: Path) -> None:
    saved(BOTH_SIDES[name], tmp_path)
    model, given = from_pretrained(tmp_path), tokens(7)
    padded = torch.cat([torch.ones(3, 4, dtype=torch.int64), given], dim=1)
    mask = torch.arange(11).expand(3, -1) >= 4
    got = model(padded, mask)
    check_close(got if name.endswith("classes") else got[:, 4:], model(given))


@pytest.mark.parametrize("name", IMAGES)
@torch.no_grad()
def test_image_models(name: str, tmp_path: Path) -> None:
    peer: Any = saved(IMAGES[name], tmp_path)
    model, images = from_pretrained(tmp_path), torch.randn(3, 3, 12, 12)
    assert has_operators(model, 2)
    check_close(model(images), peer(images).logits)


@torch.no_grad()
def test_an_image_model_without_classes(tmp_path: Path) -> None:
    made = ("ViTModel", *IMAGES["ViT"][1:])
    peer: Any = saved(made, tmp_path)
    images = torch.randn(3, 3, 12, 12)
    check_close(from_pretrained(tmp_path)(images), peer(images).last_hidden_state[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM)
@torch.no_grad()
def test_image_models_of_timm(name: str, tmp_path: Path) -> None:
    architecture, settings = TIMM[name]
    peer = saved_by_timm(architecture, settings, tmp_path)
    model, size = from_pretrained(tmp_path), settings.get("img_size", 64)
    images = torch.randn(2, 3, size, size)
    check_close(model(images), peer(images))


@pytest.mark.long
@torch.no_grad()
def test_every_architecture_of_timm_equals_the_original_or_is_refused(tmp_path: Path) -> None:
    library, read = timm(), []
    for name in library.list_models():
        if not name.startswith(tuple(ARCHITECTURES)) or name.endswith("_sapiens2"):  # full size only
            continue
        size = 56 if "14" in name else 64
        small = {"depths": (1, 1, 1, 1)} if name.startswith("convnext") else {"depth": 1, "img_size": size}
        peer = noisy(library.create_model(name, num_classes=5, **small))
        importlib.import_module("timm.models._hub").save_for_hf(peer, tmp_path, safe_serialization=True)
        config = json.loads((tmp_path / "config.json").read_text())
        config |= {"model_args": {}, "pretrained_cfg": {"input_size": [3, size, size]}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        try:
            model = from_pretrained(tmp_path)
        except ValueError:
            continue
        images = torch.randn(2, 3, size, size)
        # far closer than with another activation or epsilon
        assert (model(images) - peer(images)).abs().max() < 1e-5, name
        read.append(name)
    assert len(read) > 90


@torch.no_grad()
def test_shards_are_read_together(tmp_path: Path) -> None:
    peer: Any = saved(CAUSAL["Llama"], tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    given = tokens()
    check_close(from_pretrained(tmp_path)(given), peer(given).logits)


def test_the_dtype_can_be_chosen(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    peer: Any = GPT2LMHeadModel(GPT2Config(**CAUSAL["GPT-2"][2]))
    peer.to(torch.bfloat16).save_pretrained(tmp_path)
    for dtype, got in ((None, torch.bfloat16), (torch.float32, torch.float32), (torch.float64, torch.float64)):
        assert {p.dtype for p in from_pretrained(tmp_path, dtype=dtype).parameters()} == {got}
    assert all(p.requires_grad and p.device.type == "cpu" for p in from_pretrained(tmp_path).parameters())


def test_weights_of_gpt2_are_contiguous_along_their_longer_axis(tmp_path: Path) -> None:
    saved(CAUSAL["GPT-2"], tmp_path)
    model = from_pretrained(tmp_path)
    wide, deep = (model.get_parameter(f"blocks.0.feed_forward.{name}.weight") for name in ("expand", "contract"))
    assert (wide.shape[0] > wide.shape[1], wide.stride(0)) == (True, 1)
    assert (deep.shape[0] < deep.shape[1], deep.stride(1)) == (True, 1)
    assert model.get_parameter("tokens.weight").stride(0) == 1
