"""Random graphs of four kinds, counts of triangles, nodes in groups, and edges by distance and between modules."""

import ast
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.first_runs.first_run import FirstRun, Peer, accuracy, fitted, learnable
from fredholm.tasks.graphs import open_graphs
from fredholm.tasks.splits.splits import HeldOut

Edges = list[tuple[int, int]]
KINDS = ("uniform", "small world", "geometric", "blocks")


def four_kinds(folder: Path, seed: int) -> Path:
    """Graphs of 30 to 60 nodes and 2.5 edges per node, labelled by which of four generators made them."""
    draw, graphs, labels = np.random.default_rng(seed), list[tuple[int, Edges]](), []
    for i in range(480):
        size, kind = int(draw.integers(30, 61)), KINDS[i % len(KINDS)]
        count, pairs = round(2.5 * size), np.stack(np.triu_indices(size, 1), 1)
        if kind == "small world":
            ring = nx.watts_strogatz_graph(size, 6, 0.6, seed=int(draw.integers(2**31)))
            pairs = np.array(ring.edges)
        cost = draw.random(len(pairs))
        if kind == "geometric":
            cost = _apart(draw.random((size, 2)), pairs) + draw.normal(0, 0.12, len(pairs))
        if kind == "blocks":
            side = draw.integers(2, size=size)[pairs]
            cost = draw.exponential(1 / np.where(side[:, 0] == side[:, 1], 0.85, 0.15))
        graphs.append((size, pairs[np.argsort(cost)[:count]].tolist()))
        labels.append(kind)
    return _saved(folder / "four_kinds.npz", graphs, labels=np.array(labels))


def triangles(folder: Path, seed: int) -> Path:
    """Graphs of 12 to 32 nodes, and the number of their triangles."""
    draw, graphs, numbers = np.random.default_rng(seed), list[tuple[int, Edges]](), []
    for _ in range(600):
        size = int(draw.integers(12, 33))
        pairs = np.stack(np.triu_indices(size, 1), 1)
        cost = _apart(draw.random((size, 2)), pairs) + draw.uniform(0, 0.6) * draw.normal(size=len(pairs))
        edges = pairs[np.argsort(cost)[: round(size * draw.uniform(1.2, 2.8))]].tolist()
        graphs.append((size, edges))
        at_nodes: Any = nx.triangles(_graph(size, edges))
        numbers.append(sum(at_nodes.values()) / 3)
    return _saved(folder / "triangles.npz", graphs, targets=np.array(numbers))


def groups(shift: int) -> Callable[[Path, int], Path]:
    """1,200 people in five groups with noisy features; 85 % of friends belong to the group ``shift`` further on."""

    def make(folder: Path, seed: int) -> Path:
        draw, size, count = np.random.default_rng(seed), 1200, 5
        label, edges = draw.integers(count, size=size), set[tuple[int, int]]()
        while len(edges) < 3 * size:
            person = int(draw.integers(size))
            group = (label[person] + shift) % count if draw.random() < 0.85 else draw.integers(count)
            friend = int(draw.choice(np.flatnonzero(label == group)))
            if person != friend:
                edges.add((min(person, friend), max(person, friend)))
        features = draw.normal(size=(count, 16))[label] + 2 * draw.normal(size=(size, 16))
        path = folder / "groups.npz"
        named = np.array([f"group {k}" for k in label])
        np.savez(path, edges=np.array(sorted(edges)), features=features.astype(np.float32), labels=named)
        return path

    return make


def near_pairs(folder: Path, seed: int) -> Path:
    """2,800 edges between 700 nodes that are near each other and alike; features are noisy copies of both."""
    draw, size = np.random.default_rng(seed), 700
    place, kind = draw.random((size, 2)), draw.normal(size=(size, 3))
    pairs = np.stack(np.triu_indices(size, 1), 1)
    cost = _apart(place, pairs) / 0.06 + _apart(kind, pairs) + draw.normal(0, 0.7, len(pairs))
    features = np.concatenate(
        [kind + 0.3 * draw.normal(size=kind.shape), place + 0.15 * draw.normal(size=place.shape)], 1
    )
    path = folder / "near_pairs.npz"
    np.savez(path, edges=pairs[np.argsort(cost)[: 4 * size]], features=features.astype(np.float32))
    return path


def imports_of(package: str) -> Callable[[Path, int], Path]:
    """Imports between the modules of an installed package; the seed has no effect."""

    def make(folder: Path, seed: int) -> Path:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        root = Path(spec.submodule_search_locations[0])
        files: dict[str, Path] = {}
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root.parent).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
        edges = {
            (min(name, other), max(name, other))
            for name, file in files.items()
            for other in _imported(name, file)
            if other in files and other != name
        }
        names = sorted({name for edge in edges for name in edge})
        number = {name: i for i, name in enumerate(names)}
        path = folder / "imports.npz"
        ends = np.array([(number[one], number[other]) for one, other in sorted(edges)])
        np.savez(path, edges=ends, num_nodes=len(names), node_names=np.array(names))
        return path

    return make


def _imported(name: str, file: Path) -> Iterator[str]:
    """Modules in a file's import statements, and the imported names, which may be modules too."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (part for alias in node.names for part in (module, f"{module}.{alias.name}"))


def _apart(place: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return np.linalg.norm(place[pairs[:, 0]] - place[pairs[:, 1]], axis=-1)


def _graph(size: int, edges: Edges) -> nx.Graph:
    graph = nx.empty_graph(size)
    graph.add_edges_from(edges)
    return graph


def _saved(path: Path, graphs: Sequence[tuple[int, Edges]], **arrays: Any) -> Path:
    sizes = np.array([size for size, _ in graphs])
    starts = np.cumsum(sizes) - sizes
    edges = np.concatenate(
        [np.array(own).reshape(-1, 2) + start for (_, own), start in zip(graphs, starts, strict=True)]
    )
    owner = np.repeat(np.arange(len(graphs)), sizes)
    np.savez(path, edges=edges, graph=owner, num_nodes=len(owner), **arrays)
    return path


def _each(part: Any) -> Iterator[nx.Graph]:
    """Each graph of a set."""
    for i in range(len(part)):
        edges = part.edge_index[:, part.edge_offsets[i] : part.edge_offsets[i + 1]]
        yield _graph(int(part.num_nodes[i]), edges.T.tolist())


def _truth(part: Any) -> np.ndarray:
    return part.targets.numpy()[:, 0] if part.labels is None else part.labels.numpy()


def degrees(part: Any) -> tuple[np.ndarray, np.ndarray]:
    """Features of graphs: nodes, edges, deviation of degrees, their histogram up to 12, and clustering; and targets."""
    rows = []
    for graph in _each(part):
        found = np.array([degree for _, degree in graph.degree])
        counts = np.bincount(np.minimum(found, 12), minlength=13)
        rows.append([len(graph), graph.number_of_edges(), found.std(), *counts, nx.average_clustering(graph)])
    return np.array(rows), _truth(part)


def neighbourhoods(part: Any) -> tuple[np.ndarray, np.ndarray]:
    """Features of graphs: hashed counts of Weisfeiler-Lehman neighbourhoods up to three edges wide; and targets."""
    rows = np.zeros((len(part), 4096))
    for i, graph in enumerate(_each(part)):
        colours = nx.weisfeiler_lehman_subgraph_hashes(graph, iterations=3, include_initial_labels=True)
        for word in (word for words in colours.values() for word in words):
            rows[i, int(word[:8], 16) % rows.shape[1]] += 1
    return np.sqrt(rows), _truth(part)


def mean_error(model: Any, features: Callable[[Any], tuple[Any, np.ndarray]]) -> Peer:
    """The mean absolute error of a scikit-learn regressor."""
    answers = fitted(model, features)

    def peer(task: Any, split: HeldOut) -> float:
        truth, predicted = answers(task, split)
        return float(np.abs(truth - predicted).mean())

    return peer


def _adjacency(edges: np.ndarray, size: int) -> tuple[Any, np.ndarray]:
    """The adjacency matrix of a graph with edges in both directions, and the degrees."""
    matrix = sp.csr_matrix((np.ones(edges.shape[1]), edges), (size, size))
    matrix.data[:] = 1
    return matrix, np.asarray(matrix.sum(1)).ravel()


def averaged(hops: int) -> Peer:
    """Logistic regression on features of a node and on their repeated means over neighbours, ``hops`` times."""

    def peer(task: Any, split: HeldOut) -> float:
        graph, held_out = open_graphs(task.config.data), task.held_out(split)
        matrix, degree = _adjacency(graph.edge_index.numpy(), len(graph.features))
        step = sp.diags(1 / np.maximum(degree, 1)) @ matrix
        features = [graph.features.numpy()]
        for _ in range(hops):
            features.append(step @ features[-1])
        rows, parts = np.concatenate(features, 1), learnable(task, split)
        nodes = np.concatenate([part.nodes.numpy() for part in parts])
        labels = np.concatenate([part.answers.values.numpy() for part in parts])
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(rows[nodes], labels)
        return float((model.predict(rows[held_out.nodes.numpy()]) == held_out.answers.values.numpy()).mean())

    return peer


def spread(task: Any, split: HeldOut) -> float:
    """Label propagation: known classes spread along the edges with a factor of 0.9 per step."""
    graph, held_out = open_graphs(task.config.data), task.held_out(split)
    matrix, degree = _adjacency(graph.edge_index.numpy(), len(graph.features))
    step, known = sp.diags(1 / np.maximum(degree, 1)) @ matrix, np.zeros((len(degree), len(graph.classes)))
    for part in learnable(task, split):
        known[part.nodes.numpy(), part.answers.values.numpy()] = 1
    predicted = known
    for _ in range(50):
        predicted = np.where(known.sum(1, keepdims=True) > 0, known, 0.9 * (step @ predicted))
    return float((predicted[held_out.nodes.numpy()].argmax(1) == held_out.answers.values.numpy()).mean())


def between(score: Callable[[Any, np.ndarray], Any]) -> Peer:
    """AUROC of a score for each pair, from the matrix of known edges and the degrees."""

    def peer(task: Any, split: HeldOut) -> float:
        pairs, truth = _labelled_pairs(task.held_out(split))
        found = np.asarray(score(*_known_edges(task, split)))
        return float(roc_auc_score(truth, found[pairs[:, 0], pairs[:, 1]]))

    return peer


def of_pairs(model: Any) -> Peer:
    """AUROC of a classifier of pairs, by common neighbours, walks, degrees and features of both ends."""

    def peer(task: Any, split: HeldOut) -> float:
        matrix, degree = _known_edges(task, split)
        features = open_graphs(task.config.data).features.numpy()
        common, rare, longer = (
            np.asarray(own)
            for own in ((matrix @ matrix).todense(), _adamic_adar(matrix, degree), (matrix @ matrix @ matrix).todense())
        )

        def rows(pairs: np.ndarray, are_edges: bool) -> np.ndarray:
            a, b = pairs.T
            own = degree[a] + degree[b] - 1 if are_edges else 0  # walks over the edge itself
            left = [degree[end] - are_edges for end in (a, b)]
            found = [common[a, b], rare[a, b], longer[a, b] - own, left[0] * left[1], np.minimum(*left)]
            shown = [np.log1p(np.maximum(number, 0)) for number in found]
            return np.stack([*shown, *(features[a] * features[b]).T, *np.abs(features[a] - features[b]).T], 1)

        parts = learnable(task, split)
        inputs = np.concatenate(
            [rows(getattr(part, own).numpy(), own == "pairs") for part in parts for own in ("pairs", "others")]
        )
        targets = np.concatenate([np.full(len(part), own == "pairs") for part in parts for own in ("pairs", "others")])
        pairs, truth = _labelled_pairs(task.held_out(split))
        chance = model.fit(inputs, targets).predict_proba(rows(pairs, False))[:, 1]
        return float(roc_auc_score(truth, chance))

    return peer


def _known_edges(task: Any, split: HeldOut) -> tuple[Any, np.ndarray]:
    ends = np.concatenate([part.pairs.numpy() for part in learnable(task, split)]).T
    return _adjacency(np.concatenate([ends, ends[::-1]], 1), len(open_graphs(task.config.data).features))


def _labelled_pairs(part: Any) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.concatenate([part.pairs.numpy(), part.others.numpy()])
    return pairs, np.repeat([1, 0], len(part))


def _adamic_adar(matrix: Any, degree: np.ndarray) -> Any:
    return (matrix @ sp.diags(1 / np.log(np.maximum(degree, 2))) @ matrix).todense()


NODE_PEERS = {
    "logistic regression, features": averaged(0),
    "and means over 2 steps": averaged(2),
    "label propagation": spread,
}
LINK_PEERS = {
    "Adamic-Adar": between(_adamic_adar),
    "product of degrees": between(lambda matrix, degree: np.outer(degree, degree)),
    "logistic regression of pairs": of_pairs(make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))),
    "boosting of pairs": of_pairs(HistGradientBoostingClassifier(random_state=0)),
}
FIRST_RUNS = (
    FirstRun(
        name="four_kinds",
        task="graphs",
        data="480 random graphs, which of 4 generators",
        make=four_kinds,
        peers={
            "Weisfeiler-Lehman, SVM": accuracy(SVC(C=10.0), neighbourhoods),
            "boosting, degrees and clustering": accuracy(HistGradientBoostingClassifier(random_state=0), degrees),
        },
    ),
    FirstRun(
        name="triangles",
        task="graphs",
        data="600 graphs, how many triangles",
        make=triangles,
        peers={
            "boosting, degrees and clustering": mean_error(HistGradientBoostingRegressor(random_state=0), degrees),
        },
    ),
    FirstRun(name="groups_alike", task="nodes", data="friends of one group", make=groups(0), peers=NODE_PEERS),
    FirstRun(name="groups_unlike", task="nodes", data="friends of other groups", make=groups(1), peers=NODE_PEERS),
    FirstRun(name="near_pairs", task="links", data="near and alike nodes", make=near_pairs, peers=LINK_PEERS),
    FirstRun(name="imports", task="links", data="modules of SciPy", make=imports_of("scipy"), peers=LINK_PEERS),
)
