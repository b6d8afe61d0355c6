import math
from typing import Any

import pytest
import torch
from torch import nn

from fredholm import domains
from fredholm.encoders.graph import Graph, GraphBatch
from tests.refusals import refused

EDGES = torch.tensor([[[0, 1, 1, 2], [1, 0, 2, 1]], [[0, 1, -1, -1], [1, 0, -1, -1]]])
MASK = torch.tensor([[True, True, True], [True, True, False]])


def batch(**changed: Any) -> GraphBatch:
    """Two path graphs, of three and of two nodes."""
    found: dict[str, Any] = {"features": torch.randn(2, 3, 4), "edge_index": EDGES, "pos": torch.rand(2, 3, 2)}
    return GraphBatch(**(found | {"mask": MASK} | changed))


def test_without_embed_dim_the_signal_equals_the_features() -> None:
    encoder, inputs = Graph(4, None, 2), batch()
    assert (encoder.embed_dim, list(encoder.parameters()), encoder.columns("abcd")) == (4, [], {})
    assert torch.equal(encoder(inputs)[0], torch.where(MASK[..., None], inputs.features, 0.0))
    with refused(ValueError, "encoders.Graph: adds_positions=True has no effect with embed_dim=None"):
        Graph(4, None, 2, adds_positions=True)


def test_a_linear_map_of_the_features_on_the_graph() -> None:
    encoder, inputs = Graph(4, 5, 2), batch(weights=torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]))
    signal, domain = encoder(inputs)
    assert isinstance(encoder.embedding, nn.Linear)
    expected = inputs.features @ encoder.embedding.weight.mT + encoder.embedding.bias
    torch.testing.assert_close(signal, torch.where(MASK[..., None], expected, 0.0))
    assert isinstance(domain, domains.Graph)
    assert torch.equal(domain.pos[MASK], inputs.pos[MASK])
    assert domain.num_edges == 6
    assert inputs.weights is not None
    assert torch.equal(domain.weights, inputs.weights)
    assert (encoder.embed_dim, encoder.pos_dim) == (5, 2)


def test_positions_may_be_added() -> None:
    encoder, inputs = Graph(4, 5, 2, adds_positions=True), batch(mask=None)
    assert encoder.of_positions is not None
    expected = encoder.embedding(inputs.features) + inputs.pos @ encoder.of_positions.weight.mT
    torch.testing.assert_close(encoder(inputs)[0], expected)


def test_edges_carry_weights_and_features() -> None:
    weights, found = torch.rand(2, 4), torch.rand(2, 4, 3)
    domain = Graph(4, 5, 2, edge_dim=3)(batch(edge_weights=weights, edge_features=found))[1]
    assert isinstance(domain, domains.Graph)
    exists = EDGES[:, 0] >= 0
    assert domain.edge_weights is not None
    assert domain.edge_features is not None
    assert torch.equal(domain.edge_weights, weights[exists])
    assert torch.equal(domain.edge_features, found[exists])


def test_padding_may_hold_any_values() -> None:
    inputs = batch()
    other = inputs._replace(features=torch.where(MASK[..., None], inputs.features, math.nan))
    encoder = Graph(4, 5, 2)
    assert torch.equal(encoder(other)[0], encoder(inputs)[0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"features": torch.zeros(2, 3)}, "expected float features of shape (batch, nodes, 4); got (2, 3)"),
        ({"features": torch.zeros(2, 3, 5)}, "got (2, 3, 5)"),
        ({"features": torch.zeros(2, 3, 4).long()}, "torch.int64"),
        ({"features": torch.full((2, 3, 4), math.inf)}, "features hold NaN or infinite numbers at nodes that exist"),
        ({"pos": torch.zeros(2, 3, 3)}, "expected positions of shape (2, 3, 2); got (2, 3, 3)"),
        ({"edge_features": torch.zeros(2, 4, 3)}, "expected 0 features of an edge; got 3"),
        ({"edge_index": EDGES + 1}, "Graph: edge"),
        ({"edge_weights": torch.full((2, 4), -1.0)}, "edge_weights must be >= 0"),
    ],
)
def test_bad_batches_are_refused(changed: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        Graph(4, 5, 2)(batch(**changed))


def test_a_tensor_is_refused() -> None:
    with refused(TypeError, "encoders.Graph: expected a GraphBatch; got Tensor, which has no edges"):
        Graph(4, 5, 2)(torch.zeros(2, 3, 4))


@pytest.mark.parametrize("name", ["features", "embed_dim", "pos_dim"])
def test_bad_settings_are_refused(name: str) -> None:
    with refused(ValueError, f"encoders.Graph: {name} must be at least 1; got 0"):
        Graph(*(0 if each == name else 1 for each in ("features", "embed_dim", "pos_dim")))
    with refused(ValueError, "encoders.Graph: edge_dim must be at least 0; got -1"):
        Graph(1, 1, 1, edge_dim=-1)
