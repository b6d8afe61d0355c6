"""Every kernel by every route under PyTorch's transforms: the right results, or an error that says what to do.

Expected values come from finite differences and loops of ordinary calls. The parameters that the tests pass differ from
those of the module, so that code which reads the module's own parameters fails.
"""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, linearize, vmap

from fredholm import IntegralOperator, kernels
from fredholm.domains import Domain, Graph, Grid, Points, Sequence
from fredholm.evaluation import AUTO, ROUTES, BasisTiled, CentralPooling, Evaluation, Woodbury

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # PyTorch's own operators under vmap
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),  # in torch.func.linearize
]

Leaves = dict[str, Tensor]
"""Parameters, and the signal as "u"."""

POINTS = Points(torch.rand(5, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
SEQUENCE = Sequence(5)
GRAPH = Graph(torch.tensor([[0, 1, 1, 2, 3, 4, 4], [1, 0, 2, 1, 4, 3, 0]]), 5, pos=POINTS.pos)
SMALL: dict[str, Any] = {"width": 4, "num_frequencies": 2, "sigma": 1.0}
POSITIONS = kernels.KernelInputs(query_content=False, key_content=False, product=False)
HOPS: dict[str, Any] = {"activation": "gelu", "learn_gamma": True}

KERNELS: dict[str, tuple[Callable[[], kernels.Kernel], Domain]] = {
    "AdditiveAttention": (lambda: kernels.AdditiveAttention(4, 2), POINTS),
    "Attention": (lambda: kernels.Attention(4, 2), POINTS),
    "Constant": (lambda: kernels.Constant(4, 3), POINTS),
    "Diffusion": (lambda: kernels.Diffusion(4, num_steps=3), GRAPH),
    "OnEdges": (lambda: kernels.OnEdges(kernels.MLP(4, 2, **SMALL), long_range=None), GRAPH),
    "OnEdges, attention": (lambda: kernels.OnEdges(kernels.Attention(4, 2), long_range=None), GRAPH),
    "OnEdges, low rank": (lambda: kernels.OnEdges(kernels.LowRankMLP(4, 2, rank=2, **SMALL)), GRAPH),
    "Attention, causal": (lambda: kernels.Attention(4, 2, is_causal=True), SEQUENCE),
    "UnnormalisedAttention": (lambda: kernels.UnnormalisedAttention(4, 2), POINTS),
    "UnnormalisedAttention, causal": (lambda: kernels.UnnormalisedAttention(4, 2, is_causal=True), SEQUENCE),
    "LinearAttention": (lambda: kernels.LinearAttention(4, 2), POINTS),
    "LinearAttention, causal": (lambda: kernels.LinearAttention(4, 2, is_causal=True), SEQUENCE),
    "YatAttention": (lambda: kernels.YatAttention(4, 2, epsilon=0.3, learn_epsilon=True), POINTS),
    "YatAttention, causal": (lambda: kernels.YatAttention(4, 2, epsilon=0.3, is_causal=True), SEQUENCE),
    "Yat": (lambda: kernels.Yat(4, 3, epsilon=0.3), POINTS),
    "InfiniteAttention": (lambda: kernels.InfiniteAttention(4, 2, **HOPS), POINTS),
    "InfiniteAttention, one hop": (lambda: kernels.InfiniteAttention(4, 2, form="hop", activation="gelu"), POINTS),
    "InfiniteAttention, causal": (lambda: kernels.InfiniteAttention(4, 2, is_causal=True, **HOPS), SEQUENCE),
    "FactorisedInfiniteAttention": (lambda: kernels.FactorisedInfiniteAttention(4, 2), POINTS),
    "FactorisedInfiniteAttention, causal": (
        lambda: kernels.FactorisedInfiniteAttention(4, 2, is_causal=True),
        SEQUENCE,
    ),
    "LinearInfiniteAttention": (lambda: kernels.LinearInfiniteAttention(4, 2), POINTS),
    "MLP": (lambda: kernels.MLP(4, 2, **SMALL), POINTS),
    "MLP, grid": (lambda: kernels.MLP(4, 2, depth=3, **SMALL), Grid(5)),
    "MLP, positions": (lambda: kernels.MLP(4, 2, inputs=POSITIONS, head_shared=True, **SMALL), POINTS),
    "LowRankMLP": (lambda: kernels.LowRankMLP(4, 2, rank=2, **SMALL), POINTS),
    "LowRankMLP, causal": (lambda: kernels.LowRankMLP(4, 2, rank=2, is_causal=True, **SMALL), SEQUENCE),
    "SeparableMLP": (lambda: kernels.SeparableMLP(4, 2, **SMALL), POINTS),
    "SeparableMLP, causal": (lambda: kernels.SeparableMLP(4, 2, is_causal=True, **SMALL), SEQUENCE),
    "ContinuousConvolution": (lambda: kernels.ContinuousConvolution(4, 3, width=4, omega_0=3.0), POINTS),
    "ContinuousConvolution, grid": (lambda: kernels.ContinuousConvolution(4, 3, width=4, omega_0=3.0), Grid(5)),
    "Convolution": (lambda: kernels.Convolution(4, 3, 3, padding=1), Grid(5)),
    "SpectralConvolution": (lambda: kernels.SpectralConvolution(4, 3, 1, num_waves_per_axis=2), POINTS),
    "Pointwise": (lambda: kernels.Pointwise(4, 3), POINTS),
    "Sum and Scaled": (
        lambda: kernels.Sum(
            [kernels.UnnormalisedAttention(4, 2), kernels.Scaled(kernels.LowRankMLP(4, 2, rank=2), 0.5)]
        ),
        POINTS,
    ),
    "RNN": (lambda: kernels.RNN(4, 3), SEQUENCE),
    "LSTM": (lambda: kernels.LSTM(4, 3), SEQUENCE),
    "GRU": (lambda: kernels.GRU(4, 3), SEQUENCE),
    "LinearRNN": (lambda: kernels.LinearRNN(4, 3), SEQUENCE),
    "LinearSystem": (lambda: kernels.LinearSystem(4, 3, rule="bilinear"), SEQUENCE),
    "LinearSystem, zoh": (lambda: kernels.LinearSystem(4, 3), SEQUENCE),
    "DiagonalStateSpace": (lambda: kernels.DiagonalStateSpace(4, 4), SEQUENCE),
    "SelectiveStateSpace": (lambda: kernels.SelectiveStateSpace(4, 4), SEQUENCE),
}

ANEW: tuple[Evaluation, ...] = (
    BasisTiled(strip_elements=40),
    Woodbury(block=2, kept=0),
    CentralPooling(block=2, kept=0),
)
"""Routes whose backward pass recomputes intermediate values even at this size."""


class Case(NamedTuple):
    """An operator, the point where it is differentiated, and the direction."""

    operator: IntegralOperator
    domain: Domain
    at: Leaves
    along: Leaves
    query: Tensor | None

    def __call__(self, leaves: Leaves) -> Tensor:
        parameters = {name: leaf for name, leaf in leaves.items() if name != "u"}
        query = None if self.query is None else self.query[: len(leaves["u"])]
        return functional_call(self.operator, parameters, (leaves["u"], self.domain), {"query": query})

    def loss(self, leaves: Leaves) -> Tensor:
        """A scalar that is not linear in the result."""
        out = self(leaves)
        weight = torch.linspace(-1, 2, out[0].numel(), dtype=out.dtype).view(out[0].shape)
        return ((out.square() + out) * weight).sum()

    def moved(self, step: float) -> Leaves:
        return {name: self.at[name] + step * self.along[name] for name in self.at}

    def entry(self, i: int) -> Leaves:
        return {**self.at, "u": self.at["u"][i : i + 1]}

    def gradient(self, leaves: Leaves, create_graph: bool = False) -> Leaves:
        found = torch.autograd.grad(
            self.loss(leaves),
            list(leaves.values()),
            create_graph=create_graph,
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(leaves, found, strict=True))


@functools.cache  # no test modifies the case
def case_of(name: str, route: Evaluation | str) -> Case | None:
    """The case of a kernel; None where the route refuses it."""
    make, domain = KERNELS[name]
    torch.manual_seed(0)
    operator = IntegralOperator(make(), evaluation=route, residual=False).double()  # pyright: ignore[reportArgumentType]
    kernel = operator.kernel
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    at = {key: (p + 0.2 * torch.randn_like(p)).detach() for key, p in operator.named_parameters()}
    at["u"] = torch.randn(2, domain.num_points, kernel.in_dim, dtype=torch.float64)
    along = {key: torch.randn_like(leaf) for key, leaf in at.items()}
    query = None if kernel.query_dim == kernel.in_dim else torch.randn(2, 5, kernel.query_dim, dtype=torch.float64)
    case = Case(operator, domain, at, along, query)
    try:
        case(at)
    except ValueError:
        return None
    return case


@functools.cache
def accepting(name: str) -> list[Evaluation]:
    """The routes that accept a kernel."""
    return [route for route in (*ROUTES, *ANEW) if case_of(name, route) is not None]


def difference(function: Callable[[Leaves], Any], case: Case, step: float = 1e-5) -> Any:
    """The central difference of a function in the direction of the case."""
    ahead, behind = function(case.moved(step)), function(case.moved(-step))
    if isinstance(ahead, Tensor):
        return ((ahead - behind) / (2 * step)).detach()
    return {name: (ahead[name] - behind[name]) / (2 * step) for name in ahead}


def requiring_grad(leaves: Leaves) -> Leaves:
    """Copies that require gradients."""
    return {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}


def curvature(case: Case) -> Leaves:
    """The derivative of the gradient in the direction of the case."""
    return difference(lambda leaves: case.gradient(requiring_grad(leaves)), case)


def by_jvp(case: Case) -> tuple[Any, Any]:
    return jvp(case, (case.at,), (case.along,))[1], difference(case, case)


def by_jvp_of_signal(case: Case) -> tuple[Any, Any]:
    """`jvp` by the signal while the parameters require gradients."""
    along = {**{name: torch.zeros_like(leaf) for name, leaf in case.at.items()}, "u": case.along["u"]}
    fixed = requiring_grad(case.at)
    found = jvp(lambda u: case({**fixed, "u": u}), (case.at["u"],), (case.along["u"],))[1]
    return found, difference(case, case._replace(along=along))


def by_linearize(case: Case) -> tuple[Any, Any]:
    return linearize(case, case.at)[1](case.along), difference(case, case)


def by_forward_ad(case: Case) -> tuple[Any, Any]:
    with forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(leaf, case.along[name]) for name, leaf in case.at.items()}
        tangent = forward_ad.unpack_dual(case(dual)).tangent
    return torch.zeros(()) if tangent is None else tangent, difference(case, case)


def by_gradient(case: Case) -> tuple[Any, Any]:
    """Backward after `functional_call` has restored the module's own parameters."""
    slope = sum((g * case.along[name]).sum() for name, g in case.gradient(requiring_grad(case.at)).items())
    return slope, difference(case.loss, case)


def by_func_grad(case: Case) -> tuple[Any, Any]:
    return grad(case.loss)(case.at), case.gradient(requiring_grad(case.at))


def by_vmap_of_entries(case: Case) -> tuple[Any, Any]:
    one = case._replace(query=None if case.query is None else case.query[:1])
    found = vmap(lambda u: one({**case.at, "u": u[None]})[0])(case.at["u"])
    return found, torch.cat([one(case.entry(i)) for i in range(2)])


def by_vmap_of_parameters(case: Case) -> tuple[Any, Any]:
    models = [case.at, case.moved(0.1), case.moved(-0.1)]
    stacked = {name: torch.stack([model[name] for model in models]) for name in case.at}
    return vmap(case)(stacked), torch.stack([case(model) for model in models])


def by_two_vmaps(case: Case) -> tuple[Any, Any]:
    one = case._replace(query=None if case.query is None else case.query[:1])
    models = [case.at, case.moved(0.1)]
    stacked = {name: torch.stack([model[name] for model in models]) for name in case.at if name != "u"}
    found = vmap(lambda p: vmap(lambda u: one({**p, "u": u[None]})[0])(case.at["u"]))(stacked)
    entries = [[one({**model, "u": case.entry(i)["u"]}) for i in range(2)] for model in models]
    return found, torch.stack([torch.cat(rows) for rows in entries])


def by_per_sample_gradients(case: Case) -> tuple[Any, Any]:
    one = case._replace(query=None if case.query is None else case.query[:1])
    fixed = {name: leaf for name, leaf in case.at.items() if name != "u"}
    found = vmap(grad(lambda p, u: one.loss({**p, "u": u[None]})), in_dims=(None, 0))(fixed, case.at["u"])
    each = [one.gradient(requiring_grad(case.entry(i))) for i in range(2)]
    return found, {name: torch.stack([one[name] for one in each]) for name in fixed}


def by_gradient_of_vmap(case: Case) -> tuple[Any, Any]:
    one = case._replace(query=None if case.query is None else case.query[:1])
    fixed = {name: leaf for name, leaf in case.at.items() if name != "u"}
    found = grad(lambda p: vmap(lambda u: one.loss({**p, "u": u[None]}))(case.at["u"]).sum())(fixed)
    each = [one.gradient(requiring_grad(case.entry(i))) for i in range(2)]
    return found, {name: each[0][name] + each[1][name] for name in fixed}


def by_jacrev(case: Case) -> tuple[Any, Any]:
    u = case.at["u"].clone().requires_grad_()
    found = jacrev(lambda u: case({**case.at, "u": u})[0, -1])(case.at["u"])
    row = case({**case.at, "u": u})[0, -1]
    return found, torch.stack([torch.autograd.grad(number, u, retain_graph=True)[0] for number in row])


def by_double_backward(case: Case) -> tuple[Any, Any]:
    leaves = requiring_grad(case.at)
    slopes = case.gradient(leaves, create_graph=True)
    slope = sum(((g * case.along[name]).sum() for name, g in slopes.items()), torch.zeros(()))
    found = torch.autograd.grad(slope, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True)), curvature(case)


def by_reverse_over_reverse(case: Case) -> tuple[Any, Any]:
    def slope(leaves: Leaves) -> Tensor:
        slopes = grad(case.loss)(leaves)
        return sum(((slopes[name] * case.along[name]).sum() for name in slopes), torch.zeros(()))

    return grad(slope)(case.at), curvature(case)


def by_forward_over_reverse(case: Case) -> tuple[Any, Any]:
    return jvp(grad(case.loss), (case.at,), (case.along,))[1], curvature(case)


def by_reverse_over_forward(case: Case) -> tuple[Any, Any]:
    return grad(lambda leaves: jvp(case.loss, (leaves,), (case.along,))[1])(case.at), curvature(case)


def by_hessians(case: Case) -> tuple[Any, Any]:
    """Second derivatives by two step sizes that move all leaves, in three orders with `vmap` between them."""
    directions = [case.along, case.at]

    def loss(steps: Tensor) -> Tensor:
        return case.loss(
            {
                name: leaf + sum(s * direction[name] for s, direction in zip(steps, directions, strict=True))
                for name, leaf in case.at.items()
            }
        )

    start = torch.zeros(2, dtype=torch.float64)
    slopes = [curvature(case._replace(along=direction)) for direction in directions]
    expected = [
        [sum((slope[name] * direction[name]).sum() for name in direction) for direction in directions]
        for slope in slopes
    ]
    found = [outer(inner(loss))(start) for outer, inner in ((jacfwd, jacrev), (jacrev, jacrev), (jacrev, jacfwd))]
    return torch.stack(found), torch.tensor(expected).expand(3, -1, -1)


FORWARD = [by_jvp, by_jvp_of_signal, by_linearize, by_forward_ad]
BATCHED = [by_vmap_of_entries, by_vmap_of_parameters, by_two_vmaps, by_per_sample_gradients, by_gradient_of_vmap]
REVERSE = [by_gradient, by_func_grad, by_jacrev]
SECOND = [by_double_backward, by_reverse_over_reverse, by_forward_over_reverse, by_reverse_over_forward, by_hessians]
AT_LENGTH = (by_reverse_over_reverse, by_forward_over_reverse, by_reverse_over_forward, by_hessians)
MARKS = {by_linearize: [pytest.mark.long], **{each: [pytest.mark.slow] for each in AT_LENGTH}}
TRANSFORMS = [
    pytest.param(t, id=t.__name__.removeprefix("by_"), marks=MARKS.get(t, []))
    for t in (*FORWARD, *BATCHED, *REVERSE, *SECOND)
]
FUSED = r"derivative for aten::_scaled_dot_product\w+_backward is not implemented"

LACKING: dict[str, list[tuple[Callable[[Case], Any], str]]] = {
    "FusedAttention": [(by_double_backward, FUSED)],
    "BasisTiled": [(by_linearize, "value out of a tracing tensor")],  # reads the values of positions
}
"""Transforms that a route or kernel does not support, with their errors. These must raise, and no others may."""


def assert_near(got: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        got, expected = {"result": got}, {"result": expected}
    for name, b in expected.items():
        a = got[name]
        assert a.shape == b.shape, name
        if b.numel():
            error = (a.detach() - b).abs().max() / b.abs().max().clamp_min(1.0)
            assert error <= 2e-6, f"{name}: error {error:.1e}"


@pytest.mark.sampled
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", KERNELS)
def test_transforms(name: str, transform: Callable[[Case], tuple[Any, Any]]) -> None:
    routes = accepting(name)
    assert routes, "no route takes this kernel"
    # one route suffices for `linearize` (forward mode) and Hessians (second derivatives): faster tests cover the rest
    for route in routes[:1] if transform in (by_linearize, by_hessians) else routes:
        case = case_of(name, route)
        assert case is not None
        lacking = [*LACKING.get(route.name, []), *LACKING.get(name.partition(",")[0], [])]
        error = dict(lacking).get(transform)
        if error is None:
            assert_near(*transform(case))
        else:
            with pytest.raises(RuntimeError, match=error):
                transform(case)


@pytest.mark.parametrize("name", KERNELS)
def test_the_automatic_route_is_never_silently_wrong(name: str) -> None:
    case = case_of(name, AUTO)
    assert case is not None
    for transform in (by_jvp, by_forward_ad, by_vmap_of_entries, by_per_sample_gradients, by_double_backward):
        try:
            got, expected = transform(case)
        except RuntimeError as error:
            known = {message for rows in LACKING.values() for _, message in rows}
            if not any(re.search(message, str(error)) for message in known):
                raise
        else:
            assert_near(got, expected)


def test_every_public_kernel_has_a_row() -> None:
    public = {name: getattr(kernels, name) for name in kernels.__all__}
    concrete = {name for name, k in public.items() if inspect.isclass(k) and issubclass(k, kernels.Kernel)}
    concrete = {name for name in concrete if not inspect.isabstract(public[name])}
    assert concrete <= {word for name in KERNELS for word in name.replace(",", " ").split()}
