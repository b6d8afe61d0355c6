"""The convolution kernel.

Legend
    x, y        query and key position on lattices, s coordinates     h       spacing of the key grid
    W           the filter, one d_out x d_in matrix per tap           t, d    tap 0 ... k - 1 and dilation, per axis
    c           d (k - 1) / 2, the centre of the window               r       stride of a transposed convolution

    κ(x, y) = Σ_t W_t 1[y = E(x + h (d t - c))]             with E the boundary: the continuation of u beyond the grid
    κ(x, y) = Σ_t W_t 1[x = y + (h / r) (d t - c)]          transposed
    standardised: in place of W, for each result channel o,   g_o (W_o - w_o) / ‖W_o - w_o‖,   w_o the mean of W_o

Source: ITNet (arXiv 2606.19538), C.3 and C.6-C.12. Deviations: its κ = f / h^s integrated with weights h^s is written
with both factors cancelled, so the measure counts points; taps are numbered as torch numbers them (f_m there is W_t
with m = c - d t); even filters and every padding get queries at the centres of their windows, and boundaries other than
zeros are part of κ, which near them is no longer a function of x - y alone. Standardised filters: Qiao et al., Weight
standardization (arXiv 1903.10520), by the norm in place of the deviation.
"""

import math
from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn

from fredholm._settings import is_count
from fredholm.domains import Domain, Grid, GridBlock, whole_grid
from fredholm.kernels.convolution.stationary import (
    LATTICE_TOLERANCE,
    BoundaryMode,
    FilterGeometry,
    Stationary,
    boundary_map,
    check_channels,
    nearest,
    relative_lattice,
)

BOUNDARY_MODES: tuple[BoundaryMode, ...] = ("zeros", "reflect", "replicate", "circular")

OFF_CENTRE = "the queries do not lie at the centres of the filter's windows"

Padding = Literal["valid", "same"] | int | tuple[int, ...] | tuple[tuple[int, int], ...]


@final
class Convolution(Stationary):
    """κ = a filter on a lattice: `torch.nn.ConvNd` and `ConvTransposeNd` without their bias, for s = 1, 2 or 3.

    The signal must live on one whole regular grid (`Grid`, `Sequence(n)`); the filter's taps are its neighbours,
    whatever its spacing. Queries may be any points on the lattice of the windows' centres; by default they are the grid
    of `output_domain`. Stride and padding only determine that grid, except that a transposed convolution has taps
    1 / stride cells apart. A tap that hits no key, or a masked key, adds 0; a masked key counts as 0 in every boundary
    mode; given weights multiply the signal.

    Args:
        in_dim, out_dim: channels of the signal and of the result, multiples of `groups`.
        kernel_size: taps k along each axis, one number or one per axis, as for all sizes here.
        pos_dim: number of axes s.
        stride: cells between neighbouring windows; transposed: result cells between neighbouring keys.
        padding: cells by which windows reach beyond the grid: a number, one per axis, or a pair (lo, hi) per axis;
            "valid" is 0; "same" gives as many results as keys (stride 1; an even reach has its longer half at hi).
            Transposed: cells cut off the full result, numbers only.
        dilation: cells between neighbouring taps.
        groups: channel groups that do not mix; in_dim for a depthwise convolution.
        padding_mode: how the signal continues beyond the grid; "zeros" only when transposed.
        transposed: upsampling by `stride` instead of downsampling.
        output_padding: transposed only: cells added at the end of the result, below stride or dilation.
        standardised: whether the filter of each result channel has mean 0 and a learned norm g. It then ignores a
            constant added to its input: deep networks of such layers learn as fast as with batch norm, and no entry of
            a batch changes another. Not transposed.

    Attributes:
        weight: W, `(out_dim, in_dim / groups, *kernel_size)`; transposed `(in_dim, out_dim / groups, *kernel_size)`. It
            starts uniform in ±1 / sqrt(fan-in), as torch's does.
        gain: g, `(out_dim,)`, starting at 1; None unless standardised.

    Raises:
        ValueError, TypeError: on sizes below 1, groups that do not divide the channels, and options that contradict
            each other.
    """

    is_causal = False
    reads_query = False
    counts_points = True
    is_pairwise = False

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        kernel_size: int | tuple[int, ...],
        pos_dim: int = 1,
        *,
        stride: int | tuple[int, ...] = 1,
        padding: Padding = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        padding_mode: BoundaryMode = "zeros",
        transposed: bool = False,
        output_padding: int | tuple[int, ...] = 0,
        standardised: bool = False,
    ) -> None:
        super().__init__()
        if not is_count(pos_dim) or pos_dim > 3:
            raise ValueError(f"kernels.Convolution: pos_dim must be 1, 2 or 3; got {pos_dim!r}")
        check_channels("kernels.Convolution", in_dim, out_dim, groups)
        if padding_mode not in BOUNDARY_MODES:
            raise ValueError(f"kernels.Convolution: padding_mode is one of {BOUNDARY_MODES}; got {padding_mode!r}")
        if transposed and padding_mode != "zeros":
            raise ValueError(
                f"kernels.Convolution: a transposed convolution has padding_mode 'zeros'; got {padding_mode!r}"
            )
        self.in_dim, self.out_dim, self.pos_dim, self.groups = in_dim, out_dim, pos_dim, groups
        self.kernel_size = _per_axis("kernel_size", kernel_size, pos_dim, least=1)
        self.stride = _per_axis("stride", stride, pos_dim, least=1)
        self.dilation = _per_axis("dilation", dilation, pos_dim, least=1)
        self.reach = tuple(d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True))
        self.padding = _axis_padding(padding, self.reach, self.stride, transposed=transposed)
        self.padding_mode: BoundaryMode = padding_mode
        self.transposed = transposed
        self.output_padding = _axis_output_padding(output_padding, self.stride, self.dilation, transposed=transposed)
        outer, inner = (in_dim, out_dim) if transposed else (out_dim, in_dim)
        self.weight = nn.Parameter(torch.empty(outer, inner // groups, *self.kernel_size))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if standardised and (transposed or self.weight[0].numel() < 2):
            why = "of a transposed convolution" if transposed else "of one value, which would be 0"
            raise ValueError(f"kernels.Convolution: filters {why} cannot be standardised; leave standardised out")
        self.gain = nn.Parameter(torch.ones(out_dim)) if standardised else None

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Cells of the result's grid along each axis, for a signal on a grid of `shape`.

        Raises:
            ValueError: when the windows are larger than the padded grid, or a reflection or a period is too short.
        """
        _check_padding_fits(shape, self.padding, self.padding_mode)
        out = tuple(n + extra for n, extra in zip(self.min_shape(shape), self.output_padding, strict=True))
        if min(out) < 1:
            advice = "enlarge the grid, or pad less" if self.transposed else "enlarge the grid or the padding"
            raise ValueError(
                f"kernels.Convolution: windows of {self.reach} cells with padding {self.padding} leave no result "
                f"on a grid of {tuple(shape)}; {advice}"
            )
        return out

    def min_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """`output_shape` without output padding; below 1 where the result is empty."""
        axes = zip(shape, self.stride, self.reach, self.padding, strict=True)
        return tuple(
            (n - 1) * r + w - lo - hi if self.transposed else (n + lo + hi - w) // r + 1 for n, r, w, (lo, hi) in axes
        )

    def output_domain(self, domain: Domain, shape: tuple[int, ...] | None = None) -> Domain:
        """The grid of the windows' centres, every cell of which exists; `domain` itself if these are its own points.

        Args:
            domain: one whole regular grid.
            shape: cells of the result along each axis; None: `output_shape`.

        Raises:
            ValueError: when the domain is no such grid, or the result is empty.
        """
        block = self._block(domain)
        shape = self.output_shape(block.shape) if shape is None else shape
        ahead = [(w - 1) / 2 - lo for w, (lo, _) in zip(self.reach, self.padding, strict=True)]
        ones = (1,) * len(shape)
        finer, coarser, sign = (self.stride, ones, -1) if self.transposed else (ones, self.stride, 1)
        if shape == block.shape and not any(ahead) and all(r == 1 for r in self.stride):
            return domain
        return Grid(
            *shape,
            spacing=tuple(h * r / f for h, r, f in zip(block.spacing, coarser, finer, strict=True)),
            origin=tuple(
                x + sign * h * a / f for x, h, a, f in zip(block.origin, block.spacing, ahead, finer, strict=True)
            ),
            periodic=block.periodic and all(m * r == n for m, r, n in zip(shape, coarser, block.shape, strict=True)),
            device=domain.device,
        )

    def _block(self, domain: Domain) -> GridBlock:
        block = whole_grid(domain)
        if block is None or len(block.shape) != self.pos_dim:
            raise ValueError(
                f"kernels.Convolution: the signal must live on one whole regular grid with {self.pos_dim} axes, a Grid "
                f"or (1 axis) a Sequence(n); got {domain!r}"
            )
        if reason := self._torn(block):
            raise ValueError(f"kernels.Convolution: {reason}")
        return block

    def _torn(self, keys: GridBlock) -> str | None:
        """Reason why the filter's boundary mode does not fit the grid, in a sentence; None where it does."""
        if not keys.periodic or self.padding_mode == "circular":
            return None
        return (
            f"on a periodic grid the signal continues round the torus; got padding_mode {self.padding_mode!r}; use "
            "'circular' or a grid that is not periodic"
        )

    def _taps(self, pos: Tensor, block: GridBlock, axis: int) -> Tensor:
        """1 where a tap of a query reads a key, `(..., Nq, k, n)`, along one axis; `pos` is `(..., Nq)`."""
        n, h, r = block.shape[axis], block.spacing[axis], self.stride[axis] if self.transposed else 1
        offset = torch.arange(self.kernel_size[axis], dtype=torch.float64, device=pos.device) * self.dilation[axis]
        offset = offset - (self.reach[axis] - 1) / 2
        x = ((pos.double() - block.origin[axis]) * (r / h))[..., None]
        fine = x - offset if self.transposed else x + offset
        index = torch.round(fine)
        # rounding error of a position: in float32, 1e-3 of a cell on an axis of 2^13 cells
        rounding = pos.double().abs() * (r / h * torch.finfo(pos.dtype).eps)
        hits = (fine - index).abs() < (LATTICE_TOLERANCE + rounding).clamp_max(0.25)[..., None]
        whole = index.long()
        hits = hits & (whole % r == 0)
        key = torch.where(hits, boundary_map(whole // r, n, self.padding_mode), -1)
        return key[..., None] == torch.arange(n, device=pos.device)

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, Nq, N, out_dim, in_dim)`: at each pair of points the sum of the taps between them.

        Reflections and periods are repeated as often as a query needs. See `Kernel.matrix`.
        """
        block = self._block(domain)
        pos = (domain if query_domain is None else query_domain).pos
        kappa = self._full_weight().movedim((0, 1), (-2, -1))[None, None]  # (1, 1, k_1, ..., k_s, d_out, d_in)
        for axis in range(len(self.kernel_size)):
            hit = self._taps(pos[..., axis], block, axis).to(kappa.dtype)
            hit = hit if hit.ndim == 4 else hit[None]
            # sums out the first tap axis and appends its key axis
            kappa = torch.einsum("bqk...,bqkn->bq...n", kappa, hit)
        kappa = kappa.movedim((2, 3), (-2, -1)).flatten(2, -3)
        return kappa.expand(u.shape[0], *kappa.shape[1:])

    def _full_weight(self) -> Tensor:
        """The filters with the zeros between groups, `(d_out, d_in, *kernel_size)`."""
        blocks = self.filters().unflatten(0, (self.groups, -1))
        blocks = blocks.transpose(1, 2) if self.transposed else blocks  # (g, d_out / g, d_in / g, *k)
        same = torch.eye(self.groups, dtype=blocks.dtype, device=blocks.device)
        full = torch.einsum("goi...,gf->gofi...", blocks, same)
        return full.flatten(2, 3).flatten(0, 1)

    def filter_geometry(self, keys: GridBlock, queries: GridBlock) -> FilterGeometry | str:
        """See `Stationary.filter_geometry`: the queries must lie where windows can have their centres."""
        if reason := self._torn(keys):
            return reason
        ones = (1,) * len(keys.shape)
        lattice = relative_lattice(keys, queries, self.stride if self.transposed else ones)
        if lattice is None or (self.transposed and any(step != 1 for step, _ in lattice)):
            return OFF_CENTRE
        padding = []
        for (step, first), w, r, n, m in zip(lattice, self.reach, self.stride, keys.shape, queries.shape, strict=True):
            centred = (w - 1) / 2 + (first if self.transposed else -first)
            lo = nearest(centred)
            if abs(centred - lo) > LATTICE_TOLERANCE:
                return OFF_CENTRE
            padding.append((lo, (n - 1) * r + w - lo - m if self.transposed else (m - 1) * step - lo + w - n))
        stride = self.stride if self.transposed else tuple(step for step, _ in lattice)
        return FilterGeometry(
            self.kernel_size, stride, self.dilation, tuple(padding), self.padding_mode, self.transposed
        )

    def filter_weight(self, keys: GridBlock, queries: GridBlock) -> Tensor:
        """See `Stationary.filter_weight`."""
        return self.filters()

    def filters(self) -> Tensor:
        """W, standardised if `standardised`."""
        if self.gain is None:
            return self.weight
        rows = self.weight.flatten(1)
        unit = nn.functional.normalize(rows - rows.mean(1, keepdim=True), dim=1)
        return (self.gain[:, None] * unit).view_as(self.weight)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return (
            f"{self.in_dim}, {self.out_dim}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, "
            f"padding_mode={self.padding_mode}"
            + (f", transposed=True, output_padding={self.output_padding}" if self.transposed else "")
            + (", standardised=True" if self.gain is not None else "")
        )


def _per_axis(name: str, value: int | Sequence[int], axes: int, *, least: int) -> tuple[int, ...]:
    """One whole number >= `least` for each axis."""
    values = (value,) * axes if isinstance(value, int) else value
    if not isinstance(values, Sequence) or len(values) != axes or not all(is_count(v, least) for v in values):
        raise ValueError(
            f"kernels.Convolution: {name} must be an integer >= {least}, or one for each of the {axes} axes; "
            f"got {value!r}; pos_dim is the number of axes"
        )
    return tuple(values)


def _axis_padding(
    padding: Padding, reach: tuple[int, ...], stride: tuple[int, ...], *, transposed: bool
) -> tuple[tuple[int, int], ...]:
    """Padding (lo, hi) for each axis; `reach` is the extent of a window in cells."""
    if isinstance(padding, str):
        if transposed:
            raise ValueError(f"kernels.Convolution: a transposed convolution has padding in numbers; got {padding!r}")
        if padding == "valid":
            return ((0, 0),) * len(reach)
        if padding != "same":
            raise ValueError(f"kernels.Convolution: padding is 'valid', 'same' or numbers; got {padding!r}")
        if any(r != 1 for r in stride):
            raise ValueError(
                f"kernels.Convolution: padding 'same' needs stride 1; got stride {stride}; give padding as numbers"
            )
        return tuple(((w - 1) // 2, w - 1 - (w - 1) // 2) for w in reach)
    values = (padding,) * len(reach) if isinstance(padding, int) else padding
    if not isinstance(values, Sequence) or len(values) != len(reach):
        values = ()
    pairs = tuple((v, v) if isinstance(v, int) else tuple(v) for v in values)
    if not pairs or not all(len(pair) == 2 and all(is_count(v, 0) for v in pair) for pair in pairs):
        raise ValueError(
            f"kernels.Convolution: padding must be 'valid', 'same', an integer >= 0, or an integer or a pair (lo, hi) "
            f"for each of the {len(reach)} axes; got {padding!r}"
        )
    return tuple((lo, hi) for lo, hi in pairs)


def _axis_output_padding(
    output_padding: int | tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], *, transposed: bool
) -> tuple[int, ...]:
    """Cells added at the end of each axis of a transposed convolution's result."""
    cells = _per_axis("output_padding", output_padding, len(stride), least=0)
    for extra, r, d in zip(cells, stride, dilation, strict=True):
        if extra and not transposed:
            raise ValueError(f"kernels.Convolution: output_padding belongs to a transposed convolution; got {extra}")
        if extra and extra >= max(r, d):
            raise ValueError(
                f"kernels.Convolution: output_padding must be below stride {r} or dilation {d}; got {extra}"
            )
    return cells


def _check_padding_fits(shape: tuple[int, ...], padding: tuple[tuple[int, int], ...], mode: BoundaryMode) -> None:
    """Raises ValueError where a reflection or a period of the signal is shorter than the padding that it fills."""
    for n, pair in zip(shape, padding, strict=True):
        if mode == "reflect" and max(pair) >= n:
            raise ValueError(
                f"kernels.Convolution: padding by reflection must be smaller than the grid; got padding {pair} on an "
                f"axis of {n} cells"
            )
        if mode == "circular" and max(pair) > n:
            raise ValueError(
                f"kernels.Convolution: circular padding must not go round more than once; got padding {pair} on an "
                f"axis of {n} cells"
            )
