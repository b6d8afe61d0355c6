"""Every mistake in a call raises a one-line error that names the bad value and what was expected."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fredholm
from fredholm import evaluation, kernels
from fredholm.domains import Domain, Grid, Points, Sequence
from tests.operators.build import CONTENT_FREE, operator, signal
from tests.refusals import refused

GRID = Grid(2, 3)


@pytest.mark.parametrize("shape", [(6, 6), (6,), (1, 2, 6, 6), (2, 6, 5), (2, 6, 0)])
def test_signals_of_another_rank_or_width_are_refused(shape: tuple[int, ...]) -> None:
    op = operator()
    with refused(ValueError, "u must be (batch, points, channels) with 6 channels", f"got {shape}"):
        op(torch.zeros(shape, dtype=torch.float64), GRID)
    with refused(ValueError, "query must be (batch, points, channels) with 6 channels", f"got {shape}"):
        op(signal(6), GRID, query=torch.zeros(shape, dtype=torch.float64))
    with refused(ValueError, "with 6 channels", f"got {shape}"):
        op.explain(torch.zeros(shape, dtype=torch.float64), GRID)


def test_signals_that_are_no_tensors_are_refused() -> None:
    with refused(TypeError, "u must be a tensor", "ndarray"):
        operator()(signal(6).numpy(), GRID)
    with refused(TypeError, "query must be a tensor", "list"):
        operator()(signal(6), GRID, query=[[0.0]])


def test_signals_of_several_lengths_are_refused() -> None:
    rows = [torch.zeros(3, 6), torch.zeros(5, 6)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    packed = torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    for signals, name in ((rows, "list"), (packed, "PackedSequence"), (nested, "a nested tensor")):
        with refused(TypeError, f"got {name}; pad entries", "Sequence(n, mask=mask)"):
            operator()(signals)


@pytest.mark.parametrize(
    ("shape", "instead"),
    [
        ((4, 6), "u[None] is a batch of one"),
        ((2, 6, 4, 4), "u.flatten(2).mT"),
        ((2, 6, 4), "u.mT has the channels last"),
    ],
)
def test_the_error_for_another_layout_names_the_conversion(shape: tuple[int, ...], instead: str) -> None:
    u = torch.zeros(shape, dtype=torch.float64)
    with refused(ValueError, f"got {shape}; ", instead):
        operator()(u, GRID)
    made = {2: lambda: u[None], 4: lambda: u.flatten(2).mT}.get(len(shape), lambda: u.mT)()
    assert made.shape[2] == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_another_dtype_is_refused(dtype: torch.dtype) -> None:
    op, u = operator(), torch.ones(2, 6, 6, dtype=dtype)
    with refused(TypeError, f"u is {dtype}", "the operator is torch.float64", "convert"):
        op(u, GRID)
    with refused(TypeError, f"query is {dtype}", "the operator is torch.float64"):
        op(signal(6), GRID, query=u)


def test_integers_under_autocast() -> None:
    op = operator(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16), refused(TypeError, "u is torch.int64"):
        op(torch.ones(2, 6, 6, dtype=torch.int64), GRID)


def test_a_query_of_another_precision_under_autocast() -> None:
    op, u = operator(dtype=torch.float32), signal(6, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16), refused(ValueError, "torch.bfloat16", "dtype", "torch.float32"):
        op(u, GRID, query=u.bfloat16())


def test_another_device_is_refused() -> None:
    op, u = operator(), signal(6)
    with refused(ValueError, "u is on meta", "the operator is on cpu"):
        op(u.to("meta"), GRID)
    with refused(ValueError, "query is on meta", "the operator is on cpu"):
        op(u, GRID, query=u.to("meta"))
    far = Points(torch.rand(6, 2)).to("meta")
    with refused(ValueError, "u is on cpu", "its domain is on meta", "domain.to"):
        op(u, far)
    with refused(ValueError, "query is on cpu", "its domain is on meta", "domain.to"):
        op(u, GRID, query=u, query_domain=far)
    with refused(ValueError, "mask is on meta", "cpu"):
        op(u, GRID, key_padding_mask=torch.ones(6, dtype=torch.bool, device="meta"))


def test_another_number_of_points_is_refused() -> None:
    op = operator()
    with refused(ValueError, "u has 5 points", "Grid(2, 3) has 6"):
        op(signal(5), GRID)
    with refused(ValueError, "query has 6 points", "Grid(2, 2) has 4"):
        op(signal(6), GRID, query=signal(6), query_domain=Grid(2, 2))


def test_positions_of_another_dimension_are_refused() -> None:
    op = operator()
    with refused(ValueError, "positions with 2 coordinates", "Sequence(6) has 1"):
        op(signal(6))
    with refused(ValueError, "positions with 2 coordinates", "Grid(1, 2, 3) has 3"):
        op(signal(6), Grid(1, 2, 3))
    with refused(ValueError, "positions with 2 coordinates", "Sequence(3) has 1"):
        op(signal(6), GRID, query=signal(3))


def test_another_batch_size_is_refused() -> None:
    op, three = operator(), torch.rand(3, 6, 2)
    with refused(ValueError, "u has batch size 2", "its domain has batch size 3"):
        op(signal(6), Points(three))
    with refused(ValueError, "query has batch size 2", "its domain has batch size 3"):
        op(signal(6), GRID, query=signal(6), query_domain=Points(three))
    with refused(ValueError, "(3, 6, 6)", "must share batch size", "(2, 6, 6)"):
        op(signal(6), GRID, query=signal(6, batch=3))


def test_a_query_whose_domain_has_another_number_of_points_is_refused() -> None:
    with refused(ValueError, "query has 3 points but its domain", "has 6"):
        operator()(signal(6), GRID, query=signal(3), query_domain=GRID)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_padding_mask_of_another_batch_size_is_refused(batch: int) -> None:
    op, mask = operator(), torch.ones(3, 6, dtype=torch.bool)
    for domain in (GRID, Points(GRID.pos)):
        with refused(ValueError, "key_padding_mask has batch size 3", f"u has {batch}"):
            op(signal(6, batch), domain, key_padding_mask=mask)
        with refused(ValueError, "key_padding_mask has batch size 3", f"u has {batch}"):
            op(signal(6, batch), domain, query=signal(6, batch), key_padding_mask=mask)


def test_bad_padding_masks_are_refused() -> None:
    op, u = operator(), signal(6)
    with refused(ValueError, "mask", "(6,)", "got shape (5,)"):
        op(u, GRID, key_padding_mask=torch.ones(5, dtype=torch.bool))
    with refused(TypeError, "mask must be bool", "torch.float64"):
        op(u, GRID, key_padding_mask=torch.ones(6, dtype=torch.float64))
    with refused(TypeError, "mask must be a tensor", "list"):
        op(u, GRID, key_padding_mask=[True] * 6)


def test_a_missing_query_that_is_read_is_refused() -> None:
    other = Points(torch.rand(3, 2))
    for op in (
        operator(residual=False),
        operator(inputs=CONTENT_FREE),
    ):  # the kernel reads it in the first, the residual in the second
        with refused(ValueError, "the queries are not the points of u", "pass query="):
            op(signal(6), GRID, query_domain=other)


def test_values_that_are_no_domains_are_refused() -> None:
    op = operator()
    with refused(TypeError, "domain, such as Grid(14, 14) or Points(positions)", "got Tensor"):
        op(signal(6), GRID.pos)
    with refused(TypeError, "domain", "got Tensor"):
        op(signal(6), GRID, query=signal(6), query_domain=GRID.pos)
    with refused(TypeError, "domain", "got Tensor"):
        op(signal(6), GRID.pos, query=signal(6))


def test_bad_arguments_of_the_constructor_are_refused() -> None:
    with refused(TypeError, "kernel must be a fredholm kernel", "Linear"):
        fredholm.IntegralOperator(torch.nn.Linear(6, 6))  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "kernel must be a fredholm kernel; got the class MLP: make one, MLP()"):
        fredholm.IntegralOperator(kernels.MLP)  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "evaluation must be an Evaluation, such as Auto() or one route", "'tiled'"):
        fredholm.IntegralOperator(kernels.MLP(6, 2, 2), evaluation="tiled")  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "evaluation must be an Evaluation, such as Auto() or one route"):
        fredholm.IntegralOperator(kernels.MLP(6, 2, 2), evaluation=evaluation.Tiled)  # pyright: ignore[reportArgumentType]


def test_a_residual_between_different_numbers_of_channels_is_refused() -> None:
    kernel = kernels.MLP(6, 2, 1)
    kernel.out_dim = 4
    with refused(ValueError, "as many channels out as in", "6 to 4", "residual=False"):
        fredholm.IntegralOperator(kernel)
    weight = fredholm.IntegralOperator(kernel, residual=False).output_weight
    assert weight is not None
    assert weight.shape == (4, 4)


def test_an_integral_that_the_chosen_route_refuses() -> None:
    with refused(ValueError, "Toeplitz refuses this integral", "same regular grid"):
        operator(1, evaluation=evaluation.Toeplitz())(signal(3), Sequence(times=torch.arange(3.0)))


class Distance(kernels.Kernel):
    """exp(-|x - y|²) I, with a matrix whose shape a test changes."""

    in_dim = out_dim = 2
    pos_dim, is_causal, reads_query = 2, False, False

    def __init__(self, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cut = cut

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        at = domain if query_domain is None else query_domain
        kappa = torch.exp(-domain.displacement(at.pos).square().sum(-1))[..., None, None] * torch.eye(2).double()
        return self.cut(kappa.expand(len(u), *kappa.shape[-4:]))


def test_kernel_matrices_of_another_shape_are_refused() -> None:
    u = torch.randn(3, 6, 2, dtype=torch.float64)

    def call(cut: Callable[[Tensor], Tensor]) -> Tensor:
        return fredholm.IntegralOperator(Distance(cut)).double()(u, GRID)

    whole = call(lambda kappa: kappa)
    for cut in (lambda k: k[0], lambda k: k[..., :1], lambda k: k[..., 0, 0], lambda k: k[:2], lambda k: k[:, :1]):
        with refused(
            ValueError, "Distance.matrix must be (batch, queries, points, out_dim, in_dim)", "(3, 6, 6, 2, 2)"
        ):
            call(cut)
    assert call(lambda kappa: kappa[:1]).shape == whole.shape  # one matrix for the whole batch


def test_kernels_without_required_attributes_are_refused() -> None:
    class Incomplete(kernels.Kernel):
        in_dim = 2

        def matrix(self, *args: object) -> Tensor:
            raise AssertionError

    with refused(TypeError, "Incomplete does not set out_dim, pos_dim, is_causal, reads_query", "kernels.Kernel"):
        fredholm.IntegralOperator(Incomplete())


def test_the_signature_is_short_and_shows_the_default() -> None:
    stated = str(inspect.signature(fredholm.IntegralOperator))
    assert "= Auto()," in stated
    assert len(stated) < 600
    assert repr(evaluation.Auto((evaluation.Dense(),), differentiable_twice=True)) == (
        "Auto(routes=(Dense(max_bytes=4294967296),), differentiable_twice=True)"
    )


def test_calling_a_kernel_is_refused() -> None:
    with refused(TypeError, "MLP is a kernel, which is not called; fredholm.IntegralOperator(kernel)", "kernel.matrix"):
        kernels.MLP(6, 2, 2)(signal(6), GRID)


def test_repr_shows_settings_that_differ_from_the_defaults() -> None:
    assert fredholm.IntegralOperator(kernels.Attention(6, 2)).extra_repr() == ""
    plain = fredholm.IntegralOperator(
        kernels.GRU(6, 4), residual=False, bias=False, output_projection=False, evaluation=evaluation.StepLoop()
    )
    assert plain.extra_repr() == "residual=False, bias=False, output_projection=False, evaluation=StepLoop()"
