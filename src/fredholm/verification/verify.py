"""All equalities and witnesses, one after the other."""

from collections.abc import Iterator

import torch

from fredholm._settings import check_seed
from fredholm.verification.attentions import attentions
from fredholm.verification.check import Check
from fredholm.verification.converted import converted
from fredholm.verification.convolutions import convolutions
from fredholm.verification.graphs import graphs
from fredholm.verification.recurrences import recurrences
from fredholm.verification.witnesses import witnesses


def verify(seed: int = 0) -> Iterator[Check]:
    """Builds random instances in float64, and measures how far each is from what it should equal.

    Rows: for every layer and variant the literal quadrature Σ_j ω_j κ_ij u_j against the layer of torch that it is (or,
    where torch has none, the recurrence or sum written out; for graphs PyTorch Geometric's, where it is installed),
    then every fast route, each with all gradients; whole modules of torch, converted; at the end operators that no
    classical family has. The global random state is left as it was.

    Args:
        seed: of all instances.

    Yields:
        Rows as they are measured.

    Raises:
        ValueError: the seed is not in [0, 2^32).
    """
    check_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for family in (convolutions, attentions, recurrences, graphs):
            for equality in family():
                yield from equality.checks()
        yield from converted()
        yield from witnesses()
