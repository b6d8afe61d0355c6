"""Features of one point, fused: none of them ever leaves a register.

Legend (beside that of `features/features.py`)
    v     what a point's features are multiplied with: ω_j u_j, or the gradient g_i of h_i T
    T     a table (w + 1, n): of a query, or the gradient of S

Two sums are all there is. Over points, S = Σ_j h_j ⊗ v_j: one program a run of points, the runs added in a fixed order.
Over units, h_i T. The gradient of S is read by points as a table, v its other factor; the gradient of T is a sum over
points with g as v; and in both φ(p) receives v Tᵀ, from which the rest follows, again over points or over units.

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
from fredholm.evaluation.triton.machine import activation_for, padded, precision, scale_for
from fredholm.evaluation.triton.tile import activate, activate_with_slope, point_rows, unit_rows, write_unit_rows
from fredholm.evaluation.triton.tuning import Room, choose_tile, launch

LAYER = ("position_weight", "content_weight", "bias")
"""What p is made of beside the points."""
PROGRAMS = 528
"""How many programs share the sum over points at least, if there are points enough: four for each of 132 processors."""


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


@triton.jit(do_not_specialize=["num", "run"])
def unit_sums_kernel(
    lifted, content, position_weight, content_weight, bias, value, table, sums, grad_position, grad_content, grad_bias,
    num, heads, kernels, geometry, run,
    GRADIENT: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr,
    LIFTED: tl.constexpr, CONTENT: tl.constexpr, VALUE: tl.constexpr, F: tl.constexpr, C: tl.constexpr,
    V: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Σ_j φ(p_j) ⊗ v_j over a run of points, `(B·runs, H, w, n)`.

    With GRADIENT: those of P, R and c from the gradients v T of φ(p), `(B·runs, H, w, ...)` each.
    """
    runs = tl.cdiv(num, run)
    part = tl.program_id(0).to(tl.int64)
    b, begin = part // runs, (part % runs) * run
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    head = tl.program_id(2).to(tl.int64)
    g = tl.where(kernels > 1, head, 0)
    dtype: tl.constexpr = value.dtype.element_ty
    lifted += b * geometry * num * LIFTED
    content += (b * num * heads + head) * CONTENT
    value += (b * num * heads + head) * VALUE
    at_weight = unit_rows(position_weight + g * WIDTH * LIFTED, units, WIDTH, LIFTED, F)
    of_weight = unit_rows(content_weight + g * WIDTH * CONTENT, units, WIDTH, CONTENT, C)
    c = tl.load(bias + g * WIDTH + units, mask=units < WIDTH, other=0.0).to(tl.float32)
    total = tl.zeros([UNITS, V], tl.float32)
    on_position = tl.zeros([UNITS, F], tl.float32)
    on_content = tl.zeros([UNITS, C], tl.float32)
    on_bias = tl.zeros([UNITS], tl.float32)
    if GRADIENT:
        read = unit_rows(table + (b * heads + head) * (WIDTH + 1) * VALUE, units, WIDTH, VALUE, V)
    for first in range(begin, tl.minimum(begin + run, num), N):
        points = first + tl.arange(0, N).to(tl.int64)
        exist = points < num
        at = point_rows(lifted, points, exist, LIFTED, LIFTED, F)
        of = point_rows(content, points * heads, exist, CONTENT, CONTENT, C)
        start = tl.zeros([UNITS, N], tl.float32) + c[:, None]
        p = _pre_activation(at_weight, at, of_weight, of, start, PRECISION, LIFTED > 0, CONTENT > 0)
        values = point_rows(value, points * heads, exist, VALUE, VALUE, V)
        if GRADIENT:
            _, slope = activate_with_slope(p, ACTIVATION)
            grad_p = tl.dot(read, tl.trans(values), input_precision=PRECISION) * slope
            on_bias += tl.sum(grad_p, 1)
            rounded = grad_p.to(dtype)
            if LIFTED > 0:
                on_position = tl.dot(rounded, at, on_position, input_precision=PRECISION)
            if CONTENT > 0:
                on_content = tl.dot(rounded, of, on_content, input_precision=PRECISION)
        else:
            total = tl.dot(activate(p, ACTIVATION).to(dtype), values, total, input_precision=PRECISION)
    out = part * heads + head
    if GRADIENT:
        tl.store(grad_bias + out * WIDTH + units, on_bias, mask=units < WIDTH)
        if LIFTED > 0:
            write_unit_rows(grad_position + out * WIDTH * LIFTED, on_position, units, WIDTH, LIFTED, F)
        if CONTENT > 0:
            write_unit_rows(grad_content + out * WIDTH * CONTENT, on_content, units, WIDTH, CONTENT, C)
    else:
        write_unit_rows(sums + out * WIDTH * VALUE, total, units, WIDTH, VALUE, V)


@triton.jit(do_not_specialize=["num", "width"])
def point_sums_kernel(
    lifted, content, position_weight, content_weight, bias, value, table, read, grad_lifted, grad_content,
    num, heads, kernels, geometry, width,
    GRADIENT: tl.constexpr, POSITIONS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    WIDTH: tl.constexpr, LIFTED: tl.constexpr, CONTENT: tl.constexpr, VALUE: tl.constexpr, F: tl.constexpr,
    C: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """[φ(p_i); 1] T at every point, `(B, N, H, n)`.

    With GRADIENT: those of u, `(B, N, H, e)`, and, with POSITIONS, of γ, a head apart, `(B, N, H, f)`, from the
    gradients v T of φ(p).
    """
    tiles = tl.cdiv(num, N)
    place = tl.program_id(0).to(tl.int64)
    b = place // tiles
    head = tl.program_id(2).to(tl.int64)
    g = tl.where(kernels > 1, head, 0)
    dtype: tl.constexpr = table.dtype.element_ty
    points = (place % tiles) * N + tl.arange(0, N)
    exist = points < num
    rows = (b * num + points) * heads + head
    at = point_rows(lifted + b * geometry * num * LIFTED, points, exist, LIFTED, LIFTED, F)
    of = point_rows(content, rows, exist, CONTENT, CONTENT, C)
    table += (b * heads + head) * (WIDTH + 1) * VALUE
    columns, channels, waves = tl.arange(0, V), tl.arange(0, C), tl.arange(0, F)
    total = tl.zeros([N, V], tl.float32)
    on_content = tl.zeros([N, C], tl.float32)
    on_lifted = tl.zeros([N, F], tl.float32)
    if GRADIENT:
        values = point_rows(value, rows, exist, VALUE, VALUE, V)
    else:
        last = tl.load(table + WIDTH * VALUE + columns, mask=columns < VALUE, other=0.0)
        total += last.to(tl.float32)[None, :]
    for first in range(0, width, UNITS):
        units = first + tl.arange(0, UNITS)
        at_weight = unit_rows(position_weight + g * WIDTH * LIFTED, units, WIDTH, LIFTED, F)
        of_weight = unit_rows(content_weight + g * WIDTH * CONTENT, units, WIDTH, CONTENT, C)
        c = tl.load(bias + g * WIDTH + units, mask=units < WIDTH, other=0.0).to(tl.float32)
        start = tl.zeros([N, UNITS], tl.float32) + c[None, :]
        p = _pre_activation(at, at_weight, of, of_weight, start, PRECISION, LIFTED > 0, CONTENT > 0)
        table_rows = unit_rows(table, units, WIDTH, VALUE, V)
        if GRADIENT:
            _, slope = activate_with_slope(p, ACTIVATION)
            grad_p = (tl.dot(values, tl.trans(table_rows), input_precision=PRECISION) * slope).to(dtype)
            if CONTENT > 0:
                on_content = tl.dot(grad_p, of_weight, on_content, input_precision=PRECISION)
            if POSITIONS:
                on_lifted = tl.dot(grad_p, at_weight, on_lifted, input_precision=PRECISION)
        else:
            total = tl.dot(activate(p, ACTIVATION).to(dtype), table_rows, total, input_precision=PRECISION)
    if GRADIENT:
        if CONTENT > 0:
            place_of = grad_content + rows[:, None] * CONTENT + channels[None, :]
            tl.store(place_of, on_content.to(dtype), mask=exist[:, None] & (channels[None, :] < CONTENT))
        if POSITIONS:
            place_at = grad_lifted + rows[:, None] * LIFTED + waves[None, :]
            tl.store(place_at, on_lifted, mask=exist[:, None] & (waves[None, :] < LIFTED))
    else:
        place_out = read + rows[:, None] * VALUE + columns[None, :]
        tl.store(place_out, total.to(dtype), mask=exist[:, None] & (columns[None, :] < VALUE))


@final
class FusedFeatures:
    """The perceptron of one side.

    Args:
        inputs: its tensors.
        activation: φ.
    """

    def __init__(self, inputs: FeatureInputs, activation: str) -> None:
        named = activation_for(activation, inputs.content.dtype)
        self.scale = scale_for(named)
        own = inputs._asdict() | {name: getattr(inputs, name) * self.scale for name in LAYER if self.scale != 1.0}
        own = {name: tensor.contiguous() for name, tensor in own.items()}
        self.t = t = FeatureInputs(**own)
        self.batch, self.num_points, self.heads, self.content = t.content.shape
        self.kernels, self.width = t.bias.shape
        self.lifted = t.lifted.shape[-1]
        self.inputs: dict[str, Any] = {
            **own,
            "num": self.num_points,
            "heads": self.heads,
            "kernels": self.kernels,
            "geometry": int(t.lifted.shape[0] > 1),
            "ACTIVATION": named,
            "PRECISION": precision(),
            "WIDTH": self.width,
            "LIFTED": self.lifted,
            "CONTENT": self.content,
            "F": padded(self.lifted),
            "C": padded(self.content),
        }

    def sums(self, value: Tensor) -> Tensor:
        """S, `(B, H, w + 1, n)` in float32, from v, `(B, N, H, n)`."""
        value = value.contiguous()
        whole = value.new_empty(self.batch, self.heads, self.width + 1, value.shape[-1], dtype=torch.float32)
        whole[:, :, :-1] = self._over_points(value, None)["sums"].sum(1)
        whole[:, :, -1] = value.sum(1, dtype=torch.float32)
        return whole

    def tables(self, table: Tensor) -> Tensor:
        """h_i T, `(B, N, H, n)` in the dtype of the features, from T, `(B, H, w + 1, n)`."""
        out = self.t.content.new_empty(self.batch, self.num_points, self.heads, table.shape[-1])
        self._over_units(table, {"read": out}, gradient=False)
        return out

    def gradients(self, value: Tensor, table: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Gradients of all inputs where φ(p) receives v Tᵀ; those of γ and u only where `wanted`."""
        t, value = self.t, value.contiguous()
        found = self._over_points(value, table)
        by_kernel = [found[name].sum((0, 1)) * self.scale for name in ("grad_position", "grad_content", "grad_bias")]
        if self.kernels == 1:
            by_kernel = [grad.sum(0, keepdim=True) for grad in by_kernel]
        grads: dict[str, Tensor] = dict(zip(LAYER, by_kernel, strict=True))
        if wanted & {"lifted", "content"}:
            at = torch.empty(*t.content.shape[:3], self.lifted if "lifted" in wanted else 0, device=value.device)
            of = torch.empty_like(t.content)
            self._over_units(table, {"value": value, "grad_lifted": at, "grad_content": of}, gradient=True)
            grads["content"] = of
            if "lifted" in wanted:
                grads["lifted"] = at.sum(2).sum_to_size(t.lifted.shape)
        return grads

    def _over_points(self, value: Tensor, table: Tensor | None) -> dict[str, Tensor]:
        """S of each run of points, or with a table the gradients of weights, `(B, runs, H, w, ...)`."""
        n, v = value.shape[-1], padded(value.shape[-1])
        both = self.inputs["F"] + self.inputs["C"]
        room = Room(self.width, both + (0 if table is None else v), both + v, value.dtype)
        tile = choose_tile(unit_sums_kernel, room)
        blocks = tile.blocks(self.width)
        tiles = -(-self.num_points // tile.points)
        runs = min(tiles, -(-PROGRAMS // max(1, self.batch * self.heads * blocks)))
        run = tile.points * -(-tiles // max(1, runs))
        runs = -(-self.num_points // max(1, run))
        sizes = {"sums": n} if table is None else {"grad_position": self.lifted, "grad_content": self.content}
        device, shape = value.device, (self.batch, runs, self.heads, self.width)
        results = {name: torch.empty(*shape, size, device=device) for name, size in sizes.items()}
        if table is not None:
            results["grad_bias"] = torch.empty(shape, device=device)
        unused = torch.empty(0, device=device)
        places = {"sums": unused, "grad_position": unused, "grad_content": unused, "grad_bias": unused, **results}
        own = {"value": value, "table": self._rounded(table, unused), "run": run, "GRADIENT": table is not None}
        if self.batch * runs * self.heads:
            arguments = {**self.inputs, **places, **own, "VALUE": n, "V": v}
            launch(unit_sums_kernel, (self.batch * runs, blocks, self.heads), tile, arguments)
        return results

    def _over_units(self, table: Tensor, results: dict[str, Tensor], *, gradient: bool) -> None:
        n, v = table.shape[-1], padded(table.shape[-1])
        both = self.inputs["F"] + self.inputs["C"]
        tile = choose_tile(point_sums_kernel, Room(self.width, both + v, both + v, self.t.content.dtype, "points"))
        unused = torch.empty(0, device=table.device)
        places = {"value": unused, "read": unused, "grad_lifted": unused, "grad_content": unused, **results}
        own = {"table": self._rounded(table, unused), "GRADIENT": gradient, "VALUE": n, "V": v}
        own |= {"POSITIONS": places["grad_lifted"].numel() > 0, "width": self.width}
        programs = self.batch * -(-self.num_points // tile.points)
        if programs * self.heads:
            launch(point_sums_kernel, (programs, 1, self.heads), tile, {**self.inputs, **places, **own})

    def _rounded(self, table: Tensor | None, unused: Tensor) -> Tensor:
        return unused if table is None else table.to(self.t.content.dtype).contiguous()
