"""Small models of `transformers` with random weights after conversion: the same logits, losses and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm import layers
from fredholm.layers.torch_layers.convolution import ConvolutionLayer
from fredholm.layers.torch_layers.linear import LinearLayer

# typed as Any: tests use attributes of the model that type checkers do not know
from_torch: Any = layers.from_torch
to_torch: Any = layers.to_torch

transformers: Any = pytest.importorskip(
    "transformers", reason="compares with transformers; pip install 'fredholm[peers]'"
)

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def vit() -> nn.Module:
    config = transformers.ViTConfig(**SIZES, image_size=8, patch_size=4, num_labels=3)
    return transformers.ViTForImageClassification(config)


def clip() -> nn.Module:
    config = transformers.CLIPConfig(
        text_config={**SIZES, "vocab_size": 19, "max_position_embeddings": 9, "eos_token_id": 2},
        vision_config={**SIZES, "image_size": 8, "patch_size": 4},
        projection_dim=12,
    )
    return transformers.CLIPModel(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=19, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def mamba() -> nn.Module:
    config = transformers.MambaConfig(vocab_size=19, hidden_size=16, state_size=4, num_hidden_layers=2)
    return transformers.MambaForCausalLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=19, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, vocab_size=19, max_position_embeddings=16))


def images() -> Tensor:
    return torch.randn(2, 3, 8, 8, dtype=torch.float64)


def tokens() -> Tensor:
    return torch.randint(3, 19, (2, 7))


# the model, its arguments, and the outputs that are compared
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, Tensor]], tuple[str, ...]]] = {
    "ViT": (vit, lambda: {"pixel_values": images()}, ("logits",)),
    "CLIP": (
        clip,
        lambda: {"pixel_values": images(), "input_ids": tokens(), "attention_mask": (tokens() > 5).long()},
        ("logits_per_image", "text_embeds", "image_embeds"),
    ),
    "T5": (t5, lambda: {"input_ids": tokens(), "labels": tokens()}, ("logits",)),
    "Mamba": (mamba, lambda: {"input_ids": tokens()}, ("logits",)),
    "GPT-2": (gpt2, lambda: {"input_ids": tokens()}, ("logits",)),
    "BERT": (
        bert,
        lambda: {"input_ids": tokens(), "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3])},
        ("logits",),
    ),
}
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10}


def results(model: nn.Module, arguments: dict[str, Tensor], outputs: tuple[str, ...]) -> list[Tensor]:
    """The outputs, after a backward pass with random cotangents; the fixed seed gives the same dropout."""
    torch.manual_seed(11)
    returned = model(**arguments)
    found = [getattr(returned, name) for name in outputs]
    model.zero_grad()
    generator = torch.Generator().manual_seed(5)
    torch.autograd.backward(found, [torch.randn(out.shape, generator=generator, dtype=out.dtype) for out in found])
    return found


def assert_near(got: Tensor, expected: Tensor, bound: float) -> None:
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= bound * max(1.0, expected.abs().max().item())


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_same_logits_and_gradients(name, dtype, training):
    torch.manual_seed(0)
    build, draw, outputs = MODELS[name]
    theirs = build().to(dtype).train(training)
    arguments = {key: part.to(dtype) if part.is_floating_point() else part for key, part in draw().items()}
    ours = from_torch(theirs)
    assert not any(isinstance(module, nn.Linear | nn.modules.conv._ConvNd) for module in ours.modules())
    assert any(isinstance(module, LinearLayer | ConvolutionLayer) for module in ours.modules())
    expected, got = results(theirs, arguments, outputs), results(ours, arguments, outputs)
    for mine, other in zip(got, expected, strict=True):
        assert_near(mine, other, BOUNDS[dtype])
    # a copy whose parameters hold the gradients is converted back, which gives these torch's names
    assert len(list(ours.parameters())) == len(list(theirs.parameters()))
    for parameter in ours.parameters():
        assert parameter.grad is not None
        parameter.data.copy_(parameter.grad)
    grads = dict(to_torch(ours).named_parameters())
    for key, parameter in theirs.named_parameters():
        is_transposed = name == "GPT-2" and ".c_" in key and key.endswith("weight")
        assert parameter.grad is not None
        assert_near(grads[key].T if is_transposed else grads[key], parameter.grad, BOUNDS[dtype])


@pytest.mark.parametrize("name", ["T5", "GPT-2", "Mamba"])
def test_same_generated_tokens(name):
    torch.manual_seed(0)
    theirs: Any = MODELS[name][0]().double().eval()
    prompt = tokens()
    mine, expected = (
        model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
        for model in (from_torch(theirs), theirs)
    )
    assert torch.equal(mine, expected)


@pytest.mark.parametrize("name", ["T5", "GPT-2", "BERT", "Mamba"])
def test_weights_that_were_tied_stay_tied(name):
    theirs: Any = MODELS[name][0]()
    ours = from_torch(theirs)
    for model in (theirs, ours, to_torch(ours)):
        tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert tied == theirs.config.tie_word_embeddings
    ours.get_input_embeddings().weight = nn.Parameter(torch.randn_like(ours.get_input_embeddings().weight))
    if name == "BERT":  # its tie_weights looks for the name of a parameter in the state_dict
        ours.get_output_embeddings().weight = ours.get_input_embeddings().weight
    else:
        ours.tie_weights()
    assert ours.get_output_embeddings().weight is ours.get_input_embeddings().weight


def test_the_linear_layer_of_gpt2_is_converted_to_an_operator():
    from transformers.pytorch_utils import Conv1D

    theirs = Conv1D(5, 3).double()
    ours, x = from_torch(theirs), torch.randn(2, 4, 3, dtype=torch.float64)
    assert isinstance(ours, LinearLayer)
    assert (ours.in_features, ours.out_features) == (3, 5)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-12, rtol=0)
    assert torch.equal(ours.weight, theirs.weight.T)
    assert type(to_torch(ours)) is nn.Linear
    pair: Any = nn.ModuleList([Conv1D(3, 3), Conv1D(3, 3), nn.Linear(2, 2)])
    pair[1].weight = pair[0].weight
    converted = from_torch(pair)
    assert converted[0].weight is converted[1].weight
    pair.extra = pair[0].weight
    with pytest.raises(ValueError, match=r"0 \(its weight is also extra, and is held here in another layout"):
        from_torch(pair)
