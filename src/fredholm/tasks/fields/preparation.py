"""Preprocessing of sampled functions for a network, and postprocessing of its predictions.

A network sees standardised values in the unit box. For trajectories it is one step in time and predicts the change of a
state; their targets are those of all steps, `(n, N, T·m)`, with the m values of the first step before those of the
second.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, Points, UnitGrid, domain_of, whole_grid
from fredholm.encoders.function import FunctionBatch, fill_gaps, interpolate
from fredholm.tasks.task import Batch, to_device

from .batches import Scale
from .field_set import Samples
from .unit_box import UnitBox

Network = Callable[..., Tensor]
"""Maps a batch of functions, and the evaluation points `at`, to predictions, such as a network."""


@final
@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Pre- and postprocessing of functions.

    Args:
        box: place of the unit box in the coordinates of the data.
        scale: scale of the input values.
        target_scale: scale of the target values.
        num_steps: T for trajectories; 1: the network predicts the target directly.
        grid: grid that functions without one are interpolated to; None: they are used as they are.
        is_periodic: whether functions repeat beyond the unit box.
    """

    box: UnitBox
    scale: Scale
    target_scale: Scale
    num_steps: int
    grid: UnitGrid | None
    is_periodic: bool

    def batch(self, shown: Samples, targets: Samples) -> Batch:
        """Returns inputs `pos` (B, N, s), `values` (B, N, m) and `mask` (B, N), and targets `target_...` likewise."""
        return self.shown(shown) | {f"target_{name}": tensor for name, tensor in self.targets(targets).items()}

    def targets(self, samples: Samples) -> Batch:
        """Returns targets `pos`, `values` and `mask`."""
        return self.target_scale.batch(samples) | {"pos": self.box.placed(samples.pos)}

    def shown(self, samples: Samples) -> Batch:
        """Returns the inputs, interpolated to the grid where there is one and the samples form none.

        Missing samples of a grid are interpolated from the others.
        """
        shown = self.scale.batch(samples) | {"pos": self.box.placed(samples.pos)}
        if self.grid is None:
            return shown
        domain = self.domain(shown["pos"], shown["mask"])
        if whole_grid(domain) is not None:
            filled = fill_gaps(FunctionBatch(shown["values"], domain))
            return shown | {"values": filled, "mask": torch.ones_like(shown["mask"])}
        onto = self.grid.domain(is_periodic=self.is_periodic)
        values = interpolate(FunctionBatch(shown["values"], domain), onto)
        return {
            "pos": onto.pos.expand(len(values), -1, -1),
            "values": values,
            "mask": torch.ones(values.shape[:2], dtype=torch.bool),
        }

    def filled(self, batch: Batch) -> Tensor:
        """Returns the values of a batch at the points that functions share; missing ones are interpolated."""
        return fill_gaps(FunctionBatch(batch["values"], self.domain(batch["pos"], batch["mask"])))

    def domain(self, pos: Tensor, mask: Tensor) -> Domain:
        """Returns the domain of samples in the unit box."""
        hidden = None if bool(mask.all()) else mask
        return domain_of(pos, hidden, periodic=self.is_periodic)

    def answers(self, model: Network, batch: Batch) -> Tensor:
        """Returns standardised predictions at target points, `(B, Nq, m')`, or `(B, Nq, T·m')` of T steps."""
        domain = self.domain(batch["pos"], batch["mask"])
        # also at points without a target, so that those of a grid stay a grid
        points = self.domain(batch["target_pos"], torch.ones_like(batch["target_mask"]))
        steps = batch["target_values"].shape[-1] // len(self.target_scale.mean)
        return self._answers(model, FunctionBatch(batch["values"], domain), points, steps)

    @torch.no_grad()
    def predicted(self, model: nn.Module, given: Samples, points: Tensor, device: torch.device) -> Tensor:
        """Predicts one function at points `(N, s)`, all in the unit of the data; for trajectories all steps."""
        batch = to_device(self.shown(given), device)
        at, width = self.box.placed(points)[None].to(device), self.num_steps * len(self.target_scale.mean)
        batch |= {
            "target_pos": at,
            "target_mask": torch.ones(at.shape[:2], dtype=torch.bool, device=device),
            "target_values": torch.zeros(*at.shape[:2], width, device=device),
        }
        return self.target_scale.in_unit(self.answers(model, batch)[0].cpu())

    def predicted_on_grid(self, model: nn.Module, values: Tensor, grid: UnitGrid) -> Tensor:
        """Predicts from values `(B, *shape, m)` on a grid at the same points, in data units, by tensors alone."""
        domain = grid.domain(is_periodic=self.is_periodic).to(values.device)
        state = FunctionBatch(self.scale.standardised(values.flatten(1, -2)), domain)
        return self._predicted(model, state, domain).unflatten(1, grid.shape)

    def predicted_anywhere(
        self, model: nn.Module, pos: Tensor, values: Tensor, exists: Tensor, places: Tensor
    ) -> Tensor:
        """Predicts at any points from samples at any points, as `predicted_on_grid`; see `form_of_samples`."""
        shown = torch.where(exists[..., None], self.scale.standardised(values), 0.0)
        state = FunctionBatch(shown, Points(self.box.placed(pos), mask=exists, periodic=self.is_periodic))
        if self.grid is not None:
            onto = self.grid.domain(is_periodic=self.is_periodic).to(values.device)
            state = FunctionBatch(interpolate(state, onto), onto)
        return self._predicted(model, state, Points(self.box.placed(places), periodic=self.is_periodic))

    def _predicted(self, model: nn.Module, state: FunctionBatch, points: Domain) -> Tensor:
        return self.target_scale.in_unit(self._answers(model, state, points, self.num_steps))

    def _answers(self, model: Network, state: FunctionBatch, points: Domain, steps: int) -> Tensor:
        """Implements `answers`; `steps` is the number of requested steps of trajectories."""
        if self.num_steps == 1:
            return _predicted_at(model, state, points)
        return torch.cat([*_rolled_out(model, state, points, steps)], dim=-1)


def _predicted_at(model: Network, state: FunctionBatch, points: Domain) -> Tensor:
    """Returns the network's prediction at the evaluation points."""
    own = points.has_points_of(state.domain)
    return (model(state) if own else model(state, at=points)).float()


def _rolled_out(model: Network, state: FunctionBatch, points: Domain, steps: int) -> Iterator[Tensor]:
    """Yields the states after each step at the evaluation points; steps start from the states at the samples."""
    is_same = points.has_points_of(state.domain)
    for _ in range(steps):
        following = state._replace(values=state.values + _predicted_at(model, state, state.domain))
        yield following.values if is_same else interpolate(state, points) + _predicted_at(model, state, points)
        state = following
