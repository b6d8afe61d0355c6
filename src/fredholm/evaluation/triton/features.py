"""Fused features of one point, which exist only in registers.

Legend (beside that of `features/features.py`)
    v     factor of a point's features: ω_j u_j, or the gradient g_i of h_i T
    T     a table (w + 1, n): that of a query, or the gradient of S

There are two sums. Over points, S = Σ_j h_j ⊗ v_j: one program per run of points, and the runs are added in a fixed
order. Over units, h_i T. The gradient of S acts on points as a table with factor v; the gradient of T is a sum over
points with g as v; in both, φ(p) has the gradient v Tᵀ, from which the other gradients follow, again over points or
over units.

The kernels take two orders: a program of hidden units takes all points of a run, in tiles of N, and sums over them; a
program of N points takes all hidden units, in tiles of UNITS, and sums over those. All tensors are contiguous.
"""

# pyright: reportGeneralTypeIssues=false
from typing import Any, final

import torch
import triton
import triton.language as tl
from torch import Tensor

from fredholm.evaluation.features.features import FeatureInputs
from fredholm.evaluation.triton.machine import activation_for, mass_unit, padded, precision
from fredholm.evaluation.triton.tile import (
    activate,
    activate_with_slope,
    point_rows,
    scale_of,
    unit_rows,
    write_unit_rows,
)
from fredholm.evaluation.triton.tuning import Room, choose_tile, launch

PROGRAMS = 528
"""Smallest number of programs of a sum over enough points: four for each of 132 processors."""
ROW_COLUMNS = 64
"""Smallest number of columns of a tile in 16 bits.

Tiles reuse shared memory, and tensor cores get a descriptor of the layout of rows. If two tiles in the same memory have
shorter rows of different lengths, the assembler of CUDA 12.8 makes the second descriptor from an uninitialised
register. From this length on, all tiles have the same descriptor.
"""
_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_WEIGHTS = {"position_weight": "grad_position", "content_weight": "grad_content", "bias": "grad_bias"}
_SUMMED = ("sums", *_WEIGHTS.values())


@triton.jit
def _pre_activation(
    at_rows, at_columns, content_rows, content_columns, bias, PRECISION: tl.constexpr, POSITION: tl.constexpr,
    CONTENT: tl.constexpr,
):  # fmt: skip
    """p on a tile: rows by columns, one of them points and the other units; `bias` has the tile's shape."""
    p = bias
    if POSITION:
        p = tl.dot(at_rows, tl.trans(at_columns), p, input_precision=PRECISION)
    if CONTENT:
        p = tl.dot(content_rows, tl.trans(content_columns), p, input_precision=PRECISION)
    return p


@triton.jit
def _values(
    value, weights, points, exist, heads, WEIGHED: tl.constexpr, DTYPE: tl.constexpr, VALUE: tl.constexpr,
    V: tl.constexpr,
):  # fmt: skip
    """v at some points, `(N, V)`, multiplied by ω with WEIGHED; rounded once."""
    values = point_rows(value, points * heads, exist, VALUE, VALUE, V, True)
    if WEIGHED:
        values = values.to(tl.float32) * tl.load(weights + points, mask=exist, other=0.0).to(tl.float32)[:, None]
    return values.to(DTYPE)


@triton.jit(do_not_specialize=["num", "run"])
def unit_sums_kernel(
    lifted, content, position_weight, content_weight, bias, value, weights, table, sums, grad_position, grad_content,
    grad_bias, num, heads, kernels, geometry, measures, run,
    SUMS: tl.constexpr, GRADIENT: tl.constexpr, WEIGHED: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, DTYPE: tl.constexpr, WIDTH: tl.constexpr, LIFTED: tl.constexpr, CONTENT: tl.constexpr,
    VALUE: tl.constexpr, F: tl.constexpr, C: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Sums over a run of points; with WEIGHED v is multiplied by ω.

    With SUMS: Σ_j h_j ⊗ v_j, `(H, B·runs, w + 1, n)`. With GRADIENT: the gradients of P, R and c from those of φ(p),
    v T, `(H, B·runs, w, ...)` each.
    """
    runs = tl.cdiv(num, run)
    part = tl.program_id(0).to(tl.int64)
    b, begin = part // runs, (part % runs) * run
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    head = tl.program_id(2).to(tl.int64)
    g = tl.where(kernels > 1, head, 0)
    lifted += b * geometry * num * LIFTED
    content += (b * num * heads + head) * CONTENT
    value += (b * num * heads + head) * VALUE
    weights += b * measures * num
    SCALE: tl.constexpr = scale_of(ACTIVATION)
    at_weight = unit_rows(position_weight + g * WIDTH * LIFTED, units, WIDTH, LIFTED, F).to(DTYPE) * SCALE
    of_weight = unit_rows(content_weight + g * WIDTH * CONTENT, units, WIDTH, CONTENT, C).to(DTYPE) * SCALE
    c = tl.load(bias + g * WIDTH + units, mask=units < WIDTH, other=0.0).to(DTYPE).to(tl.float32) * SCALE
    if SUMS:
        total = tl.zeros([UNITS, V], tl.float32)
        constant = tl.zeros([V], tl.float32)
    if GRADIENT:
        on_position = tl.zeros([UNITS, F], tl.float32)
        on_content = tl.zeros([UNITS, C], tl.float32)
        on_bias = tl.zeros([UNITS], tl.float32)
        entry = head * (tl.num_programs(0) // runs) + b
        read = unit_rows(table + entry * (WIDTH + 1) * VALUE, units, WIDTH, VALUE, V).to(DTYPE)
    for first in range(begin, tl.minimum(begin + run, num), N):
        points = first + tl.arange(0, N).to(tl.int64)
        exist = points < num
        at = point_rows(lifted, points, exist, LIFTED, LIFTED, F, True).to(DTYPE)
        of = point_rows(content, points * heads, exist, CONTENT, CONTENT, C, True).to(DTYPE)
        start = tl.zeros([UNITS, N], tl.float32) + c[:, None]
        p = _pre_activation(at_weight, at, of_weight, of, start, PRECISION, LIFTED > 0, CONTENT > 0)
        values = _values(value, weights, points, exist, heads, WEIGHED, DTYPE, VALUE, V)
        if GRADIENT:
            h, slope = activate_with_slope(p, ACTIVATION)
            grad_p = tl.dot(read, tl.trans(values), input_precision=PRECISION) * slope
            on_bias += tl.sum(grad_p, 1)
            rounded = grad_p.to(DTYPE)
            if LIFTED > 0:
                on_position = tl.dot(rounded, at, on_position, input_precision=PRECISION)
            if CONTENT > 0:
                on_content = tl.dot(rounded, of, on_content, input_precision=PRECISION)
        else:
            h = activate(p, ACTIVATION)
        if SUMS:
            total = tl.dot(h.to(DTYPE), values, total, input_precision=PRECISION)
            constant += tl.sum(values.to(tl.float32), 0)
    out = head * tl.num_programs(0) + part
    if GRADIENT:
        tl.store(grad_bias + out * WIDTH + units, on_bias * SCALE, mask=units < WIDTH)
        if LIFTED > 0:
            write_unit_rows(grad_position + out * WIDTH * LIFTED, on_position * SCALE, units, WIDTH, LIFTED, F)
        if CONTENT > 0:
            write_unit_rows(grad_content + out * WIDTH * CONTENT, on_content * SCALE, units, WIDTH, CONTENT, C)
    if SUMS:
        place = sums + out * (WIDTH + 1) * VALUE
        write_unit_rows(place, total, units, WIDTH, VALUE, V)
        columns = tl.arange(0, V)
        is_first = tl.program_id(1) == 0
        tl.store(place + WIDTH * VALUE + columns, constant, mask=is_first & (columns < VALUE))


@triton.jit(do_not_specialize=["num", "width"])
def point_sums_kernel(
    lifted, content, position_weight, content_weight, bias, value, weights, table, read, grad_lifted, grad_content,
    num, heads, kernels, geometry, measures, width,
    READ: tl.constexpr, GRADIENT: tl.constexpr, POSITIONS: tl.constexpr, WEIGHED: tl.constexpr,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, DTYPE: tl.constexpr, WIDTH: tl.constexpr, LIFTED: tl.constexpr,
    CONTENT: tl.constexpr, VALUE: tl.constexpr, F: tl.constexpr, C: tl.constexpr, V: tl.constexpr,
    UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Results at every point.

    With READ: h_i T, `(B, N, H, n)`. With GRADIENT: gradients of u, `(B, N, H, e)`, and, with POSITIONS, of γ for each
    head, `(B, N, H, f)`, from the gradients v T of φ(p); with WEIGHED v is multiplied by ω. With both, v is u, and its
    gradient ω_i h_i T is a part of that of u.
    """
    SCALE: tl.constexpr = scale_of(ACTIVATION)
    tiles = tl.cdiv(num, N)
    place = tl.program_id(0).to(tl.int64)
    b = place // tiles
    head = tl.program_id(2).to(tl.int64)
    g = tl.where(kernels > 1, head, 0)
    points = (place % tiles) * N + tl.arange(0, N)
    exist = points < num
    rows = (b * num + points) * heads + head
    at = point_rows(lifted + b * geometry * num * LIFTED, points, exist, LIFTED, LIFTED, F, True).to(DTYPE)
    of = point_rows(content, rows, exist, CONTENT, CONTENT, C, True).to(DTYPE)
    table += (head * (tl.num_programs(0) // tiles) + b) * (WIDTH + 1) * VALUE
    weights += b * measures * num
    columns, channels, waves = tl.arange(0, V), tl.arange(0, C), tl.arange(0, F)
    if READ:
        last = tl.load(table + WIDTH * VALUE + columns, mask=columns < VALUE, other=0.0)
        total = tl.zeros([N, V], tl.float32) + last.to(DTYPE).to(tl.float32)[None, :]
    if GRADIENT:
        on_content = tl.zeros([N, C], tl.float32)
        on_lifted = tl.zeros([N, F], tl.float32)
        value += (b * num * heads + head) * VALUE
        values = _values(value, weights, points, exist, heads, WEIGHED, DTYPE, VALUE, V)
    for first in range(0, width, UNITS):
        units = first + tl.arange(0, UNITS)
        at_weight = unit_rows(position_weight + g * WIDTH * LIFTED, units, WIDTH, LIFTED, F).to(DTYPE) * SCALE
        of_weight = unit_rows(content_weight + g * WIDTH * CONTENT, units, WIDTH, CONTENT, C).to(DTYPE) * SCALE
        c = tl.load(bias + g * WIDTH + units, mask=units < WIDTH, other=0.0).to(DTYPE).to(tl.float32) * SCALE
        start = tl.zeros([N, UNITS], tl.float32) + c[None, :]
        p = _pre_activation(at, at_weight, of, of_weight, start, PRECISION, LIFTED > 0, CONTENT > 0)
        table_rows = unit_rows(table, units, WIDTH, VALUE, V).to(DTYPE)
        if GRADIENT:
            h, slope = activate_with_slope(p, ACTIVATION)
            grad_p = (tl.dot(values, tl.trans(table_rows), input_precision=PRECISION) * slope).to(DTYPE)
            if CONTENT > 0:
                on_content = tl.dot(grad_p, of_weight, on_content, input_precision=PRECISION)
            if POSITIONS:
                on_lifted = tl.dot(grad_p, at_weight, on_lifted, input_precision=PRECISION)
        else:
            h = activate(p, ACTIVATION)
        if READ:
            total = tl.dot(h.to(DTYPE), table_rows, total, input_precision=PRECISION)
    if GRADIENT:
        if READ:
            mass = tl.load(weights + points, mask=exist, other=0.0).to(tl.float32)
            total = total * mass[:, None]
            if CONTENT > 0:
                total += on_content
            place_of = grad_content + rows[:, None] * VALUE + columns[None, :]
            mask = exist[:, None] & (columns[None, :] < VALUE)
            tl.store(place_of, total.to(grad_content.dtype.element_ty), mask=mask)
        elif CONTENT > 0:
            place_of = grad_content + rows[:, None] * CONTENT + channels[None, :]
            mask = exist[:, None] & (channels[None, :] < CONTENT)
            tl.store(place_of, on_content.to(grad_content.dtype.element_ty), mask=mask)
        if POSITIONS:
            place_at = grad_lifted + rows[:, None] * LIFTED + waves[None, :]
            tl.store(place_at, on_lifted, mask=exist[:, None] & (waves[None, :] < LIFTED))
    else:
        place_out = read + rows[:, None] * VALUE + columns[None, :]
        tl.store(place_out, total.to(DTYPE), mask=exist[:, None] & (columns[None, :] < VALUE))


@final
class FusedFeatures:
    """The perceptron of one side.

    Args:
        inputs: its tensors, each in its own dtype.
        activation: φ.
        dtype: of its products and results.
        weights: ω, `(B', N)`, B' = 1 or B, a factor of v; None: no factor.
    """

    def __init__(
        self, inputs: FeatureInputs, activation: str, dtype: torch.dtype, weights: Tensor | None = None
    ) -> None:
        own = {name: tensor.contiguous() for name, tensor in zip(inputs._fields, inputs, strict=True)}
        self.t, self.dtype = FeatureInputs(**own), dtype
        self.batch, self.num_points, self.heads = inputs.content.shape[:3]
        self.kernels, self.width = inputs.bias.shape
        self.lifted, self.content = inputs.position_weight.shape[-1], inputs.content_weight.shape[-1]
        self.unit = None if weights is None else mass_unit(weights, dtype)
        weights = weights if weights is None or self.unit is None else weights / self.unit
        self.unused = self.t.bias  # placeholder for tensors that a kernel does not access
        self.inputs: dict[str, Any] = {
            **own,
            "weights": self.unused if weights is None else weights.contiguous(),
            "num": self.num_points,
            "heads": self.heads,
            "kernels": self.kernels,
            "geometry": int(inputs.lifted.shape[0] > 1),
            "measures": int(weights is not None and weights.shape[0] > 1),
            "WEIGHED": weights is not None,
            "ACTIVATION": activation_for(activation, dtype),
            "PRECISION": precision(),
            "DTYPE": _TYPES[dtype],
            "WIDTH": self.width,
            "LIFTED": self.lifted,
            "CONTENT": self.content,
            "F": self._padded(self.lifted),
            "C": self._padded(self.content),
        }

    def sums(self, value: Tensor) -> Tensor:
        """S, `(H, B, w + 1, n)` in float32, from v, `(B, N, H, n)`."""
        return self._over_points(value, None, sums=True)["sums"]

    def tables(self, table: Tensor) -> Tensor:
        """h_i T, `(B, N, H, n)`, from T, `(H, B, w + 1, n)`."""
        shape = self.batch, self.num_points, self.heads, table.shape[-1]
        out = self.t.content.new_empty(shape, dtype=self.dtype)
        self._over_units(table, {"read": out}, read=True, gradient=False)
        return out

    def gradients(
        self, value: Tensor, table: Tensor, wanted: frozenset[str], *, sums: bool = False, read: bool = False
    ) -> dict[str, Tensor]:
        """Gradients of all inputs from the gradient v Tᵀ of φ(p); those of γ and u only where `wanted`.

        Args:
            value: v, `(B, N, H, n)`.
            table: T, `(H, B, w + 1, n)`.
            wanted: names of inputs.
            sums: whether to compute "sums" as well, those of `sums(value)`.
            read: whether v is u, whose gradient then also has the part ω_i h_i T.
        """
        t, table = self.t, self._weighed(table)
        grads = self._over_points(value, table, sums=sums)
        positions, signal = "lifted" in wanted and self.lifted > 0, read or self.content > 0
        if positions or ("content" in wanted and signal):
            places = {"value": value.contiguous()}
            if signal:  # written wherever it is computed
                places["grad_content"] = grads["content"] = torch.empty_like(t.content)
            if positions:
                places["grad_lifted"] = self._empty(*t.content.shape[:3], self.lifted)
            self._over_units(table, places, read=read, gradient=True)
            if positions:
                grads["lifted"] = places["grad_lifted"].sum(2).sum_to_size(t.lifted.shape)
        return grads

    def _over_points(self, value: Tensor, table: Tensor | None, *, sums: bool) -> dict[str, Tensor]:
        """Sums over all points: S, `(H, B, w + 1, n)`, and with a table the gradients of weights, `(G, w, ...)`."""
        n, v = value.shape[-1], self._padded(value.shape[-1])
        both = self.inputs["F"] + self.inputs["C"]
        summed = both + (0 if table is None else v * (1 + sums))  # numbers per unit that a program sums
        tile = choose_tile(unit_sums_kernel, Room(self.width, summed, both + v, self.dtype))
        blocks = tile.blocks(self.width)
        tiles = -(-self.num_points // tile.points)
        runs = min(tiles, -(-PROGRAMS // max(1, self.batch * self.heads * blocks)))
        run = tile.points * -(-tiles // max(1, runs))
        runs = -(-self.num_points // max(1, run))
        shape, places = (self.heads, self.batch, runs), dict.fromkeys(_SUMMED, self.unused)
        if sums:
            places["sums"] = self._empty(*shape, self.width + 1, n)
        if table is not None:
            places["grad_position"] = self._empty(*shape, self.width, self.lifted)
            places["grad_content"] = self._empty(*shape, self.width, self.content)
            places["grad_bias"] = self._empty(*shape, self.width)
        own = {"value": value.contiguous(), "table": self._table(table), "run": run, "SUMS": sums}
        own["GRADIENT"] = table is not None
        if self.batch * runs * self.heads:
            arguments = {**self.inputs, **places, **own, "VALUE": n, "V": v}
            launch(unit_sums_kernel, (self.batch * runs, blocks, self.heads), tile, arguments)
        found = {}
        if sums:
            found["sums"] = self._weighed(places["sums"][:, :, 0] if runs == 1 else places["sums"].sum(2))
        if table is not None:
            shared = (0, 1, 2) if self.kernels == 1 else (1, 2)
            found |= {name: places[place].sum(shared) for name, place in _WEIGHTS.items()}
        return found

    def _over_units(self, table: Tensor, places: dict[str, Tensor], *, read: bool, gradient: bool) -> None:
        """Writes the results at every point to the given memory."""
        n, v = table.shape[-1], self._padded(table.shape[-1])
        both = self.inputs["F"] + self.inputs["C"]
        tile = choose_tile(point_sums_kernel, Room(self.width, both + v, both + v, self.dtype, "points"))
        own = {**dict.fromkeys(("value", "read", "grad_lifted", "grad_content"), self.unused), **places}
        own |= {"READ": read, "GRADIENT": gradient, "POSITIONS": "grad_lifted" in places}
        own |= {"table": self._table(table), "width": self.width, "VALUE": n, "V": v}
        programs = self.batch * -(-self.num_points // tile.points)
        if programs * self.heads:
            launch(point_sums_kernel, (programs, 1, self.heads), tile, {**self.inputs, **own})

    def _weighed(self, value: Tensor) -> Tensor:
        """Rescales S, or a T that multiplies ω u, to ω in units of 1."""
        return value if self.unit is None else value * self.unit

    def _padded(self, columns: int) -> int:
        """Number of columns of a tile that holds `columns`."""
        return padded(columns, at_least=ROW_COLUMNS if columns and self.dtype != torch.float32 else 16)

    def _table(self, table: Tensor | None) -> Tensor:
        return self.unused if table is None else table.contiguous()

    def _empty(self, *shape: int) -> Tensor:
        return self.unused.new_empty(shape, dtype=torch.float32)
