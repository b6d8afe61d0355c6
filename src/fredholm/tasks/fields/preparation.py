"""From sampled functions to what a network of functions sees, and back from what it predicts.

A network sees standardised values in the unit box. Of trajectories it is one step in time, of which it predicts the
change of a state; their wanted values are those of all steps, `(n, N, T·m)`, the m values of the first before those of
the second.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, Points, UnitGrid, domain_of, whole_grid
from fredholm.encoders.function import FunctionBatch, interpolate
from fredholm.tasks.task import Batch, to_device

from .batches import Scale
from .field_set import Samples
from .unit_box import UnitBox

Network = Callable[..., Tensor]
"""What takes a batch of functions, and the points `at` that are asked, to answers, such as a network."""


@final
@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a network sees of functions, and what it predicts of others.

    Args:
        box: where the unit box lies among the positions of the data.
        scale: of what is given.
        target_scale: of what is wanted.
        num_steps: T of trajectories; 1: the answer comes at once.
        grid: that which functions given on none are brought onto; None: they are taken as they come.
        is_periodic: whether functions repeat beyond the unit box.
    """

    box: UnitBox
    scale: Scale
    target_scale: Scale
    num_steps: int
    grid: UnitGrid | None
    is_periodic: bool

    def batch(self, shown: Samples, wanted: Samples) -> Batch:
        """What is shown, `pos` (B, N, s), `values` (B, N, m) and `mask` (B, N), and what is wanted, `wanted_...`."""
        targets = self.target_scale.batch(wanted) | {"pos": self.box.placed(wanted.pos)}
        return self.shown(shown) | {f"wanted_{name}": tensor for name, tensor in targets.items()}

    def shown(self, samples: Samples) -> Batch:
        """What is shown, where there is a grid on one: its own, or that which it is brought onto."""
        shown = self.scale.batch(samples) | {"pos": self.box.placed(samples.pos)}
        if self.grid is None:
            return shown
        domain = self.domain(shown["pos"], shown["mask"])
        if domain.mask is None and whole_grid(domain) is not None:
            return shown
        onto = self.grid.domain(is_periodic=self.is_periodic)
        values = interpolate(FunctionBatch(shown["values"], domain), onto)
        return {
            "pos": onto.pos.expand(len(values), -1, -1),
            "values": values,
            "mask": torch.ones(values.shape[:2], dtype=torch.bool),
        }

    def domain(self, pos: Tensor, mask: Tensor) -> Domain:
        """Where samples are, in the unit box."""
        hidden = None if bool(mask.all()) else mask
        return domain_of(pos, hidden, periodic=self.is_periodic)

    def answers(self, model: Network, batch: Batch) -> Tensor:
        """Standardised answers where they are wanted, `(B, Nq, m')`, or `(B, Nq, T·m')` of as many steps as are."""
        domain, asked = (self.domain(batch[f"{name}pos"], batch[f"{name}mask"]) for name in ("", "wanted_"))
        steps = batch["wanted_values"].shape[-1] // len(self.target_scale.mean)
        return self._answers(model, FunctionBatch(batch["values"], domain), asked, steps)

    @torch.no_grad()
    def predicted(self, model: nn.Module, given: Samples, asked: Tensor, device: torch.device) -> Tensor:
        """The answer for one function at places `(N, s)`, all in the unit of the data; of trajectories all steps."""
        batch = to_device(self.shown(given), device)
        at, width = self.box.placed(asked)[None].to(device), self.num_steps * len(self.target_scale.mean)
        batch |= {
            "wanted_pos": at,
            "wanted_mask": torch.ones(at.shape[:2], dtype=torch.bool, device=device),
            "wanted_values": torch.zeros(*at.shape[:2], width, device=device),
        }
        return self.target_scale.in_unit(self.answers(model, batch)[0].cpu())

    def predicted_on_grid(self, model: nn.Module, values: Tensor, grid: UnitGrid) -> Tensor:
        """From values `(B, *shape, m)` on a grid to the answers there, in the unit of the data, by tensors alone."""
        domain = grid.domain(is_periodic=self.is_periodic).to(values.device)
        state = FunctionBatch(self.scale.standardised(values.flatten(1, -2)), domain)
        return self._predicted(model, state, domain).unflatten(1, grid.shape)

    def predicted_anywhere(
        self, model: nn.Module, pos: Tensor, values: Tensor, exists: Tensor, places: Tensor
    ) -> Tensor:
        """From samples anywhere to the answers at any places, likewise; see `form_of_samples`."""
        shown = torch.where(exists[..., None], self.scale.standardised(values), 0.0)
        state = FunctionBatch(shown, Points(self.box.placed(pos), mask=exists, periodic=self.is_periodic))
        if self.grid is not None:
            onto = self.grid.domain(is_periodic=self.is_periodic).to(values.device)
            state = FunctionBatch(interpolate(state, onto), onto)
        return self._predicted(model, state, Points(self.box.placed(places), periodic=self.is_periodic))

    def _predicted(self, model: nn.Module, state: FunctionBatch, asked: Domain) -> Tensor:
        return self.target_scale.in_unit(self._answers(model, state, asked, self.num_steps))

    def _answers(self, model: Network, state: FunctionBatch, asked: Domain, steps: int) -> Tensor:
        """See `answers`; `steps` are those of trajectories that are wanted."""
        if self.num_steps == 1:
            return _predicted_at(model, state, asked)
        return torch.cat([*_rolled_out(model, state, asked, steps)], dim=-1)


def _predicted_at(model: Network, state: FunctionBatch, asked: Domain) -> Tensor:
    """What the network says there."""
    own = asked.has_points_of(state.domain)
    return (model(state) if own else model(state, at=asked)).float()


def _rolled_out(model: Network, state: FunctionBatch, asked: Domain, steps: int) -> Iterator[Tensor]:
    """The states after each step at the points asked; what goes on are the states at the samples."""
    is_same = asked.has_points_of(state.domain)
    for _ in range(steps):
        following = state._replace(values=state.values + _predicted_at(model, state, state.domain))
        yield following.values if is_same else interpolate(state, asked) + _predicted_at(model, state, asked)
        state = following
