"""Saved models: the files, and what cannot be saved or read."""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fredholm import from_pretrained, kernels, models, quadrature
from fredholm.models.saved_model import SavedModel
from fredholm.operators import IntegralOperator
from fredholm.pretrained import add_kernel, linearise
from fredholm.storage.integrity import listed, seal
from fredholm.storage.model_folder import ModelFolder
from fredholm.storage.tensors import model_tensors, tensor_bytes
from tests.refusals import refused

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


def gpt2() -> models.GPT2:
    torch.manual_seed(0)
    return models.GPT2.Config(embed_dim=8, depth=1, num_heads=2).build(9, 6).eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    gpt2().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def changed(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes config.json as another program could that updates its checksum."""
    path = folder / "config.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_bytes(seal(content))


def with_other_byte(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def with_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    data = tensor_bytes(tensors, {})
    (folder / "model.safetensors").write_bytes(data)
    changed(folder, lambda content: content.update(files={"model.safetensors": listed(data)}))


def test_shards_hold_the_same_as_one_file(tmp_path: Path) -> None:
    model = gpt2()
    model.save_pretrained(tmp_path / "shards", shard_bytes=600)
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in (tmp_path / "shards").glob("*.safetensors"))
    assert len(shards) > 2
    assert shards == sorted(set(index["weight_map"].values()))
    assert index["weight_map"].keys() == model_tensors(model).keys()
    read = from_pretrained(tmp_path / "shards")
    assert torch.equal(read(TOKENS), model(TOKENS))
    (tmp_path / "shards" / shards[1]).unlink()
    with refused(ValueError, shards[1], "missing", "fetch it again"):
        from_pretrained(tmp_path / "shards")


def test_half_precision_is_kept_or_converted(tmp_path: Path) -> None:
    model = gpt2().to(torch.bfloat16)
    model.save_pretrained(tmp_path / "half")
    assert from_pretrained(tmp_path / "half", dtype=None).get_parameter("norm.weight").dtype == torch.bfloat16
    read = from_pretrained(tmp_path / "half")
    assert read.get_parameter("norm.weight").dtype == torch.float32
    assert torch.equal(read(TOKENS), model.float()(TOKENS))


def test_loading_does_not_change_the_random_state(saved: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    from_pretrained(saved)
    assert torch.equal(torch.rand(3), expected)


def test_a_non_empty_folder_is_not_overwritten(saved: Path, tmp_path: Path) -> None:
    with refused(ValueError, "saved", "not empty", "overwrite"):
        gpt2().save_pretrained(saved)
    (saved / "notes.txt").write_text("mine")
    gpt2().save_pretrained(saved, overwrite=True, shard_bytes=600)
    assert (saved / "notes.txt").read_text() == "mine"
    assert not (saved / "model.safetensors").exists()
    from_pretrained(saved)
    with refused(ValueError, "notes.txt", "is a file"):
        gpt2().save_pretrained(saved / "notes.txt")
    (saved / "config.json").write_text('{"run": {}}')
    with refused(ValueError, "config.json", "of no saved model", "another folder"):
        gpt2().save_pretrained(saved, overwrite=True)
    assert (saved / "config.json").read_text() == '{"run": {}}'
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


WRONG: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "damaged weights": (
        lambda folder: with_other_byte(folder / "model.safetensors"),
        ["model.safetensors", "damaged", "SHA-256", "config.json lists", "fetch it again"],
    ),
    "a damaged config": (
        lambda folder: (folder / "config.json").write_text(
            (folder / "config.json").read_text().replace('"depth": 1', '"depth": 2')
        ),
        ["config.json", "damaged", "fetch it again"],
    ),
    "a newer version": (
        lambda folder: changed(folder, lambda content: content.update(format=2, version="9.1")),
        ["config.json", "format 2", "fredholm 9.1", "update fredholm"],
    ),
    "a class of another library": (
        lambda folder: changed(folder, lambda content: content["model"].update(type="os.system")),
        ["config.json", "model", "'os.system'", "expected one of", "GPT2"],
    ),
    "a class that is no model": (
        lambda folder: changed(folder, lambda content: content["model"].update(type="Image")),
        ["config.json", "'Image'", "expected one of"],
    ),
    "an unknown field": (
        lambda folder: changed(folder, lambda content: content["model"]["config"].update(wings=2)),
        ["config.json", "model.config", "'wings'"],
    ),
    "a field out of range": (
        lambda folder: changed(folder, lambda content: content["model"]["config"].update(num_heads=3)),
        ["config.json", "num_heads", "3"],
    ),
    "a field that is not there": (
        lambda folder: changed(folder, lambda content: content["model"].pop("context")),
        ["config.json", "context"],
    ),
    "a tensor that is missing": (
        lambda folder: with_tensors(
            folder, {name: each for name, each in model_tensors(gpt2()).items() if name != "norm.bias"}
        ),
        ["saved", "lacks 1", "norm.bias"],
    ),
    "a tensor of another shape": (
        lambda folder: with_tensors(folder, model_tensors(gpt2()) | {"norm.bias": torch.zeros(3)}),
        ["saved", "norm.bias", "(3,)", "expected", "(8,)"],
    ),
    "a weight that is not a number": (
        lambda folder: with_tensors(folder, model_tensors(gpt2()) | {"norm.bias": torch.full((8,), torch.nan)}),
        ["saved", "norm.bias holds NaN or infinite numbers", "expected finite weights"],
    ),
    "another kind": (
        lambda folder: changed(folder, lambda content: content.update(kind="banana")),
        ["config.json is of kind 'banana'", "expected one of model, run", "fetch it again"],
    ),
    "no kind": (lambda folder: changed(folder, lambda content: content.pop("kind")), ["config.json is of kind None"]),
    "a file elsewhere": (
        lambda folder: changed(
            folder, lambda content: content.update(files={"../a.safetensors": {"bytes": 1, "sha256": ""}})
        ),
        ["config.json", "../a.safetensors"],
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_bad_folders_give_a_one_line_error(wrong: str, saved: Path) -> None:
    change, words = WRONG[wrong]
    change(saved)
    with refused(ValueError, *words):
        from_pretrained(saved)


def with_other_nodes(model: models.GPT2) -> IntegralOperator:
    operator = model.get_submodule("blocks.0.operator")
    assert isinstance(operator, IntegralOperator)
    return operator.with_quadrature(quadrature.Anchors(2))


class Custom(kernels.Pointwise):  # pyright: ignore[reportGeneralTypeIssues] - Python lets users do so
    """A kernel without a representation in a file."""


CHANGES: dict[str, tuple[Callable[[models.GPT2], Any], list[str]]] = {
    "another rate": (lambda model: setattr(model.dropout, "p", 0.7), ["dropout.p is 0.7 in place of 0.1"]),
    "another part": (lambda model: setattr(model, "norm", nn.Identity()), ["norm", "Identity", "LayerNorm"]),
    "another size": (
        lambda model: setattr(model.tokens, "weight", nn.Parameter(torch.zeros(11, 8))),
        ["tokens.weight is (11, 8)"],
    ),
    "other nodes": (
        lambda model: setattr(model.get_submodule("blocks.0"), "operator", with_other_nodes(model)),
        ["blocks.0.operator", "quadrature"],
    ),
}


def test_changed_pairs_of_numbers_in_kernels_are_not_saved(tmp_path: Path) -> None:
    config = models.ConvNeXt.Config(depths=(1,), dims=(4,), kernel_size=3, num_classes=2)
    model = config.build()
    kernel: Any = model.get_submodule("stages.0.blocks.0.operator.kernel")
    kernel.dilation = (2, 2)
    with refused(ValueError, "kernel.dilation is (2, 2) in place of (1, 1)", "state_dict"):
        model.save_pretrained(tmp_path / "saved")


@pytest.mark.parametrize("change", CHANGES)
def test_changes_that_the_settings_do_not_describe_are_not_saved(change: str, tmp_path: Path) -> None:
    model, (make, words) = gpt2(), CHANGES[change]
    make(model)
    with refused(ValueError, "GPT2 was changed", *words, "state_dict"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in a sum"])
@pytest.mark.parametrize("kind", ["a class of one's own", "a function"])
def test_kernels_without_a_representation_are_not_saved(kind: str, nested: bool, tmp_path: Path) -> None:
    model = gpt2()
    operator = model.get_submodule("blocks.0.operator")
    own = Custom(8, 8) if "class" in kind else kernels.LinearAttention(8, 2, feature_map=torch.relu, is_causal=True)
    operator.kernel = kernels.Sum([kernels.Attention(8, 2, is_causal=True), own]) if nested else own
    with refused(ValueError, "the kernel of blocks.0.operator", type(operator.kernel).__name__, "state_dict"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("change", ["added", "replaced"])
def test_changed_kernels_are_saved_and_read_back(change: str, tmp_path: Path) -> None:
    model, given = gpt2(), torch.randint(9, (2, 6))
    if change == "added":
        add_kernel(model, kernels.LowRankMLP(8, 2, 1, rank=2, is_causal=True), gate=0.3)
    else:
        model, _ = linearise(
            model, lambda old: kernels.LinearAttention(8, 2, is_causal=True), [given], layer_steps=2, whole_steps=2
        )
    model.save_pretrained(tmp_path / "saved")
    again: Any = from_pretrained(tmp_path / "saved")
    assert torch.equal(again(given), model(given))
    again.save_pretrained(tmp_path / "again")
    found = [ModelFolder(tmp_path / name).content["operators"] for name in ("again", "saved")]
    assert found[0] == found[1]


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    model = gpt2()
    model.get_parameter("norm.bias").data[3] = torch.inf
    with refused(ValueError, str(tmp_path / "saved"), "norm.bias holds NaN or infinite numbers"):
        model.save_pretrained(tmp_path / "saved")
    with refused(ValueError, "tokens.weight is on the meta device", "load the weights first"):
        model.to("meta").save_pretrained(tmp_path / "saved")
    assert not any(tmp_path.iterdir())


def test_differently_shared_weights_are_not_saved(tmp_path: Path) -> None:
    one: Any = models.Llama.Config(embed_dim=8, depth=2, num_heads=2, num_kv_heads=1).build(vocab_size=9, context=6)
    one.blocks[1].operator_norm.weight = one.blocks[0].operator_norm.weight
    with refused(ValueError, "blocks.1.operator_norm.weight is the tensor blocks.0.operator_norm.weight in place"):
        one.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("absent", ["residual", "bias", "output_projection"])
def test_the_operator_around_a_changed_kernel_is_read_back(absent: str, tmp_path: Path) -> None:
    model, given = gpt2(), torch.randint(9, (2, 6))
    kernel = kernels.LinearAttention(8, 2, is_causal=True)
    parts: dict[str, Any] = {"residual": True, "bias": True, absent: False}
    operator = IntegralOperator(kernel, **parts)
    model.get_submodule("blocks.0").operator = operator
    model.save_pretrained(tmp_path / "saved")
    again: Any = from_pretrained(tmp_path / "saved")
    assert torch.equal(again(given), model(given))


def test_an_operator_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    model = add_kernel(gpt2(), kernels.LowRankMLP(8, 2, 1, rank=2, is_causal=True))
    model.save_pretrained(tmp_path / "saved")
    content = ModelFolder(tmp_path / "saved").content
    content["operators"] = {"blocks.7.operator": next(iter(content["operators"].values()))}
    (tmp_path / "saved" / "config.json").write_bytes(seal(content))
    with refused(ValueError, "config.json", "'blocks.7.operator'", "GPT2 has no operator of that name"):
        from_pretrained(tmp_path / "saved")


def test_a_custom_model_is_not_saved(tmp_path: Path) -> None:
    class Mine(SavedModel):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.map = nn.Linear(size, size)

    with refused(ValueError, "Mine is no model of the library"):
        Mine(3).save_pretrained(tmp_path / "saved")


def test_the_hub_needs_its_client_a_name_and_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(ValueError, "'nowhere'", "owner/name"):
        gpt2().push_to_hub("nowhere")
    hub = pytest.importorskip("huggingface_hub")
    closed = "http://127.0.0.1:9"  # no server listens there
    monkeypatch.setattr(hub.HfApi, "__init__", _at(hub.HfApi.__init__, closed))
    with refused(OSError, "owner/name", "nothing was uploaded", "network", "--token"):
        gpt2().push_to_hub("hf://owner/name", token="hf_none")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with refused(ModuleNotFoundError, "pip install 'fredholm[hub]'"):
        gpt2().push_to_hub("owner/name")


def _at(init: Callable[..., None], endpoint: str) -> Callable[..., None]:
    return lambda self, **given: init(self, **given | {"endpoint": endpoint})


def test_a_copied_model_can_be_saved(tmp_path: Path) -> None:
    model = copy.deepcopy(gpt2())
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(from_pretrained(tmp_path / "saved")(TOKENS), model(TOKENS))
