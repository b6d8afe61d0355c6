"""What `differentiable` gives an operator."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from fredholm.evaluation.custom_op import differentiable
from fredholm.evaluation.features.features import FeatureInputs
from fredholm.evaluation.recurrence.diagonal import DiagonalInputs, diagonal_scan
from fredholm.evaluation.recurrence.matrix import MatrixInputs, matrix_scan
from fredholm.evaluation.triton.feature_sum import feature_sums_triton
from fredholm.evaluation.triton.tiled import mlp_integral_triton
from fredholm.evaluation.triton.yat_tiled import yat_sums_triton


def _cubes(tensors: list[Tensor], factor: float) -> list[Tensor]:
    return [factor * tensors[0] ** 3, tensors[0] * tensors[1]]


cubes = torch.library.custom_op("fredholm_tests::cubes", _cubes, mutates_args=())
cubes.register_fake(_cubes)
differentiable(cubes, plain=_cubes)


@torch.library.custom_op("fredholm_tests::squares", mutates_args=())
def squares(x: Tensor) -> Tensor:
    """x²."""
    return x * x


@torch.library.custom_op("fredholm_tests::squares_backward", mutates_args=())
def squares_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x²."""
    return 2 * grad * x


squares.register_fake(torch.empty_like)
squares_backward.register_fake(lambda grad, x: torch.empty_like(x))
differentiable(
    squares,
    lambda ctx, grad: squares_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    instead="square it yourself",
)
differentiable(squares_backward, instead="square it yourself")

X, Y = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([3.0, 5.0], dtype=torch.float64)


def test_derivatives_of_all_orders_from_the_plain_form_alone() -> None:
    def total(x: Tensor) -> Tensor:
        first, second = cubes([x, Y], 2.0)
        return (first * second).sum()  # 2 x⁴ y

    third = grad(lambda x: grad(lambda x: grad(total)(x).sum())(x).sum())
    torch.testing.assert_close(third(X), 48 * X * Y)
    for hessian in (jacfwd(jacrev(total)), jacrev(jacfwd(total)), jacrev(jacrev(total)), jacfwd(jacfwd(total))):
        torch.testing.assert_close(hessian(X), torch.diag(24 * X**2 * Y))
    torch.library.opcheck(cubes, ([X.clone().requires_grad_(), Y.clone().requires_grad_()], 2.0))


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (1, 0), (-1, -1)])
def test_vmap_takes_entries_along_any_dimension(in_dims: tuple[int | None, int | None]) -> None:
    x, y = (torch.randn(2, 2, generator=torch.Generator().manual_seed(i)) for i in range(2))
    got = vmap(lambda x, y: cubes([x, y], 2.0), in_dims=in_dims)(x, y)
    expected = vmap(lambda x, y: _cubes([x, y], 2.0), in_dims=in_dims)(x, y)
    torch.testing.assert_close(got, expected)


def test_an_operator_without_a_plain_form_says_so() -> None:
    torch.testing.assert_close(grad(lambda x: squares(x).sum())(X), 2 * X)
    torch.testing.assert_close(vmap(grad(squares))(X), 2 * X)
    with pytest.raises(
        NotImplementedError, match=r"^fredholm_tests::squares has no forward-mode .*: square it yourself"
    ):
        jvp(squares, (X,), (X,))
    with pytest.raises(NotImplementedError, match=r"^fredholm_tests::squares has no second .*: square it yourself"):
        grad(lambda x: grad(lambda x: squares(x).sum())(x).sum())(X)
    with pytest.raises(NotImplementedError, match=r"^fredholm_tests::squares has no forward-mode"):
        jvp(grad(lambda x: squares(x).sum()), (X,), (X,))


def test_vmap_over_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="fredholm_tests::squares: vmap needs at least one entry"):
        vmap(squares)(torch.zeros(0, 3))


@pytest.mark.parametrize(
    ("operator", "options"), [(mlp_integral_triton, ([0, 0], "gelu")), (yat_sums_triton, ([0.0],))]
)
def test_a_fused_operator_refuses_tangents_before_it_looks_for_a_gpu(operator, options) -> None:
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=r"_triton has no forward-mode.*Dense\(\)"):
        operator([forward_ad.make_dual(X, Y)], *options)


def test_a_fused_operator_with_a_plain_form_needs_no_gpu_for_tangents() -> None:
    shapes = [(1, 4, 3), (2, 4, 2, 2), (2, 3, 3), (2, 3, 2), (2, 3), (2, 4, 2, 2), (1, 4)]
    inputs = FeatureInputs(*(torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in shapes))
    primal, tangent = jvp(
        lambda v: feature_sums_triton(inputs._replace(value=v), "gelu").out, (inputs.value,), (inputs.value,)
    )
    torch.testing.assert_close(tangent, primal)  # it is linear in v


@pytest.mark.parametrize("name", ["diagonal", "matrix"])
def test_second_derivatives_over_no_point(name: str) -> None:
    start = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)

    def final(start: Tensor) -> Tensor:
        if name == "diagonal":
            rates, values, reads = -torch.ones(2, 3).double(), torch.zeros(1, 0, 3).double(), torch.ones(2, 3).double()
            inputs = DiagonalInputs(rates, torch.ones(3).double(), values, reads, reads, start)
            return diagonal_scan(inputs, True, 2, 2, 0).final
        inputs = MatrixInputs(torch.eye(3).double()[None, None], torch.zeros(1, 0, 3).double(), start[:, 0])
        return matrix_scan(inputs, 0).states.sum() + start

    assert torch.autograd.gradgradcheck(lambda start: final(start).square(), [start])
