"""Several modalities as one signal on a joint domain."""

import math
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, Grid, Points, Union
from fredholm.domains.grid import whole_grid
from fredholm.encoders.encoder import Encoder

STEP = 1.5
"""Distance of consecutive modalities along their extra coordinate."""


@final
class JointBatch(NamedTuple):
    """The inputs of each part's encoder, by the part's name, and a mask of the examples that have the part.

    `present` has a bool tensor `(B,)` for each part that some examples lack, True = the example has it; None: every
    example has every part. The values of `inputs` for a missing part have no effect, but must be finite.
    """

    inputs: dict[str, Any]
    present: dict[str, Tensor] | None = None


@final
class Joint(Encoder):
    """Parts of any kinds side by side on Ω_1 ∪ ... ∪ Ω_M (ITNet, section 3, "Multimodal encoder", for M modalities).

        u(x) = (signal of the encoder of x's part) + e_m,   x in Ω_m
        μ = Σ_m s_m μ_m,   s_m = mass_m / Σ mass,  μ_m(Ω_m) = 1,  the sum over the parts that an example has

    The embeddings e_m start as N(0, 0.02²). Points keep the coordinates of their part, padded with 0 to the largest
    number of coordinates, and get one more, 3/2 m for part m, so that kernels that read positions can distinguish the
    parts. The paper joins only images and texts; `encoders.ImageText` does that, with other positions.

    For an example without a part, the result is that of a model without the part's encoder: the part's points do not
    exist, and the other parts share its mass. Neither the other examples of a batch nor padding change a result.

    Orders and times of points are not kept, nor are edges: kernels that need them raise an error, and others read the
    points as a set.

    Args:
        encoders: two or more, by names without dots, in the order of their points; all give as many channels.
        mass: mass of each part, above 0, by name; None: equal.

    Raises:
        ValueError: fewer than two encoders, invalid names, different channels, or masses for parts other than these.
        TypeError: an encoder or a mass of another type.
    """

    def __init__(self, encoders: dict[str, Encoder], *, mass: dict[str, float] | None = None) -> None:
        super().__init__()
        if not isinstance(encoders, dict) or not all(isinstance(each, Encoder) for each in encoders.values()):
            raise TypeError("encoders.Joint: encoders is a dictionary of encoders by name")
        if len(encoders) < 2:
            raise ValueError(f"encoders.Joint: joins two encoders or more; got {len(encoders)}")
        if unfit := [name for name in encoders if not name or "." in name]:
            raise ValueError(f"encoders.Joint: the name of a part is a text without dots; got {unfit[0]!r}")
        widths = {name: each.embed_dim for name, each in encoders.items()}
        if len(set(widths.values())) > 1:
            given = ", ".join(f"{name} {width}" for name, width in widths.items())
            raise ValueError(f"encoders.Joint: the encoders give {given} channels; make them equal")
        self.mass = _shares(tuple(encoders), mass)
        self.embed_dim = next(iter(widths.values()))
        self.pos_dim = 1 + max(each.pos_dim for each in encoders.values())
        self.parts = nn.ModuleDict(encoders)
        self.part_weight = nn.Parameter(0.02 * torch.randn(len(encoders), self.embed_dim))
        """e_m, row by row."""

    def forward(self, inputs: JointBatch | dict[str, Any]) -> tuple[Tensor, Domain]:
        """A batch, or its inputs alone where all examples have all parts, to the signal and the joint domain.

        The signal is 0 at points that do not exist.

        Raises:
            TypeError: inputs that are neither a batch nor a dictionary, or `present` that is not bool.
            ValueError: missing or unknown parts, batches of different sizes, domains that cannot be joined, or
                inputs that an encoder refuses.
        """
        batch = inputs if isinstance(inputs, JointBatch) else JointBatch(inputs)
        if not isinstance(batch.inputs, dict):
            raise TypeError(f"encoders.Joint: expected a JointBatch or a dictionary; got {type(inputs).__name__}")
        self._check_names("inputs", batch.inputs, all_of_them=True)
        self._check_names("present", batch.present or {}, all_of_them=False)
        signals: list[Tensor] = []
        domains: list[Domain] = []
        for number, (name, encoder) in enumerate(self.parts.items()):
            u, domain = encoder(batch.inputs[name])
            u = u + self.part_weight[number].to(u.dtype)
            domain = self._placed(name, number, domain)
            if batch.present and name in batch.present:
                domain = domain.restrict(_spread(name, batch.present[name], u.shape[0], domain.num_points))
            signals.append(u if domain.mask is None else torch.where(domain.mask[..., None], u, 0.0))
            domains.append(domain)
        if any(u.shape[0] != signals[0].shape[0] for u in signals):
            sizes = ", ".join(f"{name} {u.shape[0]}" for name, u in zip(self.parts, signals, strict=True))
            raise ValueError(f"encoders.Joint: the parts are of batches of different sizes: {sizes}")
        joint = self._joined(domains, batch.present or {})
        joint.has_index_order = False  # the parts have no order
        return torch.cat(signals, dim=1), joint

    def _joined(self, domains: list[Domain], present: dict[str, Tensor]) -> Domain:
        """The union of the parts, each with its share of the mass among the parts that an example has."""
        joint, masses = domains[0], [*self.mass.values()]
        if not present:
            for number, domain in enumerate(domains[1:], start=1):
                joint = Union(joint, domain, mass=(sum(masses[:number]), masses[number]))
            return joint
        everywhere = torch.ones((), dtype=torch.bool, device=joint.device)
        has = torch.stack(torch.broadcast_tensors(*(present.get(name, everywhere) for name in self.parts)), dim=-1)
        found = has * torch.tensor(masses, dtype=torch.float64, device=joint.device)
        # an example without any part has no points: avoids 0 / 0
        shares = found / found.sum(-1, keepdim=True).clamp_min(min(masses))
        for number, domain in enumerate(domains[1:], start=1):
            before = shares[:, :number].sum(-1)
            joint = Union(joint, domain, mass=torch.stack([before, shares[:, number]], dim=-1))
        return joint

    def _placed(self, name: str, number: int, domain: Domain) -> Domain:
        """The points of a part in the joint coordinates."""
        if domain.pair_bias is not None or domain.pair_list is not None or domain.is_periodic:
            what = "is periodic" if domain.is_periodic else "weighs or lists pairs of points"
            raise ValueError(f"encoders.Joint: the domain of {name!r} {what}, which a joint domain does not keep")
        beyond = (*(0.0,) * (self.pos_dim - 1 - domain.pos_dim), STEP * number)
        weights = domain.weights if domain.uniform_parts is None else None
        block = whole_grid(domain)
        if block is None:
            more = domain.pos.new_tensor(beyond).expand(*domain.pos.shape[:-1], -1)
            placed: Domain = Points(torch.cat([domain.pos, more], dim=-1), weights, domain.mask)
        else:
            placed = Grid(
                *(*block.shape, *(1,) * len(beyond)),
                spacing=(*block.spacing, *(1.0,) * len(beyond)),
                origin=(*block.origin, *beyond),
                weights=weights,
                mask=domain.mask,
                device=domain.device,
            )
        if weights is None:
            placed.uniform_parts, placed.weights = domain.uniform_parts, domain.weights
        placed.given_counts_per_mass = domain.given_counts_per_mass
        return placed

    def _check_names(self, what: str, given: dict[str, Any], *, all_of_them: bool) -> None:
        if given.keys() == self.parts.keys() or (not all_of_them and given.keys() <= self.parts.keys()):
            return
        raise ValueError(
            f"encoders.Joint: {what} are of {', '.join(map(repr, given)) or 'no part'}; the parts are "
            f"{', '.join(map(repr, self.parts))}"
        )


def _shares(names: tuple[str, ...], mass: dict[str, float] | None) -> dict[str, float]:
    """Share of each part where all are present, with sum 1."""
    if mass is None:
        return dict.fromkeys(names, 1 / len(names))
    if not isinstance(mass, dict) or not all(isinstance(m, int | float) for m in mass.values()):
        raise TypeError(f"encoders.Joint: mass is a dictionary of numbers by part; got {mass!r}")
    if mass.keys() != set(names):
        raise ValueError(f"encoders.Joint: mass is of {', '.join(mass)}; the parts are {', '.join(names)}")
    if not all(0 < m < math.inf for m in mass.values()):
        raise ValueError(f"encoders.Joint: masses are finite numbers above 0; got {mass}")
    total = sum(mass.values())
    return {name: mass[name] / total for name in names}


def _spread(name: str, present: Tensor, batch: int, num_points: int) -> Tensor:
    """The mask `(B, N)` of a part's points, True in examples that have the part."""
    if not isinstance(present, Tensor) or present.dtype != torch.bool:
        got = present.dtype if isinstance(present, Tensor) else type(present).__name__
        raise TypeError(
            f"encoders.Joint: present[{name!r}] must be a bool tensor, True = the example has it; got {got}"
        )
    if present.ndim != 1 or present.shape[0] != batch:
        raise ValueError(f"encoders.Joint: present[{name!r}] must be ({batch},); got {tuple(present.shape)}")
    return present[:, None].expand(-1, num_points)
