import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Grid, Points, Sequence
from fredholm.evaluation import Dense, Integral
from fredholm.kernels import LinearRNN
from tests.contracts.routes import randomise
from tests.refusals import refused


def test_kernel_is_the_power_of_the_transition():
    kernel = LinearRNN(3, 4, 2, feedthrough=True, bias=True).double()
    randomise(kernel)
    assert kernel.bias is not None
    assert kernel.feedthrough is not None
    kappa = kernel.matrix(torch.randn(1, 5, 3).double(), Sequence(5))[0]
    read_in = torch.cat([kernel.input_weight, kernel.bias[:, None]], dim=1)
    for t in range(5):
        for s in range(5):
            power = torch.linalg.matrix_power(kernel.transition, max(t - s, 0))
            expected = (s <= t) * kernel.output_weight @ power @ read_in
            if s == t:
                expected[:, :3] += kernel.feedthrough
            assert torch.allclose(kappa[t, s], expected, atol=1e-14)


@pytest.mark.parametrize("bias", [False, True])
def test_equals_torchs_recurrence_where_its_nonlinearity_is_the_identity(bias):
    kernel = LinearRNN(3, 4, 4, bias=bias).double()
    rnn = torch.nn.RNN(3, 4, nonlinearity="relu", batch_first=True, bias=bias).double()
    with torch.no_grad():
        # everything positive, so that ReLU changes nothing
        for parameter in [*kernel.parameters(), *rnn.parameters()]:
            parameter.abs_().mul_(0.3)
        kernel.output_weight.copy_(torch.eye(4))
        same = {"weight_hh_l0": kernel.transition, "weight_ih_l0": kernel.input_weight}
        if kernel.bias is not None:
            same |= {"bias_ih_l0": kernel.bias, "bias_hh_l0": torch.zeros(4)}
        rnn.load_state_dict(same)
    u = torch.rand(2, 7, 3).double()
    assert torch.allclose(Dense().integrate(Integral(kernel, u, Sequence(7))), rnn(u)[0], atol=1e-13)


def test_distances_between_points_do_not_matter():
    kernel, u = LinearRNN(2, 3), torch.randn(1, 4, 2)
    operator = IntegralOperator(kernel)
    assert torch.equal(operator(u, Sequence(times=torch.tensor([0.0, 5.0, 5.0, 9.0]))), operator(u))
    assert torch.equal(operator(u, Points(torch.rand(4, 1))), operator(u))


def test_starts_orthogonal():
    transition = LinearRNN(2, 5).transition
    assert torch.allclose(transition @ transition.mT, torch.eye(5), atol=1e-5)


def test_bad_input_is_refused():
    with refused(ValueError, "LinearRNN", "state_dim", "0"):
        LinearRNN(2, 0)
    with refused(ValueError, "does not order", "Grid(2, 2)"):
        LinearRNN(2, 3).matrix(torch.randn(1, 4, 2), Grid(2, 2))
    operator = IntegralOperator(LinearRNN(2, 3))
    with refused(ValueError, "LinearRNN integrates over the past, which Points"):  # before any route checks its memory
        operator(torch.randn(1, 50_000, 2), Points(torch.rand(50_000, 2)))
    with refused(ValueError, "batch size 3", "initial_state(2)"):
        operator.scan(torch.randn(2, 4, 2), state=operator.initial_state(3))
    with refused(ValueError, "LinearRNN keeps [(3,)]", "[(1,)]"):
        operator.step(torch.randn(2, 2), (torch.zeros(2, 1),))
