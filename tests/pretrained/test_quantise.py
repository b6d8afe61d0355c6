"""Weights of 8 bits: their arithmetic, which weights are quantised, and operations on quantised models."""

import copy
import io
import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.models import GPT2, Bert, Mamba, Sampling, ViT, generate
from fredholm.pretrained import quantise
from fredholm.pretrained.int8_weight import Int8Weight
from tests.refusals import refused

BOTH = pytest.mark.parametrize("activations", [False, True])


def gpt2(depth: int = 2) -> GPT2:
    return GPT2.Config(embed_dim=64, depth=depth, num_heads=4, dropout=0.0).build(50, 24).eval()


def texts(length: int = 9) -> Tensor:
    return torch.randint(50, (3, length))


# few rows with whole blocks of channels, few with others, many, and none
SHAPES = [(1, 64, 17), (8, 32, 5), (3, 33, 7), (40, 64, 17), (40, 13, 3), (1, 1, 1), (0, 32, 4)]


@pytest.mark.parametrize(("rows", "d_in", "d_out"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_linear_map_uses_the_rounded_weight(rows: int, d_in: int, d_out: int, dtype: torch.dtype) -> None:
    weight, x, bias = (torch.randn(size).to(dtype) for size in ((d_out, d_in), (rows, d_in), (d_out,)))
    own = Int8Weight.of(weight)
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    rounded = (weight.float() / scale).round() * scale
    assert torch.equal(own.plain.float() * own.scale[:, None], rounded)
    out = F.linear(x, own, bias)
    expected = F.linear(x.double(), rounded.double(), bias.double())
    assert out.dtype == dtype
    # with few rows signals are read in bfloat16
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=0.01 * float(expected.abs().max()) if rows else 0.0)


@pytest.mark.parametrize(("rows", "d_in", "d_out"), SHAPES)
def test_signals_are_rounded_row_by_row(rows: int, d_in: int, d_out: int) -> None:
    weight, x = torch.randn(d_out, d_in), torch.randn(rows, d_in)
    own = Int8Weight.of(weight, rounds_signals=True)
    step = x.abs().amax(1, keepdim=True) / 63
    expected = ((x / step).round() * step).double() @ own.dequantised().double().T
    out = F.linear(x, own)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    if rows > 1:
        louder = torch.cat([x[:1], 100 * x[1:]])
        assert torch.equal(F.linear(louder, own)[0], out[0])


@BOTH
def test_the_memory_layout_of_a_weight_does_not_matter(activations: bool) -> None:
    weight = torch.randn(17, 64)
    for rows in (1, 40):
        x = torch.randn(rows, 64)
        found = [F.linear(x, Int8Weight.of(w, rounds_signals=activations)) for w in (weight, weight.T.contiguous().T)]
        assert torch.equal(*found)


@BOTH
def test_zeros_and_nan(activations: bool) -> None:
    weight = torch.randn(6, 32)
    weight[2] = 0
    own = Int8Weight.of(weight, rounds_signals=activations)
    x = torch.zeros(12, 32)
    x[1] = float("nan")
    out = F.linear(x, own)
    assert torch.equal(out[0], torch.zeros(6))
    assert out[1].isnan().all()
    assert torch.equal(F.linear(torch.randn(12, 32), own)[:, 2], torch.zeros(12))


@BOTH
def test_a_quantised_model_is_close_and_a_third_of_the_size(activations: bool) -> None:
    model, tokens = gpt2(), texts()
    model.blocks[1].train()
    before = copy.deepcopy(model.state_dict())
    new, report = quantise(model, [tokens, texts(5)], activations=activations)
    assert len(report.weights) == 12
    assert all(isinstance(new.get_parameter(name), Int8Weight) for name in report.weights)
    assert 0 < report.error < (0.03 if activations else 0.015)
    found, expected = new(tokens), model(tokens)
    assert ((found - expected).norm() / expected.norm()).item() == pytest.approx(report.error, rel=0.3)
    blocks = 2 * 12 * 64 * 64
    assert report.bytes_before - report.bytes_after == 3 * blocks - 4 * 2 * (4 * 64 + 5 * 64)
    assert report.bytes_before == sum(p.nbytes for p in model.parameters())
    assert set(report.weights) | set(report.left) == set(dict(model.named_parameters()))
    assert f"relative error of the outputs: {report.error:.3g}" in str(report)
    # the original model is unchanged
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(p.requires_grad for p in model.parameters())
    assert [model.training, model.blocks[1].training, new.blocks[1].training] == [False, True, False]
    assert not any(p.requires_grad for p in new.parameters())


def test_the_report_gives_the_reason_for_skipped_weights() -> None:
    model, tokens = gpt2(), texts()
    model.unread = nn.Linear(64, 64)
    _, report = quantise(model, [tokens], where=lambda name, _: not name.startswith("blocks.1"))
    assert report.left["tokens.weight"].startswith("shared with an embedding")
    assert report.left["positions.weight"].endswith("read by embedding")
    assert report.left["norm.weight"].endswith("read by layer_norm")
    assert report.left["blocks.0.operator.bias"].endswith("read by linear as its constant or signal")
    assert report.left["blocks.1.operator.output_weight"] == "excluded by where"
    assert report.left["unread.weight"] == "not read on these data"
    _, report = quantise(model, [tokens], min_size=10_000)
    assert report.left["blocks.0.operator.output_weight"] == "below 10000 numbers"
    assert "left, below 10000 numbers: blocks.0.operator.output_weight and 7 more" in str(report)


@BOTH
def test_a_shared_table_is_looked_up_in_its_rounded_rows(activations: bool) -> None:
    model, tokens = gpt2(), texts()
    new, report = quantise(model, [tokens], activations=activations, embeddings=True, min_size=100)
    assert {"tokens.weight", "positions.weight"} <= set(report.weights)
    table = new.tokens.weight
    assert isinstance(table, Int8Weight)
    assert torch.equal(new.tokens(tokens), F.embedding(tokens, table.dequantised()))
    assert report.error < 0.05


@pytest.mark.parametrize("model", ["bert", "vit", "mamba"])
def test_other_kinds_of_models(model: str) -> None:
    tokens, mask = texts(), torch.ones(3, 9, dtype=torch.bool)
    mask[0, 5:] = False
    bert = Bert.Config(embed_dim=32, depth=1, num_heads=2, head="classes", num_classes=3, dropout=0.0)
    vit = ViT.Config(image_size=(16, 16), patch_size=(4, 4), embed_dim=32, depth=1, num_heads=2, num_classes=3)
    kinds: dict[str, Any] = {
        "bert": (bert.build(50, 24), (tokens, mask), 7),
        "vit": (vit.build(), torch.randn(2, 3, 16, 16), 6),
        "mamba": (Mamba.Config(embed_dim=32, depth=1).build(50, 24), tokens, 3),
    }
    built, inputs, count = kinds[model]
    _, report = quantise(built.eval(), [inputs], min_size=512)
    assert len(report.weights) == count, report
    assert report.error < 0.03


@BOTH
def test_text_can_be_generated_token_by_token(activations: bool) -> None:
    new, _ = quantise(gpt2(), [texts()], activations=activations, embeddings=True)
    prompt = texts()
    ways = [
        torch.stack(list(itertools.islice(generate(new, prompt, Sampling(temperature=0), cache=cache), 9)))
        for cache in (True, False)
    ]
    assert torch.equal(*ways)
    with torch.no_grad():
        assert torch.equal(new(prompt), new(prompt))


@BOTH
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_it_compiles_to_one_graph_for_any_batch(activations: bool, backend: str) -> None:
    torch._dynamo.reset()
    new, _ = quantise(gpt2(depth=1), [texts()], activations=activations, embeddings=True)
    compiled = torch.compile(new, fullgraph=True, dynamic=True, backend=backend)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (texts(), texts(12), torch.randint(50, (2, 7))):
            torch.testing.assert_close(compiled(tokens), new(tokens), rtol=1e-4, atol=1e-4)
    with refused(TypeError, "model is compiled", "quantise it first"):
        quantise(compiled, [texts()])  # pyright: ignore[reportArgumentType]


@BOTH
def test_copies_and_files(activations: bool, tmp_path: Path) -> None:
    model, tokens = gpt2(), texts()
    new, _ = quantise(model, [tokens], activations=activations)
    expected = new(tokens)
    assert torch.equal(copy.deepcopy(new)(tokens), expected)
    unpickled = pickle.loads(pickle.dumps(new))  # noqa: S301 - written here
    assert torch.equal(unpickled(tokens), expected)
    assert all(isinstance(p, nn.Parameter) for p in unpickled.parameters())
    file = io.BytesIO()
    torch.save(new.state_dict(), file)
    file.seek(0)
    again = gpt2().requires_grad_(False)
    again.load_state_dict(torch.load(file), assign=True)
    assert torch.equal(again(tokens), expected)
    halves = copy.deepcopy(new).bfloat16()(tokens)
    assert halves.dtype == torch.bfloat16
    assert ((halves.float() - expected).norm() / expected.norm()).item() < 0.05
    with refused(ValueError, "was changed after it was built", "Int8Weight(64, 256)", "state_dict"):
        new.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [3, 12])
def test_autocast_casts_as_for_other_weights(rows: int, dtype: torch.dtype) -> None:
    weight, x = torch.randn(6, 32) / 100, torch.randn(rows, 32)
    x[:, 5] = 2000  # sums of such signals times integers overflow in float16
    with torch.autocast("cpu", dtype):
        out, plain = F.linear(x, Int8Weight.of(weight)), F.linear(x, weight)
    assert out.dtype == plain.dtype == dtype
    torch.testing.assert_close(out.float(), plain.float(), rtol=0, atol=0.02 * float(plain.abs().max()))


def test_other_operations_use_the_rounded_weight() -> None:
    weight = Int8Weight.of(torch.randn(6, 32))
    plain = weight.dequantised()
    assert torch.equal(weight.mT, plain.mT)
    assert torch.equal(torch.cat([weight[:2], weight]), torch.cat([plain[:2], plain]))
    assert weight.new_zeros(2).dtype == torch.float32
    with refused(TypeError, "do not change (mul_)", "assign=True"):
        weight.mul_(2)


def test_weights_have_no_gradients() -> None:
    new, _ = quantise(gpt2(), [texts()])
    with refused(TypeError, "do not learn", "requires_grad_(False)"):
        new.requires_grad_()
    new, _ = quantise(gpt2(), [texts()])
    new.norm.weight.requires_grad_()
    new(texts())
    new.tokens.weight.requires_grad_()
    with refused(RuntimeError, "is for inference", "torch.no_grad()"):
        new(texts())
    with torch.no_grad():
        new(texts())


def test_models_that_cannot_be_quantised_are_refused() -> None:
    model, tokens = gpt2(), texts()
    with refused(ValueError, "data holds no batch"):
        quantise(model, [])
    with refused(TypeError, "model must be a module", "dict"):
        quantise({}, [tokens])  # pyright: ignore[reportArgumentType]
    compiled = gpt2()
    compiled.blocks[0].compile()
    with refused(TypeError, "blocks.0 is compiled", "quantise it first"):
        quantise(compiled, [tokens])
    with refused(ValueError, "Identity has no parameters"):
        quantise(nn.Identity(), [tokens])
    with refused(ValueError, "none of the 36 parameters", "tokens.weight: shared with"):
        quantise(model, [tokens], min_size=10**6)
    with refused(ValueError, "min_size must be at least 1", "0"):
        quantise(model, [tokens], min_size=0)
    with refused(ValueError, "is quantised already"):
        quantise(quantise(model, [tokens])[0], [tokens])
    with refused(ValueError, "torch.float64", "model.float()"):
        quantise(gpt2().double(), [tokens])
    with refused(ValueError, "meta device"):
        quantise(gpt2().to("meta"), [tokens])
    new, _ = quantise(model, [tokens])
    with refused(TypeError, "torch.float64", "convert the model before"):
        new.double()
    with torch.no_grad():
        model.get_parameter("blocks.0.operator.output_weight")[0, 0] = float("inf")
    with refused(ValueError, "blocks.0.operator.output_weight", "not finite"):
        quantise(model, [tokens])


def test_without_onednn_only_weights_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with refused(ValueError, "activations=True needs oneDNN"):
        quantise(gpt2(), [texts()], activations=True)
    quantise(gpt2(), [texts()])


@BOTH
def test_torchao_gives_the_same(activations: bool) -> None:
    pytest.importorskip("torchao", reason="GPUs need torchao; pip install 'fredholm[quantise]'")
    weight, x, bias = torch.randn(16, 64), torch.randn(24, 64), torch.randn(16)
    own = Int8Weight.of(weight, rounds_signals=activations)
    found, expected = F.linear(x, own.of_torchao(), bias), F.linear(x, own, bias)
    # torchao has twice as many steps for signals
    assert ((found - expected).norm() / expected.norm()).item() < (0.02 if activations else 1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@BOTH
def test_on_a_gpu(activations: bool) -> None:
    pytest.importorskip("torchao", reason="GPUs need torchao; pip install 'fredholm[quantise]'")
    model, tokens = gpt2().cuda(), texts(16).cuda()
    new, report = quantise(model, [tokens], activations=activations)
    assert report.error < 0.03
    torch.testing.assert_close(copy.deepcopy(new).cpu()(tokens.cpu()), new(tokens).cpu(), rtol=0, atol=0.05)
