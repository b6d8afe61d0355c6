import functools

import pytest
import torch
from torch import Tensor, nn

from fredholm import IntegralOperator
from fredholm.domains import Grid, Points, Sequence
from fredholm.evaluation import Dense, Integral
from fredholm.kernels import GRU, LSTM, RNN
from fredholm.kernels.recurrence.cell_recurrence import CellRecurrence, tanh_secant, unit_response
from fredholm.training import parameter_groups
from tests.contracts.cells import CELLS, NATIVE, assert_near, gradients, pair
from tests.refusals import refused

names = pytest.mark.parametrize("name", CELLS)


def signal(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


def quadrature(kernel: CellRecurrence, u: Tensor, domain: Sequence | None = None) -> Tensor:
    return Dense().integrate(Integral(kernel, u, Sequence(u.shape[1]) if domain is None else domain))


@names
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "length", "in_dim", "scale"), [(2, 9, 3, 1.0), (3, 1, 1, 1.0), (1, 6, 2, 30.0)])
def test_the_definition_equals_torchs_layer_with_its_gradients(name, bias, batch, length, in_dim, scale):
    kernel, layer = pair(name, in_dim, bias=bias)
    u = signal(batch, length, in_dim, scale=scale)
    got, (expected, _) = quadrature(kernel, u), layer(u)
    assert_near([got], [expected], 1e-12)
    mine, theirs = gradients([got], [u, *kernel.weights]), gradients([expected], [u, *layer.parameters()])
    assert_near(mine, theirs, 1e-10)


@names
def test_an_empty_sequence_and_a_zero_signal(name):
    kernel, layer = pair(name)
    assert kernel.matrix(torch.zeros(2, 0, 3).double(), Sequence(0)).shape == (2, 0, 0, 4, 4)
    u = torch.zeros(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert_near([quadrature(kernel, u)], [layer(u)[0]], 1e-12)


def trajectory(layer: nn.RNNBase, u: Tensor) -> list[dict[str, Tensor]]:
    """Gates and states of one sequence `(T, d)`, point by point, from torch's parameters."""
    w_ih, w_hh, b_ih, b_hh = (parameter.detach() for parameter in layer.parameters())
    h = c = torch.zeros(layer.hidden_size, dtype=u.dtype)
    points = []
    for value in u:
        a, b = w_ih @ value + b_ih, w_hh @ h + b_hh
        if isinstance(layer, nn.LSTM):
            i, f, g, o = (a + b).chunk(4)
            i, f, o = i.sigmoid(), f.sigmoid(), o.sigmoid()
            c = f * c + i * g.tanh()
            h = o * c.tanh()
            points.append({"i": i, "f": f, "g": g.tanh(), "o": o, "c": c, "h": h})
        elif isinstance(layer, nn.GRU):
            r, z = (a + b)[:-4].sigmoid().chunk(2)
            n = (a[-4:] + r * b[-4:]).tanh()
            h = z * h + (1 - z) * n
            points.append({"z": z, "n": n, "h": h})
        else:
            h = (a + b).tanh()
            points.append({"slope": h / (a + b), "h": h})
    return points


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_gated_kernels_are_the_formula_pair_by_pair(name):
    kernel, layer = pair(name)
    u = signal(1, 5, 3).detach()
    points, kappa = trajectory(layer, u[0]), kernel.matrix(u, Sequence(5))[0]
    affine = torch.cat([u[0], torch.ones(5, 1).double()], dim=1)
    for t in range(5):
        for s in range(5):
            here, then = points[t], points[s]
            if name == "lstm":
                kept = functools.reduce(torch.mul, (p["f"] for p in points[s + 1 : t + 1]), torch.ones(4).double())
                column = here["o"] * here["c"].tanh() / here["c"] * kept * then["i"] * then["g"]
            else:
                kept = functools.reduce(torch.mul, (p["z"] for p in points[s + 1 : t + 1]), torch.ones(4).double())
                column = kept * (1 - then["z"]) * then["n"]
            expected = torch.outer(column, affine[s] / affine[s].square().sum())
            assert_near([kappa[t, s]], [expected if s <= t else torch.zeros(4, 4)], 1e-14)


def test_the_elman_kernel_is_the_formula_pair_by_pair():
    kernel, layer = pair("tanh")
    u = signal(1, 4, 3).detach()
    points, kappa = trajectory(layer, u[0]), kernel.matrix(u, Sequence(4))[0]
    w_ih, w_hh, b_ih, b_hh = (parameter.detach() for parameter in layer.parameters())
    read_in = torch.cat([w_ih, (b_ih + b_hh)[:, None]], dim=1)
    for t in range(4):
        for s in range(4):
            expected = points[s]["slope"].diag() @ read_in
            for tau in range(s + 1, t + 1):
                expected = points[tau]["slope"].diag() @ w_hh @ expected
            assert_near([kappa[t, s]], [expected if s <= t else torch.zeros(4, 4)], 1e-14)


@pytest.mark.parametrize("literal", [True, False], ids=["as printed", "candidate corrected"])
def test_tangents_do_not_reproduce_the_lstm(literal):
    """ITNet's eq. 148 has tanh' in place of the secant, and W_c u in place of the candidate."""
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4).double()
    u = signal(6, 3).detach()
    points = trajectory(layer, u)
    w_c = next(layer.parameters()).detach()[8:12]
    missed = secant = 0.0
    for t in range(6):
        paper, ours = torch.zeros(4).double(), torch.zeros(4).double()
        for s in range(t + 1):
            kept = functools.reduce(torch.mul, (p["f"] for p in points[s + 1 : t + 1]), torch.ones(4).double())
            read, c = points[t]["o"], points[t]["c"]
            paper += (
                read * (1 - c.tanh().square()) * kept * points[s]["i"] * (w_c @ u[s] if literal else points[s]["g"])
            )
            ours += read * c.tanh() / c * kept * points[s]["i"] * points[s]["g"]
        missed = max(missed, (paper - points[t]["h"]).abs().max().item())
        secant = max(secant, (ours - points[t]["h"]).abs().max().item())
    assert missed >= 1e-3
    assert secant <= 1e-15


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_the_printed_elman_kernel_does_not_reproduce_the_cell(nonlinearity):
    """ITNet's eq. 135 has φ' in place of the secant, and lacks slope and constant at the point itself."""
    torch.manual_seed(0)
    layer = nn.RNN(8, 16, nonlinearity=nonlinearity).double()
    u = torch.randn(12, 8, dtype=torch.float64)
    with torch.no_grad():
        h = layer(u)[0]
        w_ih, w_hh, b_ih, b_hh = layer.parameters()
        constant = b_ih + b_hh
        z = torch.cat([torch.zeros(1, 16).double(), h[:-1]]) @ w_hh.mT + u @ w_ih.mT + constant
    slopes = 1 - h.square() if nonlinearity == "tanh" else (z > 0).double()

    def missed(factors: torch.Tensor, read: torch.Tensor) -> float:
        state, found = torch.zeros(16).double(), []
        for factor, value in zip(factors, read, strict=True):
            state = factor * (w_hh.detach() @ state) + value
            found.append(state)
        return ((torch.stack(found) - h).norm() / h.norm()).item()

    read = u @ w_ih.detach().mT
    assert missed(slopes, read) >= 0.3
    mended = missed(slopes, slopes * (read + constant))
    assert mended <= 1e-14 if nonlinearity == "relu" else mended >= 0.1
    assert missed(h / z, h / z * (read + constant)) <= 1e-14


def test_the_printed_gru_kernel_does_not_reproduce_the_gru():
    """ITNet's eq. 150 has W_h u in place of the candidate."""
    torch.manual_seed(0)
    layer = nn.GRU(3, 4).double()
    u = signal(6, 3).detach()
    points, w_h, h = trajectory(layer, u), next(layer.parameters()).detach()[8:12], torch.zeros(4).double()
    for point, value in zip(points, u, strict=True):
        h = point["z"] * h + (1 - point["z"]) * (w_h @ value)
    assert (h - points[-1]["h"]).abs().max() >= 1e-3


def test_the_secant_of_tanh():
    z = torch.cat([torch.logspace(-30, 2.5, 400, dtype=torch.float64), torch.tensor([0.00999999, 0.01, 0.01000001])])
    z = torch.cat([z, -z]).requires_grad_()
    value = tanh_secant(z)
    torch.testing.assert_close(value, torch.tanh(z) / z, rtol=4e-16, atol=0)
    (slope,) = torch.autograd.grad(value.sum(), z)
    wide = z.detach().abs() > 0.1
    expected = ((1 - z.tanh().square()) * z - z.tanh()) / z.square()
    torch.testing.assert_close(slope[wide], expected[wide], rtol=1e-12, atol=0)
    narrow = z.detach().abs() < 0.03
    leading = -2 / 3 * z + 8 / 15 * z**3 - 34 / 105 * z**5
    torch.testing.assert_close(slope[narrow], leading[narrow], rtol=1e-8, atol=1e-300)


def test_the_secant_at_zero_is_one_and_flat():
    z = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    value = tanh_secant(z)
    assert torch.equal(value, torch.ones_like(z))
    assert torch.equal(torch.autograd.grad(value.sum(), z)[0], torch.zeros_like(z))


def test_the_unit_response_of_small_and_huge_vectors():
    v = torch.tensor([[1.0, 0.0], [3.0, -4.0], [1e30, 1.0]], requires_grad=True)
    torch.testing.assert_close((unit_response(v) * v).sum(-1), torch.ones(3))
    assert torch.autograd.gradcheck(unit_response, signal(4, 3))


def test_a_cell_state_of_exactly_zero():
    kernel, layer = pair("lstm")
    with torch.no_grad():
        for parameter in (*kernel.weights, *layer.parameters()):
            parameter[8:12] = 0.0
    u = signal(2, 5, 3)
    got, (expected, _) = quadrature(kernel, u), layer(u)
    assert not expected.any()
    assert_near([got], [expected], 0.0)
    mine, theirs = gradients([got], [u, *kernel.weights]), gradients([expected], [u, *layer.parameters()])
    assert_near(mine, theirs, 1e-10)


@names
def test_missing_points_do_not_change_the_state(name):
    kernel, layer = pair(name)
    mask = torch.tensor([True, False, True, True, False, True])
    u = signal(2, 6, 3).detach()
    u[:, ~mask] = 0.0
    got = quadrature(kernel, u, Sequence(6, mask=mask))
    assert_near([got[:, mask]], [layer(u[:, mask])[0]], 1e-12)


@names
def test_initial_values_are_torchs(name):
    torch.manual_seed(11)
    kernel = CELLS[name](3, 5)
    torch.manual_seed(11)
    layer = NATIVE[name](3, 5)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(kernel.weights, layer.parameters(), strict=True))


@names
@pytest.mark.parametrize("bias", [True, False])
def test_an_optimiser_decays_the_matrices_only(name, bias):
    kernel, _ = pair(name, bias=bias)
    decayed, exempt = ({pair[0] for pair in group["params"]} for group in parameter_groups(kernel, 0.1))
    assert decayed == {"weight_ih", "weight_hh"}
    assert exempt == ({"bias_ih", "bias_hh"} if bias else set())


@names
def test_states_stay_in_float32_under_autocast(name):
    kernel = CELLS[name](3, 4)
    u = torch.randn(2, 3)
    plain, _ = kernel.step(u, kernel.initial_state(2))
    with torch.autocast("cpu", torch.bfloat16):
        out, state = kernel.step(u, kernel.initial_state(2))
    assert torch.equal(out, plain)
    assert all(part.dtype == torch.float32 for part in state)


def test_unsupported_uses_of_a_cell_are_refused():
    kernel = LSTM(3, 4)
    op = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
    u = torch.randn(2, 6, 3)
    with refused(ValueError, "kernels.LSTM", "no weights can change", "leave out"):
        op(u, Sequence(6, weights=torch.full((6,), 0.5)))
    with refused(ValueError, "LSTM integrates over the past", "Grid(2, 3)"):
        op(u, Grid(2, 3))
    with refused(ValueError, "LSTM gives its result at the points of the signal"):
        op(u, query_domain=Points(torch.rand(2, 1)), query=torch.randn(2, 2, 3))
    with refused(ValueError, "the state holds [(5,), (5,)]", "LSTM keeps [(4,), (4,)]"):
        op.step(u[:, 0], (torch.zeros(2, 5), torch.zeros(2, 5)))
    with refused(ValueError, "a state is 2 of (2, 4)", "(2, 5), (2, 5)"):
        kernel.step(u[:, 0], (torch.zeros(2, 5), torch.zeros(2, 5)))
    with refused(ValueError, "batch size 3"):
        op.step(u[:, 0], op.initial_state(3))
    with refused(ValueError, "a state is 1 of (2, 4)"):
        GRU(3, 4).step(u[:, 0], (torch.zeros(3, 4),))
    with refused(TypeError, "must be torch.float32", "torch.float64"):
        op.step(u[:, 0], tuple(part.double() for part in op.initial_state(2)))
    with refused(ValueError, "kernels.GRU: state_dim must be at least 1; got 0"):
        GRU(3, 0)
    with refused(ValueError, "'tanh' or 'relu'", "'gelu'"):
        RNN(3, 4, "gelu")  # pyright: ignore[reportArgumentType]
