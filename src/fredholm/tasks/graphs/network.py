"""Parts that the tasks on graphs share: building their network, and warnings about the data."""

import dataclasses
import warnings

from fredholm.models.graphs.graph_model import GraphReading
from fredholm.models.kernel_configs import OnEdgesConfig
from fredholm.models.signal_model import SignalModel
from fredholm.models.stack import Stack, stack_of

from .graph_set import GraphSet
from .inputs import GraphInputs, Preparation

NO_FORM = (
    "the model reads graphs: which operations it takes depends on which nodes their edges join, and no graph of "
    "operations holds that; run it by fredholm predict"
)
"""Why there is no `Task.tensor_form`."""


def along_edges(stack: Stack, default: SignalModel.Config) -> Stack:
    """The network with its kernel on the edges; a kernel moved to them gets the edge measure of the task's default."""
    if isinstance(stack.kernel, OnEdgesConfig):
        return stack
    usual = stack_of(default).kernel
    edge_mass = usual.edge_mass if isinstance(usual, OnEdgesConfig) else "mean"
    kernel = OnEdgesConfig(kernel=stack.kernel, long_range=None, edge_mass=edge_mass)
    return dataclasses.replace(stack, kernel=kernel)


def reading_of(preparation: Preparation, inputs: GraphInputs) -> GraphReading:
    """The model's view of prepared graphs: the sizes of their inputs."""
    return GraphReading(
        features=preparation.num_inputs,
        pos_dim=preparation.pos_dim,
        edge_dim=len(preparation.edge_features),
        adds_positions=inputs.adds_positions,
        feature_dropout=inputs.feature_dropout,
    )


def build_network(
    config: SignalModel.Config, preparation: Preparation, num_outputs: int, inputs: GraphInputs
) -> SignalModel:
    """The network, on an encoder of prepared graphs."""
    return config.build(reading_of(preparation, inputs).encoder(config.embed_dim), num_outputs)


def warn_of_notes(data: str, graphs: GraphSet) -> None:
    """Warns of edges that were changed or left out when they were read."""
    if graphs.notes:
        warnings.warn(f"{data}: {'; '.join(graphs.notes)}", stacklevel=2)
