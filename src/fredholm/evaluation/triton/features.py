"""Features of one point, fused: none of them ever leaves a register.

Legend (beside that of `factors/inputs.py`)
    v     what a point's features are multiplied with: ω_j u_j, or the gradient g_i of h_i T
    T     a table (w + 1, n): of a query, or the gradient of S

Two sums are all there is. Over points, S = Σ_j h_j ⊗ v_j: one program a run of points, the runs added in a fixed order.
Over units, h_i T. The gradient of S is read by points as a table, v its other factor; the gradient of T is a sum over
points with g as v; and in both φ(p) receives v Tᵀ, from which the rest follows, again over points or over units.
"""

from typing import Any, final

import torch
from torch import Tensor

from fredholm.evaluation.features.inputs import FeatureInputs
from fredholm.evaluation.triton.feature_kernels import point_sums_kernel, unit_sums_kernel
from fredholm.evaluation.triton.problem import activation_for, padded, precision
from fredholm.evaluation.triton.tiles import choose_tile, launch

PROGRAMS = 528
"""How many programs share the sum over points at least, if there are points enough: four for each of 132 processors."""


@final
class FusedFeatures:
    """The perceptron of one side.

    Args:
        inputs: its tensors.
        activation: φ.
    """

    def __init__(self, inputs: FeatureInputs, activation: str) -> None:
        self.t = t = FeatureInputs(*(tensor.contiguous() for tensor in inputs))
        self.batch, self.num_points, self.heads, self.content = t.content.shape
        self.kernels, self.width = t.bias.shape
        self.lifted = t.lifted.shape[-1]
        self.inputs: dict[str, Any] = {
            **t._asdict(),
            "num": self.num_points,
            "heads": self.heads,
            "kernels": self.kernels,
            "geometry": int(t.lifted.shape[0] > 1),
            "ACTIVATION": activation_for(activation, t.content.dtype),
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
        by_kernel = [found[name].sum((0, 1)) for name in ("grad_position", "grad_content", "grad_bias")]
        if self.kernels == 1:
            by_kernel = [grad.sum(0, keepdim=True) for grad in by_kernel]
        grads: dict[str, Tensor] = dict(zip(("position_weight", "content_weight", "bias"), by_kernel, strict=True))
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
        tile = choose_tile(self.width, both + (0 if table is None else v), both + v, value.dtype)
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
        tile = choose_tile(self.width, both + v, both + v, self.t.content.dtype)
        unused = torch.empty(0, device=table.device)
        places = {"value": unused, "read": unused, "grad_lifted": unused, "grad_content": unused, **results}
        own = {"table": self._rounded(table, unused), "GRADIENT": gradient, "VALUE": n, "V": v}
        own["POSITIONS"] = places["grad_lifted"].numel() > 0
        programs = self.batch * -(-self.num_points // tile.points)
        if programs * self.heads:
            launch(point_sums_kernel, (programs, 1, self.heads), tile, {**self.inputs, **places, **own})

    def _rounded(self, table: Tensor | None, unused: Tensor) -> Tensor:
        return unused if table is None else table.to(self.t.content.dtype).contiguous()
