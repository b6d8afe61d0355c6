"""Whole models through `torch.export`, each with a dynamic batch, and with a dynamic length for sequences."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm import encoders
from fredholm.domains import Points
from fredholm.models import GPT2, Aether, InfViT, ITNet, Llama

ANY = torch.export.Dim.DYNAMIC
Sizes = dict[int, Any]


class OfPoints(nn.Module):
    """Tensors in, values of the field of a model at queries out."""

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(self, u: Tensor, x: Tensor, queries: Tensor) -> Tensor:
        return self.field(u, Points(x))(queries)


def image_of(embed_dim: int) -> encoders.Image:
    config = encoders.Image.Config(image_size=(4, 6), patch_size=2, channels=1, num_frequencies=2)
    return encoders.Image(config, embed_dim)


def itnet() -> nn.Module:
    config = ITNet.Config(embed_dim=8, depth=1, num_heads=2)
    return ITNet(image_of(8), 3, config)


def infvit() -> nn.Module:
    config = InfViT.Config(embed_dim=8, depth=1, num_heads=2)
    return InfViT(image_of(8), 3, config)


def tokens(batch: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(batch)),)


def images(batch: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 1, 4, 6, generator=torch.Generator().manual_seed(batch)),)


Built = tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Tensor, ...]], tuple[Sizes, ...]]
TEXT = tokens, ({0: ANY, 1: ANY},)
MODELS: dict[str, Built] = {
    "GPT2": (lambda: GPT2.Config(embed_dim=8, depth=1, num_heads=2).build(11, 32), *TEXT),
    "Llama": (lambda: Llama.Config(embed_dim=8, depth=1, num_heads=2, num_kv_heads=1).build(11, 32), *TEXT),
    "Aether": (lambda: Aether.Config(embed_dim=8, depth=1, num_heads=2).build(11, 32), *TEXT),
    "ITNet": (itnet, images, ({0: ANY},)),
    "InfViT": (infvit, images, ({0: ANY},)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "GPT2" else pytest.mark.long) for name in MODELS]
)
def test_an_exported_graph_gives_the_outputs_of_the_model(name: str) -> None:
    """ITNet on images is also exported by tests of the command; here only in the long suite."""
    build, inputs, sizes = MODELS[name]
    torch.manual_seed(0)
    model = build().eval()
    program = torch.export.export(model, inputs(2, 12), dynamic_shapes=sizes)
    assert not [node for node in program.graph.nodes if "fredholm" in str(node.target)]
    for batch, length in ((2, 12), (3, 31), (1, 5)):
        given = inputs(batch, length)
        torch.testing.assert_close(program.module()(*given), model(*given), rtol=1e-4, atol=1e-4)
