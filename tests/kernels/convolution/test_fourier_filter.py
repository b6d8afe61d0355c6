"""Filters that are Fourier series: the layer of a Fourier neural operator, and its values on other points."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, kernels
from fredholm.domains import Grid, Points, Sequence
from fredholm.evaluation import BasisTiled, Dense, FourierSum, Integral
from fredholm.kernels.convolution.fourier_filter import half_lattice
from tests.refusals import refused


def built(pos_dim: int = 2, **settings: object) -> kernels.SpectralConvolution:
    torch.manual_seed(0)
    return kernels.SpectralConvolution(4, 2, pos_dim, **{"num_waves_per_axis": 2, **settings}).double()


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_fast_transform(kernel: kernels.SpectralConvolution, image: Tensor) -> Tensor:
    """FFT, selection of waves, mixing of channels and inverse FFT (FNO, eq. 4): `(B, C, H, W)`."""
    spectrum = torch.fft.fft2(image, norm="forward")
    out = torch.zeros(len(image), kernel.out_dim, *image.shape[2:], dtype=spectrum.dtype)
    count = len(kernel.wave_vectors)
    for m, (down, across) in enumerate(kernel.wave_vectors.long().tolist()):
        matrix = torch.complex(kernel.weight[m], torch.zeros_like(kernel.weight[m]))
        if m:
            matrix = torch.complex(kernel.weight[m], -kernel.weight[count + m - 1])
        out[:, :, down % out.shape[2], across % out.shape[3]] = torch.einsum(
            "oi,bi->bo", matrix, spectrum[:, :, down % out.shape[2], across % out.shape[3]]
        )
    return torch.fft.ifft2(out, norm="forward").real


@pytest.mark.parametrize("shape", [(7, 8), (5, 5), (11, 6)])
def test_on_a_torus_it_is_the_layer_of_a_fourier_neural_operator(shape: tuple[int, int]) -> None:
    kernel, grid = built(), Grid(*shape, periodic=True)
    image = noise(3, 4, *shape).requires_grad_()
    u = image.flatten(2).mT
    found = FourierSum().integrate(Integral(kernel, u, grid)).mT.unflatten(-1, shape)
    expected = by_fast_transform(kernel, image)
    weights = noise(*expected.shape)
    torch.testing.assert_close(found, expected)
    leaves = (image, kernel.weight)
    got, reference = (torch.autograd.grad((out * weights).sum(), leaves) for out in (found, expected))
    for actual, grad in zip(got, reference, strict=True):
        torch.testing.assert_close(actual, grad)


def test_a_finer_grid_has_the_values_of_the_points_it_shares() -> None:
    operator = IntegralOperator(built(), residual=False).double()
    wave = torch.stack([torch.ones(64), *(f(2 * torch.pi * Grid(8, 8).pos[:, 0]) for f in (torch.sin, torch.cos))], -1)
    coarse = torch.cat([wave, wave[:, :1]], dim=-1).double()[None]
    grid = Grid(24, 24)
    fine = torch.stack([torch.ones(576), *(f(2 * torch.pi * grid.pos[:, 0]) for f in (torch.sin, torch.cos))], -1)
    fine = torch.cat([fine, fine[:, :1]], dim=-1).double()[None]
    # waves that both grids resolve have the same moments on both
    shared = operator(fine, grid).unflatten(1, (24, 24))[:, 1::3, 1::3].flatten(1, 2)
    torch.testing.assert_close(shared, operator(coarse, Grid(8, 8)))


@pytest.mark.parametrize("period", [0.5, 1.0, 2.0, (2.0, 0.7)])
def test_scattered_points_and_separate_queries(period: Any) -> None:
    kernel = built(period=period)
    pos, queries = torch.rand(2, 9, 2, dtype=torch.float64), torch.rand(5, 2, dtype=torch.float64)
    integral = Integral(kernel, noise(2, 9, 4), Points(pos), None, Points(queries))
    dense = Dense().integrate(integral)
    torch.testing.assert_close(FourierSum().integrate(integral), dense)
    torch.testing.assert_close(BasisTiled().integrate(integral), dense)


@pytest.mark.parametrize("shape", [(7,), (5, 6), (1, 4), (4, 3, 5)])
def test_transforms_along_the_axes_of_grids_equal_sums_over_their_points(shape: tuple[int, ...]) -> None:
    periods = tuple(1.0 + axis for axis in range(len(shape)))
    kernel = built(len(shape), period=periods, groups=2)
    grid, target = Grid(*shape, origin=[0.1] * len(shape)), Grid(*(n + 1 for n in shape))
    u, found = noise(3, grid.num_points, 4).requires_grad_(), []
    for keys, queries in ((grid, target), (Points(grid.pos), Points(target.pos)), (grid, Points(target.pos))):
        out = FourierSum().integrate(Integral(kernel, u, keys, None, queries))
        found.append((out, *torch.autograd.grad((out * noise(*out.shape)).sum(), (u, kernel.weight))))
    for on_points in found[1:]:
        for actual, expected in zip(found[0], on_points, strict=True):
            torch.testing.assert_close(actual, expected)


def test_waves_that_are_not_periodic_are_refused_on_a_torus() -> None:
    integral = Integral(built(period=2.0), noise(1, 16, 4), Grid(4, 4, periodic=True))
    assert FourierSum().unsupported_reasons(integral) == ["waves of period 2.0 are not periodic on a torus of length 1"]
    assert not FourierSum().unsupported_reasons(Integral(built(period=0.5), noise(1, 16, 4), Grid(4, 4, periodic=True)))


def test_the_half_lattice_holds_one_of_each_pair_of_opposite_waves() -> None:
    waves = half_lattice(2, 2)
    assert waves[0].tolist() == [0, 0]
    assert len(waves) == (5 * 5 + 1) // 2
    both = torch.cat([waves, -waves[1:]])
    assert len(both.unique(dim=0)) == 25
    assert half_lattice(3, 1).tolist() == [[0], [1], [2], [3]]


def test_keeps_the_size_of_a_signal() -> None:
    torch.manual_seed(0)
    kernel = kernels.SpectralConvolution(64, 64, 1, num_waves_per_axis=8)
    u = torch.randn(4, 128, 64).cumsum(1)  # smooth
    out = FourierSum().integrate(Integral(kernel, u, Sequence(128, spacing=1 / 128)))
    assert 0.02 < float(out.detach().std() / u.std()) < 2


def test_sizes_are_checked() -> None:
    with refused(ValueError, "groups must divide", "3 groups"):
        kernels.SpectralConvolution(4, 2, 2, groups=3)
    with refused(ValueError, "kernels.SpectralConvolution", "num_waves_per_axis"):
        kernels.SpectralConvolution(4, 2, 2, num_waves_per_axis=-1)
    with refused(ValueError, "period"):
        kernels.SpectralConvolution(4, 2, 2, period=0.0)
    with refused(ValueError, "one for each of 2 coordinates; got (1.0,)"):
        kernels.SpectralConvolution(4, 2, 2, period=(1.0,))
