"""Custom operators that `Operator` builds from a declaration."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.features.feature_sum import SumInputs
from fredholm.evaluation.recurrence.diagonal import DiagonalInputs, diagonal_scan
from fredholm.evaluation.recurrence.matrix import MatrixInputs, matrix_scan
from fredholm.evaluation.triton.feature_sum import feature_sums_triton


class Factors(NamedTuple):
    """Inputs of the products."""

    x: Tensor
    y: Tensor
    shift: Tensor | None = None


class Products(NamedTuple):
    """f x³, x y + shift, x², and f shift."""

    cube: Tensor
    product: Tensor
    square: Tensor
    shifted: Tensor | None


CALLS = []
"""Arguments of all backward calls."""


def _forward(inputs: Factors, factor: float) -> Products:
    x, y, shift = inputs
    assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == torch.float32, "autocast is on"
    product = x * y if shift is None else x * y + shift
    return Products(factor * x**3, product, x**2, None if shift is None else factor * shift)


def _like(inputs: Factors, factor: float) -> Products:
    cube, product, square = (torch.empty_like(inputs.x) for _ in range(3))
    return Products(cube, product, square, None if inputs.shift is None else torch.empty_like(inputs.shift))


def _backward(
    inputs: Factors, outputs: Products, grads: Products, wanted: frozenset[str], factor: float
) -> dict[str, Tensor]:
    CALLS.append((inputs, outputs, grads, wanted))
    found = {"x": 3 * factor * outputs.square * grads.cube + inputs.y * grads.product}
    if "y" in wanted:
        found["y"] = (inputs.x * grads.product).float()[None]
    return found


def _plain(inputs: Factors, factor: float) -> tuple[Tensor, Tensor]:
    return _forward(inputs, factor)[:2]


products = Operator(
    "test_products",
    Factors,
    Products,
    _forward,
    _like,
    _backward,
    results=("cube", "product"),
    keeps=("square",),
    plain=_plain,
)


class Number(NamedTuple):
    """A single input or output tensor."""

    x: Tensor


def _half(inputs: Number, _: Number, grads: Number, wanted: frozenset[str]) -> dict[str, Tensor]:
    CALLS.append((inputs, wanted))
    return {"x": grads.x / 2}


halves = Operator(
    "test_halves",
    Number,
    Number,
    lambda inputs: Number(inputs.x / 2),
    lambda inputs: Number(torch.empty_like(inputs.x)),
    _half,
    forgets=("x",),
    instead="halve it yourself",
)

X, Y = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([3.0, 5.0], dtype=torch.float64)


def halved(x: Tensor) -> Tensor:
    return halves(Number(x)).x


def test_inputs_and_outputs_have_names_and_may_be_absent() -> None:
    alone, both = products(Factors(X, Y), 2.0), products(Factors(X, Y, X), 2.0)
    assert alone.shifted is None
    assert both.shifted is not None
    torch.testing.assert_close(torch.stack(alone[:3]), torch.stack([2 * X**3, X * Y, X**2]))
    torch.testing.assert_close(torch.stack([both.product, both.shifted]), torch.stack([X * Y + X, 2 * X]))


def test_a_backward_gets_the_declared_tensors_and_returns_the_requested_gradients() -> None:
    CALLS.clear()
    x, y = X.clone().requires_grad_(), Y.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        of_x, of_y = products(Factors(x, Y, X), factor=2.0), products(Factors(X, y), 2.0)
    assert (of_x.cube.requires_grad, of_x.square.requires_grad) == (True, False)
    torch.testing.assert_close(torch.autograd.grad(of_x.cube.sum(), x), (6 * X**2,))
    torch.testing.assert_close(torch.autograd.grad(of_y.product.sum(), y), (X.float(),))
    (inputs, outputs, grads, wanted_first), (*_, wanted_second) = CALLS
    assert (wanted_first, wanted_second) == ({"x"}, {"y"})
    assert inputs.shift is not None
    assert [t is None for t in outputs] == [True, True, False, True]
    assert [t is None for t in grads] == [False, False, True, True]
    assert not grads.product.any()


def test_a_gradient_that_is_left_out_is_zero() -> None:
    shift = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(products(Factors(X, Y, shift), 2.0).product.sum(), shift)
    torch.testing.assert_close(gradient, torch.zeros_like(X))


def test_gradients_have_the_dtypes_and_shapes_of_the_inputs() -> None:
    arguments = [X, Y, None, None, None, X**2, None, X, X, None, None]
    backward = torch.ops.fredholm.test_products_backward.default
    torch.library.opcheck(
        backward, (arguments, [True, True, False], 2.0), test_utils=("test_schema", "test_faketensor")
    )
    to_x, to_y = backward(arguments, [True, True, False], 2.0)
    assert (to_x.dtype, to_y.dtype, to_y.shape) == (torch.float64, torch.float64, (2,))


def test_undeclared_inputs_are_not_saved_for_backward() -> None:
    CALLS.clear()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = halved(torch.zeros(50, 3, requires_grad=True))
    out.sum().backward()
    assert [t.untyped_storage().nbytes() for t in saved] == [4]
    assert CALLS[0][0].x.shape == (50, 3)


def test_results_do_not_share_memory() -> None:
    operator = Operator(
        "test_parts",
        Factors,
        Factors,
        lambda inputs: Factors(inputs.x, (2 * inputs.x)[:1]),
        lambda inputs: Factors(torch.empty_like(inputs.x), torch.empty_like(inputs.x[:1])),
        lambda inputs, outputs, grads, wanted: {"x": grads.x, "y": grads.x},
    )
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    found = operator(Factors(x, y))
    grads = torch.autograd.grad(found.x.sum(), (x, y))
    assert len({t.untyped_storage().data_ptr() for t in (x, *found[:2], *grads)}) == 5
    assert found.y.untyped_storage().nbytes() == 8


def test_derivatives_of_all_orders_from_the_plain_form() -> None:
    def total(x: Tensor) -> Tensor:
        found = products(Factors(x, Y), 2.0)
        return (found.cube * found.product).sum()  # 2 x⁴ y

    third = grad(lambda x: grad(lambda x: grad(total)(x).sum())(x).sum())
    torch.testing.assert_close(third(X), 48 * X * Y)
    for hessian in (jacfwd(jacrev(total)), jacrev(jacfwd(total)), jacrev(jacrev(total)), jacfwd(jacfwd(total))):
        torch.testing.assert_close(hessian(X), torch.diag(24 * X**2 * Y))
    for shift in (None, X):
        torch.library.opcheck(
            torch.ops.fredholm.test_products.default,
            ([X.clone().requires_grad_(), Y.clone().requires_grad_(), shift], 2.0),
        )


def test_compiles_in_one_graph_with_the_same_results() -> None:
    def total(x: Tensor) -> Tensor:
        found = products(Factors(x, Y), 2.0)
        assert found.shifted is None
        return (found.cube * found.product).sum()

    torch.compiler.reset()
    for call in (total, torch.compile(total, fullgraph=True, backend="aot_eager")):
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(call(x), x)
        torch.testing.assert_close(gradient, 8 * X**3 * Y)


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (1, 0), (-1, -1)])
def test_vmap_takes_entries_along_any_dimension(in_dims: tuple[int | None, int | None]) -> None:
    x, y = (torch.randn(2, 2, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(2))

    def both(function: Callable[..., Products], x: Tensor, y: Tensor) -> list[Tensor | None]:
        return list(function(Factors(x, y), 2.0)[:2])

    got, expected = (vmap(lambda x, y, f=f: both(f, x, y), in_dims=in_dims)(x, y) for f in (products, _forward))
    torch.testing.assert_close(got, expected)


def test_an_operator_without_a_plain_form_refuses_further_derivatives() -> None:
    torch.testing.assert_close(grad(lambda x: halved(x).sum())(X), X.new_full((2,), 0.5))
    torch.testing.assert_close(vmap(grad(halved))(X), X.new_full((2,), 0.5))
    with pytest.raises(NotImplementedError, match=r"^fredholm::test_halves has no forward-mode .*: halve it yourself"):
        jvp(halved, (X,), (X,))
    with pytest.raises(NotImplementedError, match=r"^fredholm::test_halves has no second .*: halve it yourself"):
        grad(lambda x: grad(lambda x: halved(x).square().sum())(x).sum())(X)
    with pytest.raises(NotImplementedError, match=r"^fredholm::test_halves has no forward-mode"):
        jvp(grad(lambda x: halved(x).square().sum()), (X,), (X,))


def test_vmap_over_an_empty_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="fredholm::test_halves: vmap needs at least one entry"):
        vmap(halved)(torch.zeros(0, 3))


def test_a_fused_operator_with_a_plain_form_needs_no_gpu_for_tangents() -> None:
    shapes = [(1, 4, 3), (2, 4, 2, 2), (2, 3, 3), (2, 3, 2), (2, 3), (1, 4)]
    inputs = SumInputs(*(torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in shapes))

    def sums(weights: Tensor) -> Tensor:
        return feature_sums_triton(inputs._replace(weights=weights), "gelu", torch.float32).out

    found = jvp(sums, (inputs.weights,), (inputs.weights,))
    torch.testing.assert_close(found[1], found[0])  # the sums are linear in ω


@pytest.mark.parametrize("name", ["diagonal", "matrix"])
def test_second_derivatives_on_an_empty_sequence(name: str) -> None:
    start = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)

    def final(start: Tensor) -> Tensor:
        if name == "diagonal":
            rates, values, reads = -torch.ones(2, 3).double(), torch.zeros(1, 0, 3).double(), torch.ones(2, 3).double()
            inputs = DiagonalInputs(rates, torch.ones(3).double(), values, reads, reads, start)
            return diagonal_scan(inputs, True, 2, 2, 0).final
        inputs = MatrixInputs(torch.eye(3).double()[None, None], torch.zeros(1, 0, 3).double(), start[:, 0])
        return matrix_scan(inputs, 0).states.sum() + start

    assert torch.autograd.gradgradcheck(lambda start: final(start).square(), [start])
