"""The matrix exponential compared with its Taylor series, and its gradient where PyTorch's is inaccurate."""

import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, vmap

from fredholm.domains import Sequence
from fredholm.evaluation import Dense, Evaluation, Integral, Scan, StepLoop
from fredholm.kernels import LinearSystem
from fredholm.kernels.linear_algebra import matrix_exponential
from fredholm.kernels.recurrence.linear_system import discretise


def by_series(matrices: Tensor) -> Tensor:
    """exp(M) = (Σ (M / 2⁸)ⁿ / n!)^(2⁸), differentiable, for matrices up to size 50."""
    scaled = matrices / 2**8
    total = term = torch.eye(matrices.shape[-1], dtype=matrices.dtype).expand_as(matrices)
    for n in range(1, 22):
        term = term @ scaled / n
        total = total + term
    for _ in range(8):
        total = total @ total
    return total


def gradient(of, matrices: Tensor, grad: Tensor) -> Tensor:
    leaf = matrices.clone().requires_grad_()
    return torch.autograd.grad(of(leaf), leaf, grad)[0]


@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 3), (2, 4, 3, 3), (0, 3, 3), (1, 1)])
@pytest.mark.parametrize("size", [1e-6, 0.02, 0.5, 5.0])
def test_the_matrix_exponential_equals_its_series(shape: tuple[int, ...], size: float) -> None:
    matrices = size * torch.randn(*shape, dtype=torch.float64)
    torch.testing.assert_close(matrix_exponential(matrices), by_series(matrices), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("dtype", "angle", "error"), [(torch.float32, 0.5, 3e-7), (torch.float64, 0.04, 1e-15)])
def test_one_matrix_is_as_precise_as_several(dtype: torch.dtype, angle: float, error: float) -> None:
    turned = matrix_exponential(torch.tensor([[0.0, -angle], [angle, 0.0]], dtype=dtype)).double()
    exact = torch.tensor(angle, dtype=dtype).double()
    expected = torch.stack([exact.cos(), -exact.sin(), exact.sin(), exact.cos()]).view(2, 2)
    assert (turned - expected).abs().max() < error


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e6, 1e12, 1e200])
def test_a_gradient_of_any_size_stays_precise(size: float) -> None:
    matrices, grad = torch.randn(2, 3, 3, dtype=torch.float64), torch.randn(2, 3, 3, dtype=torch.float64)
    grad = grad * torch.tensor([size, 1.0], dtype=torch.float64)[:, None, None]
    expected = gradient(by_series, matrices, grad)
    got = gradient(matrix_exponential, matrices, grad)
    for one, other in zip(got, expected, strict=True):
        assert (one - other).abs().max() <= 1e-12 * other.abs().max()


def test_a_zero_cotangent_gives_a_zero_gradient() -> None:
    assert not gradient(matrix_exponential, torch.randn(3, 3), torch.zeros(3, 3)).any()


def test_the_matrix_exponential_has_all_derivatives() -> None:
    matrices = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(matrix_exponential, matrices, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(matrix_exponential, matrices)

    def loss(a: Tensor, of=matrix_exponential) -> Tensor:
        return of(a)[0].square().sum()

    at = matrices.detach()[0]
    expected = jacrev(jacrev(lambda a: loss(a, by_series)))(at)
    for twice in (hessian(loss), jacfwd(jacfwd(loss)), jacrev(jacfwd(loss)), jacrev(jacrev(loss))):
        torch.testing.assert_close(twice(at), expected)
    torch.testing.assert_close(vmap(matrix_exponential)(matrices), matrix_exponential(matrices))


@pytest.mark.parametrize("route", [Scan(), StepLoop(), Dense()], ids=lambda route: route.name)
def test_gradients_of_a_growing_linear_system_stay_precise(route: Evaluation) -> None:
    kernel = LinearSystem(1, 3).double()
    kernel.rates.data = torch.eye(3, dtype=torch.float64) + 0.3 * torch.randn(3, 3, dtype=torch.float64)
    u, leaves = torch.randn(1, 30, 1, dtype=torch.float64), list(kernel.parameters())
    out = route.integrate(Integral(kernel, u, Sequence(30)))
    state, outs = torch.zeros(3, 1, dtype=torch.float64), []
    both = torch.cat([kernel.rates, kernel.input_weight], dim=1)
    power = by_series(torch.nn.functional.pad(both, (0, 0, 0, 1)))[:3]
    for value in u[0, :, 0]:
        state = power @ torch.nn.functional.pad(state, (0, 0, 0, 1), value=value.item())
        outs.append(kernel.output_weight @ state)
    expected = torch.stack(outs).view(1, 30, 1)
    assert expected.abs().max() > 1e12
    pairs = [(out, expected), *zip(*(torch.autograd.grad(y.sum(), leaves) for y in (out, expected)), strict=True)]
    for got, expected in pairs:
        assert (got - expected).abs().max() <= 1e-11 * expected.abs().max()


def test_a_large_input_weight_costs_no_precision() -> None:
    a, b = torch.randn(3, 3), torch.randn(3, 2)
    few, many = (discretise(a, size * b, torch.tensor([0.3]), "zoh") for size in (1.0, 1e5))
    torch.testing.assert_close(many[0], few[0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(many[1], 1e5 * few[1], rtol=1e-5, atol=1e-2)
