"""Positions for the nodes of a graph: eigenvectors of its Laplacian.

    Δ = I - D^-1/2 A D^-1/2,    Δ φ_i = λ_i φ_i,    x_v = √n (φ_1(v), …, φ_s(v))

with A the adjacency, D its degrees and 0 < λ_1 <= λ_2 <= … of one connected component of n nodes, the trivial
eigenvector t ∝ √degree with eigenvalue 0 left out.

Source: ITNet (arXiv 2606.19538), J.1, eq. 262, without the √n.
"""

from typing import Any

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.domains.domain import check_tensor

DENSE_NODES = 512
"""Largest number of nodes of a component that is diagonalised as a dense matrix."""
DENSE_ELEMENTS = 1 << 24
"""Largest number of matrix entries that are diagonalised at once."""
FACTORISED_FLOPS = 5e10
"""Largest work to factorise a sparse Laplacian as a band matrix; above it the solver uses products."""
SHIFT = 1e-9
"""Shift of the eigenvalues of a Laplacian that is factorised, because the trivial one is 0."""
TOLERANCES = (1e-10, 1e-5)
"""Relative errors of sparse eigenvalues: the tolerance of the solver, and the fallback where that takes too long."""
PRODUCTS = 20_000
"""Number of products with the Laplacian, or its inverse, after which a tolerance counts as not reached."""
LARGEST_RESIDUAL = 1e-3
"""‖Δφ - λφ‖ above which a vector is refused."""


def laplacian_positions(edge_index: Tensor, num_nodes: int, num_vectors: int = 8) -> Tensor:
    """Positions of the nodes of an undirected graph from its normalised Laplacian (ITNet, arXiv 2606.19538, eq. 262).

    Coordinates are the eigenvectors of the smallest eigenvalues of each connected component, without its trivial one,
    so they do not depend on other components. A component of n nodes has n - 1 of them at most; further coordinates,
    and those of isolated nodes, are 0.

    Deviation from the paper: eigenvectors of unit length are multiplied by √n of their component, so that each
    coordinate has mean square 1 over it, however large the graph is.

    The sign of an eigenvector is that which makes the sum of its cubes positive. Where this sum is 0 to rounding, as by
    a symmetry of the graph, the sign is arbitrary, and so is the basis of the eigenvectors that share an eigenvalue.
    The same component always gets the same numbers, whatever other components the graph has.

    Components of up to 512 nodes are diagonalised whole on the device of `edge_index`; larger ones by scipy's sparse
    solver on the CPU: a graph whose edges fit into a narrow band is factorised, any other one multiplied, until
    ‖Δφ - λφ‖ is about 1e-10, or 1e-5 where that takes too long.

    Args:
        edge_index: edges (from, to), `(2, E)` int64 in [0, num_nodes), each in both directions. Duplicates and edges
            from a node to itself are ignored.
        num_nodes: N >= 0.
        num_vectors: s >= 1.

    Returns:
        float64 `(N, s)` on the device of `edge_index`.

    Raises:
        ValueError: on an edge without its reverse, or whose nodes do not exist, numbers out of range, and where the
            sparse solver finds no eigenvectors.
        TypeError: on edges that are not an int64 tensor, numbers that are not whole.
        ImportError: a component of more than 512 nodes needs scipy.
    """
    name = "laplacian_positions"
    check_count(name, "num_nodes", num_nodes, least=0)
    check_count(name, "num_vectors", num_vectors)
    _check_edges(name, edge_index)
    if edge_index.numel() and int(edge_index.max()) >= num_nodes:
        raise ValueError(f"{name}: edge_index names node {int(edge_index.max())} of {num_nodes}; count nodes from 0")
    source, target = _without_repeats(edge_index, num_nodes)
    _check_undirected(name, source, target, num_nodes)
    owner, size = _components(source, target, num_nodes)
    order = owner.argsort(stable=True)
    first = size.cumsum(0) - size
    place = torch.empty_like(order)  # index of a node within its component
    place[order] = torch.arange(num_nodes, device=order.device) - first[owner[order]]
    out = torch.zeros(num_nodes, num_vectors, dtype=torch.float64, device=edge_index.device)
    for n in size.unique().tolist():
        if n == 1:
            continue
        several = (size == n).nonzero()[:, 0]
        is_dense = n <= max(DENSE_NODES, 4 * num_vectors)
        for some in several.split(max(1, DENSE_ELEMENTS // (n * n)) if is_dense else 1):
            rank = torch.full_like(size, -1)
            rank[some] = torch.arange(len(some), device=rank.device)
            inside = rank[owner[source]] >= 0
            edges = torch.stack([place[source[inside]], place[target[inside]]])
            if is_dense:
                vectors = _dense(rank[owner[source[inside]]], edges, len(some), n, num_vectors)
            else:
                vectors = _sparse(name, edges, n, num_vectors).to(out.device)[None]
            nodes = order[first[some, None] + torch.arange(n, device=order.device)]
            out[nodes, : vectors.shape[-1]] = n**0.5 * _with_sign(vectors)
    return out


def undirected(edge_index: Tensor) -> Tensor:
    """The edges of a graph in both directions, each once, sorted.

    Args:
        edge_index: edges (from, to), `(2, E)` int64 >= 0.

    Returns:
        `(2, E')` int64. An edge from a node to itself is kept.

    Raises:
        ValueError: on another shape, and on negative nodes.
        TypeError: on edges that are not an int64 tensor.
    """
    _check_edges("undirected", edge_index)
    if edge_index.numel() == 0:
        return edge_index.clone()
    num_nodes = int(edge_index.max()) + 1
    both = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    return torch.stack(_decoded(_coded(both[0], both[1], num_nodes).unique(), num_nodes))


def _check_edges(name: str, edge_index: Tensor) -> None:
    check_tensor(name, "edge_index", edge_index)
    if edge_index.dtype != torch.int64:
        raise TypeError(f"{name}: edge_index must be int64; got {edge_index.dtype}")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"{name}: edge_index must have shape (2, E); got {tuple(edge_index.shape)}")
    if edge_index.numel() and int(edge_index.min()) < 0:
        raise ValueError(f"{name}: edge_index names node {int(edge_index.min())}; count nodes from 0")


def _coded(source: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """A number for each edge, in the order of its source, then of its target."""
    return source * num_nodes + target


def _decoded(code: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Source and target of each edge."""
    return code // num_nodes, code % num_nodes


def _without_repeats(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Source and target of every edge, each once and none from a node to itself, sorted."""
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    return _decoded(_coded(source, target, num_nodes).unique(), max(1, num_nodes))


def _check_undirected(name: str, source: Tensor, target: Tensor, num_nodes: int) -> None:
    """Raises ValueError on the first edge whose reverse is missing; edges are unique and sorted."""
    forward = _coded(source, target, num_nodes)
    missing = ~torch.isin(_coded(target, source, num_nodes), forward, assume_unique=True)
    if bool(missing.any()):
        at = int(missing.nonzero()[0])
        raise ValueError(
            f"{name}: edge_index has the edge ({int(source[at])}, {int(target[at])}) without its reverse; "
            "domains.undirected(edge_index) makes an undirected graph of it; a Graph of directed edges needs its pos"
        )


def _components(source: Tensor, target: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """The connected component of each node, `(N,)`, and the number of nodes of each, `(C,)`."""
    parent = torch.arange(num_nodes, device=source.device)
    while True:
        # every root hooks onto the lowest grandparent next to its tree, and all trees become flatter (FastSV)
        above = parent[parent]
        lowest = above.scatter_reduce(0, source, above[target], "amin")
        hooked = parent.scatter_reduce(0, parent, lowest, "amin").minimum(lowest)
        if torch.equal(hooked, parent):
            break
        parent = hooked
    _, owner, size = parent.unique(return_inverse=True, return_counts=True)
    return owner, size


def _dense(component: Tensor, edges: Tensor, count: int, n: int, num_vectors: int) -> Tensor:
    """Unit eigenvectors of `count` components of n nodes, `(count, n, min(num_vectors, n - 1))`."""
    adjacency = torch.zeros(count, n, n, dtype=torch.float64, device=edges.device)
    adjacency[component, edges[0], edges[1]] = 1.0
    root = adjacency.sum(-1).sqrt()
    laplacian = torch.eye(n, dtype=root.dtype, device=root.device) - adjacency / (root[:, :, None] * root[:, None])
    trivial = root / root.norm(dim=-1, keepdim=True)
    # eigenvalues are in [0, 2]: that of the trivial vector is moved beyond, so that no other vector mixes with it
    whole = laplacian + 3.0 * trivial[:, :, None] * trivial[:, None]
    # one by one, each in memory of its own: rounding in a batch depends on the place in it, and where eigenvalues are
    # equal, rounding chooses the basis
    vectors = torch.stack([torch.linalg.eigh(each.clone()).eigenvectors for each in whole])
    return vectors[..., : min(num_vectors, n - 1)]


def _sparse(name: str, edges: Tensor, n: int, num_vectors: int) -> Tensor:
    """Unit eigenvectors of one large component, `(n, num_vectors)`, on the CPU."""
    try:
        import numpy as np
        from scipy.sparse import csr_array
        from scipy.sparse.linalg import ArpackNoConvergence
    except ImportError as error:
        raise ImportError(
            f'{name}: a component of {n} nodes needs scipy; get it with: pip install "fredholm[graph]"'
        ) from error
    source, target = edges.cpu().numpy()
    root = np.sqrt(np.bincount(source, minlength=n))
    adjacency = csr_array((1.0 / (root[source] * root[target]), (source, target)), shape=(n, n))
    trivial, stretched = (root / np.linalg.norm(root))[:, None], _stretched(adjacency)
    for tolerance in TOLERANCES:
        try:
            vectors = _largest(stretched, trivial, num_vectors, tolerance)
        except ArpackNoConvergence:
            continue
        moved = vectors - adjacency @ vectors
        value = (vectors * moved).sum(0)
        if np.linalg.norm(moved - value * vectors, axis=0).max() <= LARGEST_RESIDUAL:
            return torch.from_numpy(vectors[:, value.argsort()].copy())
    raise ValueError(
        f"{name}: the sparse solver finds no {num_vectors} eigenvectors of a component of {n} nodes; ask for fewer"
    )


def _largest(operator: Any, without: Any, num_vectors: int, tolerance: float) -> Any:
    """Unit eigenvectors of the largest eigenvalues of an operator on the complement of the span of `without` `(n, m)`.

    A Krylov space of one start vector holds one eigenvector of each eigenvalue. Others come with rounding, but not all
    in time, so each answer is checked: nothing orthogonal to it may have a larger eigenvalue.

    Raises:
        ArpackNoConvergence: after `PRODUCTS` products.
    """
    import numpy as np
    from scipy.sparse import linalg

    solver: Any = linalg  # its type stubs are narrower than the function
    n, generator = len(without), np.random.default_rng(0)

    def largest(count: int, without: Any) -> tuple[Any, Any]:
        def project(x: Any) -> Any:
            return x - without @ (without.T @ x)

        def multiply(x: Any) -> Any:
            return project(operator(project(np.ravel(x))))

        held = 2 * count + 24
        start = project(generator.standard_normal(n))
        deflated = solver.LinearOperator((n, n), matvec=multiply, dtype=np.float64)
        return solver.eigsh(deflated, count, which="LA", v0=start, tol=tolerance, ncv=held, maxiter=PRODUCTS // held)

    values, vectors = largest(num_vectors, without)
    while True:
        value, vector = largest(1, np.hstack([without, vectors]))
        least = values.argmin()
        if value[0] <= values[least] * (1 + 10 * tolerance):
            return vectors
        values[least], vectors[:, least] = value[0], vector[:, 0]


def _stretched(adjacency: Any) -> Any:
    """x ↦ f(Δ) x with f decreasing: its largest eigenvalues belong to the smallest λ, well separated if that is cheap.

    A long graph has small eigenvalues close together, but a narrow band, and a Δ that is quickly factorised; a graph
    that has no narrow band has few small eigenvalues.
    """
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import splu

    n = len(adjacency.indptr) - 1
    if n * _band(adjacency) ** 2 > FACTORISED_FLOPS:
        return lambda x: adjacency @ x + x
    laplacian = ((1.0 + SHIFT) * eye_array(n, format="csc") - adjacency).tocsc()
    return splu(laplacian, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).solve


def _band(adjacency: Any) -> int:
    """Bandwidth of the adjacency in a good order of the nodes; trees that hang on the rest do not count.

    They are left out because they are eliminated first, which makes no new edges.
    """
    import numpy as np
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    first, neighbours, degree = (
        part.tolist() for part in (adjacency.indptr, adjacency.indices, np.diff(adjacency.indptr))
    )
    leaves = [node for node, count in enumerate(degree) if count == 1]
    while leaves:
        leaf = leaves.pop()
        degree[leaf] = 0
        for node in neighbours[first[leaf] : first[leaf + 1]]:
            degree[node] -= 1
            if degree[node] == 1:
                leaves.append(node)
    core = np.flatnonzero(np.asarray(degree) > 0)
    if len(core) == 0:
        return 0
    rest = adjacency[core][:, core]
    place = np.empty(len(core), dtype=np.int64)
    place[reverse_cuthill_mckee(rest, symmetric_mode=True)] = np.arange(len(core))
    rows, columns = rest.nonzero()
    return int(np.abs(place[rows] - place[columns]).max())


def _with_sign(vectors: Tensor) -> Tensor:
    """Eigenvectors `(C, n, s)`, signed so that the sum of cubes over n is positive, where it is not 0 to rounding."""
    cubes = vectors**3
    total = cubes.sum(-2, keepdim=True)
    is_turned = total < -1e-8 * cubes.abs().sum(-2, keepdim=True)
    return torch.where(is_turned, -vectors, vectors)
