from typing import Any

import numpy as np
import pytest

from fredholm.tasks.graphs.edges import Edges, tidy_edges
from tests.refusals import refused


def tidy(edges: list[tuple[int, int]], weights: list[float] | None = None, **settings: Any) -> Edges:
    found: dict[str, Any] = {"graph": np.array([0, 0, 0, 1, 1]), "is_directed": False, "place": lambda i: f"line {i}"}
    return tidy_edges(
        np.array(edges).reshape(-1, 2).T,
        None if weights is None else np.array(weights),
        settings.pop("features", None),
        **(found | settings),
    )


def test_an_edge_listed_one_way_is_taken_both_ways() -> None:
    found = tidy([(1, 0), (3, 4), (4, 3)], [0.5, 2.0, 2.0], features=np.array([[1.0], [2.0], [2.0]]))
    assert found.index.T.tolist() == [[0, 1], [1, 0], [3, 4], [4, 3]]
    assert found.weights is not None
    assert found.weights.tolist() == [0.5, 0.5, 2.0, 2.0]
    assert found.features is not None
    assert found.features.tolist() == [[1.0], [1.0], [2.0], [2.0]]
    assert found.notes == ("1 edge listed one way: taken both ways",)


def test_directed_edges_stay_as_they_are() -> None:
    found = tidy([(1, 0), (3, 4), (4, 3)], [0.5, 2.0, 3.0], is_directed=True)
    assert found.index.T.tolist() == [[1, 0], [3, 4], [4, 3]]
    assert found.weights is not None
    assert found.weights.tolist() == [0.5, 2.0, 3.0]
    assert found.notes == ()


def test_loops_are_dropped_and_duplicates_count_once() -> None:
    found = tidy([(1, 1), (1, 0), (1, 0), (1, 0), (0, 1), (2, 2)])
    assert found.index.T.tolist() == [[0, 1], [1, 0]]
    assert found.notes == ("2 edges from a node to itself: dropped", "2 edges listed again: counted once")
    assert tidy([(1, 0), (0, 1), (1, 0)], is_directed=True).index.T.tolist() == [[0, 1], [1, 0]]


def test_no_edges() -> None:
    found = tidy([])
    assert found.index.shape == (2, 0)
    assert found.notes == ()


@pytest.mark.parametrize(
    ("edges", "settings", "message"),
    [
        ([(0, 1), (0, 5)], {}, "line 1: there is no node 5; expected 0 to 4"),
        ([(0, 1), (-1, 0)], {}, "line 1: there is no node -1; expected 0 to 4"),
        ([(0, 5)], {"node_name": lambda i: str(i + 1)}, "line 0: there is no node 6; expected 1 to 5"),
        ([(0, 1), (2, 3)], {}, "line 1: nodes 2 and 3 are of two graphs; an edge joins nodes of one"),
        ([(0, 1), (1, 2)], {"weights": [1.0, -2.0]}, "line 1: weight -2; expected a finite number of at least 0"),
        ([(0, 1)], {"weights": [float("nan")]}, "line 0: weight nan"),
        ([(0, 1)], {"weights": [float("inf")]}, "line 0: weight inf"),
        ([(0, 1)], {"features": np.array([[1.0, np.inf]])}, "line 0: feature 2 is inf; expected a finite number"),
        ([(0, 1), (1, 0)], {"weights": [1.0, 2.0]}, "line 1: has another weight than the same edge, line 0; give one"),
        (
            [(0, 0), (1, 0), (0, 1)],
            {"weights": [9.0, 1.0, 2.0]},
            "line 2: has another weight than the same edge, line 1",
        ),
        ([(0, 1), (1, 0)], {"weights": [1.0, 2.0]}, "or take edges as directed where directions differ"),
        ([(0, 1), (0, 1)], {"features": np.array([[1.0], [2.0]])}, "line 1: has another feature than the same edge"),
    ],
)
def test_bad_edges(edges: list[tuple[int, int]], settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        tidy(edges, **settings)


def test_directed_edges_may_have_a_weight_for_each_direction() -> None:
    assert tidy([(0, 1), (1, 0)], [1.0, 2.0], is_directed=True).index.shape == (2, 2)
    with refused(ValueError, "line 1: has another weight than the same edge, line 0; give one"):
        tidy([(0, 1), (0, 1)], [1.0, 2.0], is_directed=True)


def test_self_loops_alone_leave_no_edge() -> None:
    found = tidy([(1, 1), (2, 2)], [1.0, 2.0], features=np.ones((2, 3)))
    assert found.index.shape == (2, 0)
    assert found.weights is not None
    assert found.features is not None
    assert (found.weights.shape, found.features.shape) == ((0,), (0, 3))
    assert found.notes == ("2 edges from a node to itself: dropped",)
