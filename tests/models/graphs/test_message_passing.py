from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("torch_geometric")

from fredholm.domains import Domain, Graph
from fredholm.encoders import Encoder, GraphBatch, PointCloud
from fredholm.encoders import Graph as GraphEncoder
from fredholm.models import MessagePassing
from tests.refusals import refused

LAYERS = ("gcn", "gin", "gat")
EDGES = torch.tensor([[0, 1, 1, 2, 3, 0, 2], [1, 0, 2, 1, 0, 3, 4]])


def build(**settings: Any) -> MessagePassing:
    torch.manual_seed(0)
    config = MessagePassing.Config(embed_dim=8, depth=2, **settings)
    return MessagePassing(GraphEncoder(3, 8, 2), 4, config).double().eval()


def batch(features: Tensor, edges: Tensor, **more: Any) -> GraphBatch:
    return GraphBatch(features, edges, features.new_zeros(*features.shape[:2], 2), **more)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("pool", ["mean", "max", "none"])
def test_order_padding_and_batch_mates_change_nothing(layer: str, pool: str) -> None:
    model, features = build(layer=layer, pool=pool), torch.randn(1, 5, 3, dtype=torch.float64)
    turn = torch.tensor([3, 0, 4, 1, 2])
    back = turn.argsort()

    def compute(given: Tensor, edges: Tensor, here: Any, **more: Any) -> tuple[Tensor, Tensor]:
        leaf = given.clone().requires_grad_()
        out = model(batch(leaf, edges, **more))[0]
        out = out[here] if pool == "none" else out
        (gradient,) = torch.autograd.grad(out.sin().sum(), leaf)
        return out, gradient[0, here]

    expected = compute(features, EDGES[None], slice(5))
    turned = compute(features[:, turn], back[EDGES][None], back)
    mates = torch.cat([torch.nn.functional.pad(features, (0, 0, 0, 2), value=9.0), torch.randn(1, 7, 3).double()])
    mask = torch.tensor([[True] * 5 + [False] * 2, [True] * 7])
    two = torch.stack([torch.nn.functional.pad(EDGES, (0, 1), value=-1), torch.randint(7, (2, 8))])
    padded = compute(mates, two, slice(5), mask=mask)
    for other in (turned, padded):
        for found, right in zip(other, expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("residual", [True, False])
def test_layers_are_those_of_the_package(residual: bool) -> None:
    model = build(layer="gcn", pool="none", residual=residual)
    features, weights = torch.randn(1, 5, 3, dtype=torch.float64), torch.rand(1, 7, dtype=torch.float64)
    u = model.encoder.get_submodule("embedding")(features[0])
    for layer, norm in zip(model.layers, model.norms, strict=True):
        passed = layer(norm(u) if residual else u, EDGES, edge_weight=weights[0]).relu()
        u = u + passed if residual else passed
    torch.testing.assert_close(model(batch(features, EDGES[None], edge_weights=weights))[0], model.head(model.norm(u)))


class Shared(Encoder):
    """Signals on one graph that all batch entries share."""

    embed_dim, pos_dim = 8, 2

    def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        weights = torch.arange(7, dtype=torch.float64)
        return inputs, Graph(EDGES, 5, pos=inputs.new_zeros(5, 2), edge_weights=weights)


def test_one_graph_may_be_shared_by_a_batch_of_signals() -> None:
    config = MessagePassing.Config(layer="gcn", embed_dim=8, pool="none")
    model, u = MessagePassing(Shared(), 4, config).double().eval(), torch.randn(3, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(model(u), torch.cat([model(each[None]) for each in u]))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_graph_without_edges_gives_finite_outputs(layer: str) -> None:
    model = build(layer=layer)
    out = model(batch(torch.randn(1, 2, 3, dtype=torch.float64), torch.zeros(1, 2, 0, dtype=torch.int64)))
    assert out.shape == (1, 4)
    assert out.isfinite().all()


def test_bad_settings() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"layer": "sage"}, "models.MessagePassing: layer is one of gcn, gin, gat; got 'sage'"),
        ({"pool": "cls"}, "models.MessagePassing: pool is one of mean, max, none; got 'cls'"),
        ({"depth": 0}, "depth must be at least 1; got 0"),
        ({"dropout": 1.0}, "dropout must be in [0, 1); got 1.0"),
        ({"layer": "gin", "num_heads": 4}, "num_heads=4 has no effect with layer='gin'"),
        ({"layer": "gat", "num_heads": 3}, "num_heads must divide embed_dim, 64; got 3"),
    )
    for settings, message in cases:
        with refused(ValueError, message):
            MessagePassing.Config(**settings)


def test_a_signal_without_a_graph_is_refused() -> None:
    clouds = PointCloud.Config(num_frequencies=0, num_neighbours=0)
    model = MessagePassing(PointCloud(clouds, 8), 4, MessagePassing.Config(embed_dim=8))
    with refused(TypeError, "expected a signal on a graph; got Points"):
        model(torch.randn(1, 5, 3))
