import dataclasses
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from fredholm.domains import Points, Union
from fredholm.encoders import Image, ImageText, ImageTextBatch, Text
from fredholm.models import AttentionConfig, MLPConfig, TwoStream
from tests.refusals import refused

PAD = 9
CONFIG = TwoStream.Config(
    embed_dim=4,
    depth=2,
    num_heads=2,
    kernel=MLPConfig(width=5, num_frequencies=2, sigma=1.0, epsilon=1.0),
    dropout=0.0,
    drop_path=0.0,
)


def encoder(**more: Any) -> ImageText:
    images = Image.Config(image_size=(4, 4), patch_size=2, channels=1, num_frequencies=2, sigma=1.0)
    return ImageText(Image(images, 4), Text(10, 4, context=8, pad=PAD, **{"has_class_token": True} | more))


def network(**changes: Any) -> TwoStream:
    built = dataclasses.replace(CONFIG, **changes).build(encoder(), 3).double().eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built


def batch() -> ImageTextBatch:
    """Texts of 5, 3 and 4 tokens."""
    tokens = torch.tensor([[1, 2, 3, 4, 5], [1, 6, 7, PAD, PAD], [1, 3, 3, 2, PAD]])
    return ImageTextBatch(torch.randn(3, 1, 1, 4, 4, dtype=torch.float64), tokens)


def formula(built: TwoStream, given: ImageTextBatch) -> Tensor:
    """The model written out layer by layer."""
    parts = built.image_text.parts(given)
    (u, of_text), (v, of_image) = parts["text"], parts["image"]
    if built.image_token is not None:
        centre = Points(torch.full((1, 2), 0.5, dtype=torch.float64))
        v, of_image = torch.cat([built.image_token.expand(3, 1, 4), v], dim=1), Union(centre, of_image)
    for layer in range(2):
        if len(built.text_crossings):
            ours, theirs = cast("Any", built.text_crossings[layer]), cast("Any", built.image_crossings[layer])
            met = ours.operator(ours.key_norm(v), of_image, query=ours.query_norm(u), query_domain=of_text)
            v = v + theirs.operator(theirs.key_norm(u), of_text, query=theirs.query_norm(v), query_domain=of_image)
            u = u + met
        u, v = built.text_blocks[layer](u, of_text), built.image_blocks[layer](v, of_image)
    if built.pool == "cls":
        pooled = [u[:, 0], v[:, 0]]
    else:
        exists = given.tokens != PAD
        pooled = [(u * exists[..., None]).sum(1) / exists.sum(1, keepdim=True), v.mean(1)]
    return built.head(built.norm(torch.cat(pooled, dim=1)))


@pytest.mark.parametrize("fusion", ["cross-attention", "concatenation"])
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_outputs_follow_the_formula(fusion: str, pool: str) -> None:
    built, given = network(fusion=fusion, pool=pool), batch()
    torch.testing.assert_close(built(given), formula(built, given))


@pytest.mark.parametrize("fusion", ["cross-attention", "concatenation"])
def test_padding_and_batch_mates_change_nothing(fusion: str) -> None:
    built, given = network(fusion=fusion), batch()
    together = built(given)
    for i, count in enumerate((5, 3, 4)):
        alone = built(ImageTextBatch(given.images[i : i + 1], given.tokens[i : i + 1, :count]))
        torch.testing.assert_close(together[i : i + 1], alone)


def test_streams_are_combined_in_cross_attention_alone() -> None:
    given = batch()
    other = given._replace(tokens=given.tokens.flip(0))
    for fusion in ("cross-attention", "concatenation"):
        built, seen = network(fusion=fusion), []
        built.image_blocks[1].register_forward_hook(lambda _, __, out, seen=seen: seen.append(out))
        for each in (given, other):
            built(each)
        assert ((seen[0] - seen[1]).abs().max() > 1e-6) == (fusion == "cross-attention")


def test_every_parameter_has_a_gradient() -> None:
    for fusion in ("cross-attention", "concatenation"):
        built = network(fusion=fusion)
        built(batch()).square().sum().backward()
        reached = {name: parameter.grad for name, parameter in built.named_parameters()}
        assert [name for name, grad in reached.items() if grad is None or not grad.any()] == []


def test_bad_arguments_are_refused() -> None:
    with refused(ValueError, "cross_kernel=", "has no effect with fusion='concatenation'"):
        network(fusion="concatenation", cross_kernel=AttentionConfig(num_kv_heads=1))
    with refused(ValueError, "fusion is one of cross-attention, concatenation; got 'sum'"):
        network(fusion="sum")
    with refused(ValueError, "pool is one of cls, mean; got 'max'"):
        network(pool="max")
    with refused(ValueError, "depth must be at least 1; got 0"):
        network(depth=0)
    with refused(ValueError, "texts have no class token for pool='cls'"):
        CONFIG.build(encoder(has_class_token=False), 3)
    alone = ImageText(None, Text(10, 4, context=8, has_class_token=True))
    with refused(ValueError, "the encoder reads one modality"):
        CONFIG.build(alone, 3)
    with refused(TypeError, "expected an encoders.ImageText; got Text"):
        CONFIG.build(Text(10, 4, context=8), 3)
