"""Samples of functions in their own frames, the input of models of sets of samples."""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.domains import Domain, Points
from fredholm.domains.checks import values_can_be_read
from fredholm.fields.frames.frame import Coordinates, Frame, require_digits


class FramedSamples(NamedTuple):
    """B sets of N samples, each in F frames."""

    u: Tensor
    """Values, `(B, N, m)`; 0 at masked samples."""
    pos: Tensor
    """Original positions, `(B, N, s)`."""
    z: Tensor
    """Places in the frames, `(B, F, N, c)`, float64."""
    coordinates: Coordinates
    reach: Tensor
    """The largest ‖z‖ of a sample, `(B, F)`; 0 in a set without samples."""
    at: Points
    """Domain of the B·F signals, with the samples' weights and masks."""

    def each(self, per_set: Tensor) -> Tensor:
        """Repeats `(B, ...)` for every frame of a set, to `(B·F, ...)`."""
        frames = self.z.shape[1]
        return per_set.repeat_interleave(frames, dim=0) if frames > 1 else per_set


def framed_samples(
    name: str,
    u: Tensor,
    domain: Domain,
    frame: Frame,
    sizes: tuple[int, int],
    key_padding_mask: Tensor | None,
    frame_weights: Tensor | None,
) -> FramedSamples:
    """Checks samples, sets masked ones to 0, and computes their frames.

    Args:
        name: name of the model, for error messages.
        u: values, `(B, N, m)`.
        domain: positions, weights and masks.
        frame: computes the frames.
        sizes: (s, m), the coordinates and values of a sample that the model takes.
        key_padding_mask: `(N,)` or `(B, N)` bool, True = keep; on top of the domain's.
        frame_weights: weights of samples in the frame alone, `(N,)` or `(B, N)`; None: the domain's weights.

    Raises:
        ValueError, TypeError: on samples of another dimension, values that are NaN or infinite, samples so far from
            the origin of their frame that sines lose all precision, or shapes that do not fit.
    """
    _check(name, u, domain, *sizes)
    domain = domain.restrict(key_padding_mask)
    if domain.mask is not None:
        u = torch.where(domain.mask[..., None], u, 0.0)
    if values_can_be_read(u) and not bool(u.isfinite().all()):
        raise ValueError(f"{name}: u holds NaN or infinite values at samples that exist; mask them")
    batch = u.shape[0]
    by = domain if frame_weights is None else Points(domain.pos, frame_weights, domain.mask)
    coordinates = _of_batch(frame.coordinates(by), batch)
    pos = (domain.pos if domain.pos.ndim == 3 else domain.pos[None]).expand(batch, -1, -1)
    z = coordinates.normalise(pos)
    require_digits(f"{name}: samples lie", z, None if domain.mask is None else torch.atleast_2d(domain.mask)[:, None])
    frames = z.shape[1]
    lengths = z.detach().square().sum(-1).sqrt()
    if domain.mask is not None:
        lengths = torch.where(torch.atleast_2d(domain.mask)[:, None], lengths, 0.0)
    reach = lengths.amax(-1) if lengths.shape[-1] else lengths.new_zeros(batch, frames)
    mask, weights = (
        None if part is None else torch.atleast_2d(part).expand(batch, -1).repeat_interleave(frames, dim=0)
        for part in (domain.mask, None if domain.is_even else domain.weights)
    )
    at = Points(z.detach().flatten(0, 1), weights, mask)
    if weights is not None:
        per_mass = torch.atleast_2d(domain.counts_per_mass).expand(batch, -1)
        at.given_counts_per_mass = per_mass.repeat_interleave(frames, dim=0)
    return FramedSamples(u, pos, z, coordinates, reach, at)


def _of_batch(coordinates: Coordinates, batch: int) -> Coordinates:
    if coordinates.origin.shape[0] == batch:
        return coordinates
    spread = {name: getattr(coordinates, name) for name in ("origin", "matrix", "inverse")}
    return coordinates._replace(**{name: part.expand(batch, *part.shape[1:]) for name, part in spread.items()})


def _check(name: str, u: Tensor, domain: Domain, pos_dim: int, out_dim: int) -> None:
    if not isinstance(u, Tensor) or u.ndim != 3 or u.shape[-1] != out_dim:
        got = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
        raise ValueError(f"{name}: u must be (batch, samples, {out_dim}), the values of samples; got {got}")
    if not isinstance(domain, Domain):
        raise TypeError(f"{name}: expected a fredholm domain; got {type(domain).__name__}")
    if domain.pos_dim != pos_dim:
        raise ValueError(f"{name}: samples have {domain.pos_dim} coordinates; the model was built for {pos_dim}")
    if domain.num_points != u.shape[1] or domain.batch_size not in (None, u.shape[0]):
        raise ValueError(f"{name}: u is {tuple(u.shape)} but its domain {domain!r} has {domain.num_points} points")
    if domain.pair_bias is not None:
        raise ValueError(
            f"{name}: samples weigh the same for all queries; this domain weighs pairs (Domain.weigh_pairs)"
        )
