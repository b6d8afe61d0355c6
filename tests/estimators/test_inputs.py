from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.exceptions import NotFittedError

from fredholm import ImageClassifier, SeriesClassifier
from fredholm.estimators.images import _pictures
from fredholm.estimators.networkx_graphs import arrays_of_networkx
from fredholm.tasks.images.resize import fit
from tests.estimators.cases import CASES, NUM
from tests.refusals import refused

LABELS = np.arange(NUM) % 2
BRIEF = {"epochs": 1}


def brief(name: str, X: Any) -> Any:
    case = CASES[name]()
    task = {"patch_size": 5} if name == "images" else case.settings.get("task")
    return case.new(training=BRIEF, task=task).fit(X, LABELS[: len(X)])


def images(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) % 251).astype(dtype)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (images(42, 25), "X has shape (42, 25); expected (n, H, W), or (n, H, W, C) with C of 1 or 3, such as X.resh"),
        (
            images(42, 3, 5, 5),
            "X has shape (42, 3, 5, 5); expected (n, H, W), or (n, H, W, C) with C of 1 or 3, such a",
        ),
        (images(42, 5, 5, 2), "X has shape (42, 5, 5, 2); expected (n, H, W)"),
        (images(42, 5, 0), "X has shape (42, 5, 0)"),
        (images(42), "X has shape (42,)"),
        (
            images(42, 5, 5, dtype=np.int64),
            "X is int64; expected uint8, 0 to 255, or floats from 0 to 1, such as X.astype('uint8')",
        ),
        (
            2 * images(42, 5, 5, dtype=np.uint16),
            "X is uint16; expected uint8, 0 to 255, or floats from 0 to 1, such as X / 65535",
        ),
        (images(42, 5, 5) > 9, "X is bool; expected uint8, 0 to 255, or floats from 0 to 1, such as X.astype(float)"),
        (images(42, 5, 5).astype(str), "X is <U"),
        (images(42, 5, 5, dtype=np.float32), "X runs from 0 to 250; expected floats from 0 to 1"),
        (-images(42, 5, 5) / 255.0 - 0.1, "X runs from -"),
        (np.full((42, 5, 5), np.nan), "X contains NaN or infinity"),
        (np.full((42, 5, 5), np.inf), "X contains NaN or infinity"),
        ([np.zeros((5, 5)), np.zeros((5, 6, 2))] * 21, "X has shape (1, 5, 6, 2); expected (n, H, W)"),
        (["gone.png"] * 42, "gone.png: cannot be read as an image"),
    ],
)
def test_inputs_that_are_not_images_are_refused(X: Any, message: str) -> None:
    with refused(ValueError, message):
        brief("images", X)


def test_bytes_and_values_from_0_to_1_are_the_same_images() -> None:
    whole = images(42, 5, 10)
    predicted = [brief("images", X).predict_proba(X) for X in (whole, whole / 255, (whole / 255).astype(np.float32))]
    np.testing.assert_array_equal(predicted[0], predicted[1])
    np.testing.assert_array_equal(predicted[0], predicted[2])
    as_list = brief("images", [*whole[..., None]]).predict_proba(whole)
    np.testing.assert_array_equal(predicted[0], as_list)


def test_images_of_another_size_are_refused() -> None:
    estimator = brief("images", images(42, 5, 5, 3))
    with refused(
        ValueError, "X has images of 5 x 6 pixels with 3 channels; ImageClassifier was fitted on 5 x 5 pixels"
    ):
        estimator.predict(images(1, 5, 6, 3))
    with refused(ValueError, "5 x 5 pixels with 1 channel;"):
        estimator.predict(images(1, 5, 5))


def test_images_not_divisible_into_patches_are_scaled_alike_in_fit_and_predict() -> None:
    X = images(42, 9, 11)
    estimator = CASES["images"]().new(training=BRIEF, task=None).fit(X, LABELS)
    assert estimator.predict_proba(X).shape == (42, 2)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], "X is empty"),
        (np.zeros(42), "Expected 2D array, got 1D array"),
        (np.zeros((42, 2, 0)), "X has shape (42, 2, 0)"),
        (np.zeros((42, 1, 2, 3)), "dim 4"),
        (np.full((42, 5), np.inf), "infinity"),
        (np.full((42, 1, 5), -np.inf), "infinity"),
        (np.full((42, 5), "a"), "could not convert string to float"),
        ([np.zeros(3), np.full(4, np.inf)] * 21, "series 1 of X contains infinity"),
        ([np.zeros((2, 3)), np.zeros(4)] * 21, "series 1 of X has 1 channels, series 0 has 2"),
        ([np.zeros(3), np.zeros(0)] * 21, "series 1 of X has shape (0,)"),
        ([np.zeros(3), ["a"]] * 21, "series 1 of X is no array of numbers"),
        (
            [np.zeros(3), 1j * np.ones(4)] * 21,
            "series 1 of X is no array of numbers: it is complex128; pass real parts",
        ),
        (np.full((42, 5), np.nan), "is never observed|has no observed value"),
    ],
)
def test_inputs_that_are_not_series_are_refused(X: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - matched below
        brief("series", X)
    assert any(part in str(caught.value) for part in message.split("|")), str(caught.value)


@pytest.mark.slow
def test_all_forms_of_series_are_equivalent() -> None:
    whole = np.random.default_rng(0).normal(size=(42, 2, 7)).astype(np.float32)
    predicted = brief("series", whole).predict_proba(whole)
    objects = np.empty(43, object)
    objects[:] = [*whole, np.zeros((2, 3))]
    np.testing.assert_array_equal(predicted, brief("series", [*whole]).predict_proba([*whole]))
    np.testing.assert_allclose(predicted, brief("series", whole).predict_proba(objects)[:-1], rtol=1e-5)
    one = whole[:, 0]
    np.testing.assert_array_equal(
        brief("series", one).predict_proba(one), brief("series", one[:, None]).predict_proba([*one])
    )
    column = pd.DataFrame({"pulse": one.astype(float).tolist()})["pulse"]
    np.testing.assert_array_equal(
        brief("series", [*one.astype(float)]).predict_proba(column), brief("series", column).predict_proba(column)
    )


def test_images_of_several_sizes_and_files_are_scaled_and_cropped_to_one_size(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    varied = [draw.integers(0, 256, (4 + i % 3, 10, *([3] if i % 4 else []))).astype(np.uint8) for i in range(42)]
    files = [tmp_path / f"{i}.png" for i in range(42)]
    for file, pixels in zip(files, varied, strict=True):
        Image.fromarray(pixels).save(file)
    one = fit_images([torch.from_numpy(each if each.ndim == 3 else each[..., None].repeat(3, 2)) for each in varied])
    expected = brief("images", one)
    of_arrays, of_files = brief("images", varied), brief("images", pd.Series(files).astype(str))
    assert of_arrays.image_shape_ == of_files.image_shape_ == (5, 10, 3)
    for estimator in (of_arrays, of_files):
        np.testing.assert_array_equal(estimator.predict_proba(files), expected.predict_proba(one))
        np.testing.assert_array_equal(estimator.predict_proba([varied[1]]), expected.predict_proba(one[1:2]))
    np.testing.assert_array_equal(expected.predict_proba(files), expected.predict_proba(one))
    with refused(ValueError, "X has shape (5, 10, 3), which may be one image in colour; pass X[None]"):
        of_files.predict(varied[1])
    grey_and_colour = _pictures([np.zeros((5, 5), np.uint8), np.zeros((5, 5, 3), np.uint8)])
    assert (grey_and_colour.sizes, grey_and_colour.channels) == ([(5, 5), (5, 5)], 3)
    large = np.zeros((2, 600, 300), np.uint8)
    assert ImageClassifier()._stored_size(_pictures([large[0], large[1, :599]])) == (256, 128)
    chosen = ImageClassifier(task={"image_size": (7, 9)})
    assert chosen._stored_size(_pictures([large[0], large[1, :599]])) == (7, 9)


def fit_images(images: list[torch.Tensor]) -> np.ndarray:
    """Images `(H, W, C)` scaled and cropped to 5 x 10."""
    return torch.cat([fit(each.movedim(-1, 0)[None], (5, 10)) for each in images]).movedim(1, -1).numpy()


def test_missing_values_may_occur_in_training() -> None:
    X = np.random.default_rng(0).normal(size=(42, 7))
    X[::3, 2] = np.nan
    assert np.isfinite(brief("series", X).predict_proba(X)).all()


def test_the_number_of_samples_is_checked_for_tables_of_features_alone() -> None:
    X = np.random.default_rng(0).normal(size=(42, 7))
    estimator = brief("series", X)
    assert estimator.n_features_in_ == 7
    with refused(ValueError, "X has 6 features, but SeriesClassifier is expecting 7 features"):
        estimator.predict(X[:, :6])
    assert estimator.predict([each[:6] for each in X[:, None]]).shape == (42,)
    assert estimator.predict([X[0], X[1, :3]]).shape == (2,)
    assert estimator.predict([*X[:, :6]]).shape == (42,)
    listed = brief("series", [*X])
    assert listed.predict([*X[:, :6]]).shape == listed.predict(X[:, :6]).shape == (42,)
    assert brief("series", X.tolist()).n_features_in_ == 7
    assert not hasattr(listed, "n_features_in_")
    assert not hasattr(brief("series", X[:, None]), "n_features_in_")
    with refused(ValueError, "X has 2 channels; SeriesClassifier was fitted on 1"):
        estimator.predict(np.zeros((3, 2, 7)))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ("one text", "X is one text; expected a list of texts"),
        ([], "X has shape (0,)"),
        (np.full((42, 2), "a"), "X has shape (42, 2); expected (n,)"),
        (["a", 3] * 21, "X[1] is 3, of type int; expected a text"),
        (["a", None] * 21, "X[1] is None"),
        (["a", " \n"] * 21, "X[1] is an empty text"),
    ],
)
def test_inputs_that_are_not_texts_are_refused(X: Any, message: str) -> None:
    with refused(ValueError, message):
        brief("texts", X)


def test_any_text_is_accepted() -> None:
    X = np.array([f'{i}, "quoted"\tand\nbroken\u2028lines – ж' for i in range(42)])
    with (
        pytest.warns(UserWarning, match="have more than 24 tokens and are cut"),
        pytest.warns(UserWarning, match="valid texts of more than 24 tokens, .* are cut at the end: 5 of 5"),
    ):
        estimator = brief("texts", X)
    with pytest.warns(UserWarning, match="texts of more than 24 tokens, .* are cut at the end: 42 of 42"):
        assert estimator.predict(X.tolist()).shape == (42,)
    with pytest.warns(UserWarning, match="are cut at the end"):
        assert estimator.predict(X.astype(object)).shape == (42,)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], "X is empty"),
        (np.zeros((42, 3)), "X has shape (42, 3); expected clouds (n, N, 3 + F)"),
        (np.zeros((42, 5, 2)), "cloud 0 of X has shape (5, 2); expected (N, 3 + F)"),
        (np.full((42, 5, 3), np.nan), "cloud 0 of X contains NaN or infinity"),
        ([np.ones((5, 3)), np.zeros((0, 3))] * 21, "cloud 1 of X has shape (0, 3)"),
        ([np.ones((5, 3)), np.ones((4, 4))] * 21, "cloud 1 of X has 1 features beside 3 coordinates; expected 0"),
        ([np.ones((5, 3)), [["a", "b", "c"]]] * 21, "cloud 1 of X is no array of numbers"),
        (np.zeros((42, 5, 3, 1)), "cloud 0 of X has shape (5, 3, 1)"),
        (1j * np.ones((42, 5, 3)), "cloud 0 of X is no array of numbers: it is complex128"),
    ],
)
def test_inputs_that_are_not_clouds_are_refused(X: Any, message: str) -> None:
    with refused(ValueError, message):
        brief("points", X)


def test_clouds_may_differ_in_size() -> None:
    drawn = np.random.default_rng(0)
    X = [drawn.normal(size=(4 + i % 5, 3)) for i in range(42)]
    estimator = brief("points", X)
    predicted = estimator.predict_proba(X)
    np.testing.assert_allclose(predicted[:1], estimator.predict_proba(X[0][None]), rtol=1e-5)
    with refused(ValueError, "cloud 0 of X has 1 features beside 3 coordinates; expected 0"):
        estimator.predict(np.ones((2, 5, 4)))


PATH = np.array([[0, 1], [1, 2]])
THREE = np.ones((3, 2))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], "X: there are no graphs; pass at least one"),
        (
            np.zeros((42, 3)),
            "graph 0 of X is a ndarray; expected (edge_index, x), (edge_index, x, edge_features) or D",
        ),
        ([(PATH,)] * 42, "graph 0 of X is a tuple of 1; expected"),
        ([(PATH.T.astype(float), THREE)] * 42, "graph 0 of X has edges float64 (2, 2); expected integers (2, E)"),
        ([(np.zeros((4, 3), int), THREE)] * 42, "graph 0 of X has edges int64 (4, 3)"),
        ([(PATH, THREE), (PATH + 1, THREE)] * 21, "X: graph 1 has an edge to node 3; expected 0 to 2"),
        ([(PATH - 1, THREE)] * 42, "X: graph 0 has an edge to node -1"),
        ([(PATH, 0)] * 42, "graph 0 of X has 0 for its nodes; expected features (N, F), or N, at least 1"),
        ([(PATH, None)] * 42, "graph 0 of X has None for its nodes"),
        ([(PATH, [["a"]] * 3)] * 42, "graph 0 of X has features of nodes that are no array of numbers"),
        (
            [(PATH, 1j * THREE)] * 42,
            "graph 0 of X has features of nodes that are no array of numbers: it is complex128",
        ),
        ([(PATH, THREE * np.nan)] * 42, "X: graph 0, node 0: feature_0 is nan; expected a finite number"),
        ([(PATH, THREE, np.ones((1, 2)))] * 42, "X: graph 0 has edge features of shape (1, 2); expected (2, columns)"),
        ([(PATH, THREE), (PATH, np.ones((3, 1)))] * 21, "X: features have 2, 1 columns in different graphs"),
        ([(PATH, THREE), (PATH, THREE, np.ones((2, 1)))] * 21, "X: edge features have none, 1 columns"),
    ],
)
@pytest.mark.filterwarnings("ignore:X. .* taken both ways")
def test_inputs_that_are_not_graphs_are_refused(X: Any, message: str) -> None:
    with refused(ValueError, message):
        brief("graphs", X)


class Attributes:
    """A graph with the attributes of torch_geometric's `Data`."""

    def __init__(self, **given: Any) -> None:
        vars(self).update({"edge_attr": None, "edge_weight": None, "pos": None} | given)


def test_all_forms_of_graphs_are_equivalent() -> None:
    drawn = np.random.default_rng(0)
    both = np.concatenate([PATH, PATH[::-1]], axis=1)
    whole = [(both, drawn.normal(size=(3, 2)).astype(np.float32)) for _ in range(42)]
    predicted = brief("graphs", whole).predict_proba(whole)
    tensors = [Attributes(edge_index=torch.tensor(edges), x=torch.tensor(x)) for edges, x in whole]
    np.testing.assert_array_equal(predicted, brief("graphs", tensors).predict_proba(tensors))
    lists = [[edges.tolist(), x.tolist()] for edges, x in whole]
    np.testing.assert_array_equal(predicted, brief("graphs", whole).predict_proba(lists))
    drawn_from = [nx.path_graph(3) for _ in whole]
    for graph, (_, x) in zip(drawn_from, whole, strict=True):
        graph.add_nodes_from((i, {"b": row[1], "a": row[0]}) for i, row in enumerate(x))
    np.testing.assert_array_equal(predicted, brief("graphs", drawn_from).predict_proba(drawn_from))
    with pytest.warns(UserWarning, match="X: 84 edges listed one way: taken both ways"):
        one_way = brief("graphs", [(PATH, x) for _, x in whole])
    np.testing.assert_array_equal(predicted, one_way.predict_proba(whole))


def test_attributes_of_networkx_become_features() -> None:
    graph = nx.Graph()
    graph.add_nodes_from(
        [("p", {"kind": "Na", "q": [1, 2], "pos": (0.0, 1.0)}), ("r", {"kind": None, "q": [3, 4], "pos": (1, 2)})]
    )
    graph.add_edge("p", "r", weight=2.0, bond="single", is_long=True)
    one, alone = nx.DiGraph(graph), nx.Graph()
    alone.add_node(5, kind="C", q=(5, 6), pos=(0, 0))
    one.remove_edge("r", "p")
    found = arrays_of_networkx([graph, alone, one], None)
    assert found.features == ("kind=C", "kind=Na", "q_0", "q_1")
    assert found.edge_features == ("bond=single", "is_long")
    first, second, third = found.graphs
    assert first.features is not None
    assert first.features.tolist() == [[0, 1, 1, 2], [0, 0, 3, 4]]
    assert (first.edges.tolist(), third.edges.tolist(), second.edges.shape) == ([[0, 1], [1, 0]], [[0], [1]], (2, 0))
    assert first.edge_features is not None
    assert first.edge_features.tolist() == [[1, 1], [1, 1]]
    assert first.edge_weights is not None
    assert first.edge_weights.tolist() == [[2], [2]]
    assert second.pos is not None
    assert second.pos.tolist() == [[0, 0]]
    known = found.features, found.edge_features
    assert arrays_of_networkx([alone], known)[1:] == known
    for changed, message in (
        ({"kind": "F"}, "graph 0 of X, node 5: column 'kind': 'F' is none that the model knows; expected 'C', 'Na'"),
        ({"more": 1}, "graph 1 of X, node 'p': 'more' is an attribute of some nodes or edges alone"),
        ({"q": "far"}, "graph 0 of X, node 5: 'q' is 'far'; expected numbers, as elsewhere, or words everywhere"),
        ({"q": 7}, "graph 1 of X, node 'p': 'q' is [1, 2]; expected a number"),
    ):
        other = nx.Graph()
        other.add_node(5, **{"kind": "C", "q": [5, 6], "pos": (0, 0)} | changed)
        with refused(ValueError, message):
            arrays_of_networkx([other, graph], known)
    for alike, message in (
        ({"kind=C": 3}, "X: column 'kind=C' is called like a feature of the column of words 'kind'; rename one"),
        ({"q_1": 3}, "X: two attributes of nodes or edges give the feature 'q_1'; rename one"),
    ):
        other = nx.Graph()
        other.add_node(5, **{"kind": "C", "q": [5, 6]} | alike)
        with refused(ValueError, message):
            arrays_of_networkx([other], None)
    charged = nx.Graph()
    charged.add_node(0, kind="C", charge=1)
    with refused(ValueError, "X: the features of nodes are 'charge', 'kind=C', 'kind=Na'; the model knows 'kind=C',"):
        arrays_of_networkx([charged], known)
    with refused(ValueError, "graph 0 of X has no nodes"):
        arrays_of_networkx([nx.Graph()], None)
    with refused(ValueError, "X is a Graph; expected a list of graphs, such as [graph]"):
        brief("graphs", graph)


def test_directions_of_edges_are_kept_on_request() -> None:
    whole = CASES["graphs"]().X
    task = CASES["graphs"]().settings["task"] | {"directed": True}
    directed = CASES["graphs"]().new(training=BRIEF, task=task).fit(whole, LABELS)
    turned = [(edges[:, : edges.shape[1] // 2], x) for edges, x in whole]
    assert (directed.predict_proba(turned) != directed.predict_proba(whole)).any()
    assert (brief("graphs", whole).predict_proba(turned) == brief("graphs", whole).predict_proba(whole)).all()


def test_graphs_may_have_edges_and_edge_features_or_neither() -> None:
    none = np.zeros((2, 0))
    X = [(PATH, THREE, np.ones((2, 1))) if i % 2 else (none, THREE) for i in range(42)]
    with pytest.warns(UserWarning, match="taken both ways"):
        estimator = brief("graphs", X)
    assert estimator.predict(X).shape == (42,)
    with refused(ValueError, "X has 1 features a node; GraphClassifier was fitted on 2"):
        estimator.predict([(PATH, np.ones((3, 1)), np.ones((2, 1)))])
    with refused(ValueError, "X has 0 features an edge; GraphClassifier was fitted on 1"):
        estimator.predict([(PATH, THREE)])
    counted = [(none, 2 + i % 2) for i in range(42)]
    structure = CASES["graphs"]().new(training=BRIEF, task=None).fit(counted, LABELS)
    assert structure.predict_proba(counted).shape == (42, 2)
    with refused(ValueError, "X is a int; expected a list of graphs, such as [graph]"):
        structure.predict(3)
    with refused(ValueError, "X is a Attributes; expected a list of graphs"):
        structure.predict(Attributes(edge_index=none, x=None, num_nodes=3))
    predicted = structure.predict_proba([Attributes(edge_index=None, x=None, num_nodes=3)])
    np.testing.assert_allclose(predicted, structure.predict_proba([(none, 3)]))


class Frame:
    """A table with columns, like a data frame."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)
        self.columns = [f"column {c}" for c in range(self._values.shape[-1])]
        self.shape = self._values.shape

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Any:
        return iter(self.columns)

    def to_numpy(self) -> np.ndarray:
        return self._values


class ArrayFrame(Frame):
    """A table that numpy converts to an array."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._values if dtype is None else self._values.astype(dtype)


@pytest.mark.parametrize("kind", [Frame, ArrayFrame])
@pytest.mark.parametrize("name", ["images", "series", "texts", "points"])
def test_tables_are_accepted_as_arrays(name: str, kind: type[Frame]) -> None:
    case = CASES[name]()
    X = np.asarray(case.X)[:, 0] if name == "series" else np.asarray(case.X)
    predicted = case.new(training=BRIEF).fit(X, LABELS).predict_proba(X)
    estimator = case.new(training=BRIEF).fit(kind(X), kind(LABELS))  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(predicted, estimator.predict_proba(kind(X)))


def test_refitting_on_another_form_of_series_removes_the_number_of_features() -> None:
    X = np.random.default_rng(0).normal(size=(42, 7))
    estimator = brief("series", X)
    estimator.fit(X[:, None], LABELS)
    assert not hasattr(estimator, "n_features_in_")
    assert estimator.predict(X[:, :6]).shape == (42,)


def test_a_failed_fit_leaves_no_fitted_state() -> None:
    X = np.random.default_rng(0).normal(size=(42, 7))
    estimator = brief("series", X)
    with refused(ValueError, "y has only one class"):
        estimator.fit(np.zeros((42, 2, 7)), 0 * LABELS)
    with pytest.raises(NotFittedError):
        estimator.predict(X)


def test_a_pair_of_values_and_times_is_not_read_as_two_channels() -> None:
    times = np.linspace(0, 1, 12)
    for X in ([(np.sin(times), times)] * NUM, [(np.sin(times[: 5 + i % 4]), times[: 5 + i % 4]) for i in range(NUM)]):
        with refused(ValueError, "series 0 of X is a tuple of 2; expected an array (T,) or (C, T)", "read from files"):
            SeriesClassifier().fit(X, LABELS)
