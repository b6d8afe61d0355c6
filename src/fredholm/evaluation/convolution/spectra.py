"""Filters in a basis of few functions, applied and differentiated in chunks of frequencies.

Legend
    x, t         place of a result, and a tap                û, F u    spectrum of u at L points
    φ_k(t), M_k  basis functions, their matrices             Ψ         Σ_k φ_k M_k
    ḡ            gradient of g, which is v, u, φ or M        b         entry of the batch

    v(x)   = Σ_t Ψ(t) u(x + t),          v̂ = conj(Ψ̂) û
    ū(s)   = Σ_x Ψ(s - x)ᵀ v̄(x),        F ū = Ψ̂ᵀ F v̄
    Ψ̄(t)  = Σ_b Σ_x v̄(x) u(x + t)ᵀ,    F Ψ̄ = Σ_b conj(F v̄) ûᵀ
    φ̄_k(t) = ⟨M_k, Ψ̄(t)⟩,   M̄_k = Σ_t φ_k(t) Ψ̄(t) = Re Σ conj(φ̂_k) F Ψ̄ / L, over all frequencies

Only the spectra of u, v and the φ_k exist as a whole: Ψ̂, with d_out x d_in entries per frequency, exists by chunks.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.tiling import Workspace, ranges


class FilterInputs(NamedTuple):
    """Signal and filter; all in one dtype."""

    image: Tensor  # u: (B, d_in, *n), B >= 1, the channels of a group side by side
    basis: Tensor  # φ: (w, *k)
    weight: Tensor  # M: (w, d_out, d_in / groups)


class FilterOutputs(NamedTuple):
    """The filtered signal."""

    out: Tensor  # v: (B, d_out, *results), where u is 0 beyond its grid


@final
class BasisSpectra:
    """Applies one filter to one signal.

    Args:
        inputs: signal and filter.
        first: x of the first requested result along each axis.
        results: number of requested results along each axis.
        lengths: L, at which no requested result wraps round onto another.
        elements: entries of Ψ̂ in a chunk.
    """

    def __init__(
        self, inputs: FilterInputs, first: list[int], results: list[int], lengths: list[int], elements: int
    ) -> None:
        self.image, self.basis, self.weight = image, basis, weight = inputs
        self.first, self.results, self.lengths = first, results, lengths
        self.axes = tuple(range(-len(lengths), 0))
        self.inner = weight.shape[2]
        self.groups = image.shape[1] // self.inner
        self.outer = weight.shape[1] // self.groups
        self.mixing = weight.flatten(1).t()  # (d_out·i, w)
        self.chunk = max(1, elements // self.mixing.shape[0])
        self.response = self._transformed(basis)  # φ̂: (w, F)
        self._real = Workspace(image)
        self._complex = Workspace(self.response)

    def forward(self) -> Tensor:
        """v, `(B, d_out, *results)`."""
        signal = self._by_frequency(self.image).conj_physical_()
        out = signal.new_empty(signal.shape[0], self.groups, self.outer, signal.shape[-1])
        for at in self._chunks():
            _product(self._filters(at), signal[at], out[at])
        del signal
        # conj(Ψ̂) û is the conjugate of Ψ̂ conj(û); conjugating signals is cheaper than filters
        return self._wanted(self._by_place(out.conj_physical_()))

    def plain(self) -> Tensor:
        """v in differentiable operations, one basis function after the other."""
        signal = self._transformed(self.image).unflatten(1, (self.groups, self.inner))  # (B, groups, i, F)
        matrices = self.weight.unflatten(1, (self.groups, self.outer)).to(signal.dtype)
        out = torch.zeros_like(signal[:, :, :1])
        for matrix, response in zip(matrices, self.response, strict=True):
            out = out + torch.einsum("goi,bgif->bgof", matrix, response.conj() * signal)
        return self._wanted(self._restored(out.flatten(1, 2)))

    def backward(self, grad: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
        """The wanted gradients, from v̄, `(B, d_out, *results)`."""
        upstream = self._by_frequency(self._placed(grad))
        count, batch = upstream.shape[0], upstream.shape[-1]
        to_image = upstream.new_empty(count, self.groups, self.inner, batch) if "image" in wanted else None
        to_basis = torch.empty_like(self.response) if "basis" in wanted else None
        to_weight = torch.zeros_like(self.mixing) if "weight" in wanted else None
        signal = self._by_frequency(self.image) if wanted - {"image"} else None
        for at in self._chunks():
            if to_image is not None:
                _product(self._filters(at).mT, upstream[at], to_image[at])
            if signal is not None:
                products = _pairs(upstream[at].conj_physical_(), signal[at])
                self._collect(products.flatten(1), at, to_basis, to_weight)
        found = {}
        if to_image is not None:
            found["image"] = self._cut(self._by_place(to_image), self.image.shape[2:])
        if to_basis is not None:
            found["basis"] = self._cut(self._restored(to_basis), self.basis.shape[1:])
        if to_weight is not None:
            found["weight"] = to_weight.t().reshape(self.weight.shape) / math.prod(self.lengths)
        return found

    def _chunks(self) -> Iterator[slice]:
        return ranges(self.response.shape[-1], self.chunk)

    def _filters(self, at: slice) -> Tensor:
        """Ψ̂ at some frequencies, `(f, groups, o, i)`."""
        parts = torch.view_as_real(self.response[:, at]).flatten(1)
        filters = self._real.take("filters", self.mixing.shape[0], parts.shape[1])
        torch.mm(self.mixing, parts, out=filters)
        by_entry = torch.view_as_complex(filters.unflatten(1, (-1, 2)))
        by_frequency = self._complex.take("filters", by_entry.shape[1], by_entry.shape[0]).copy_(by_entry.t())
        return by_frequency.view(-1, self.groups, self.outer, self.inner)

    def _by_frequency(self, values: Tensor) -> Tensor:
        """`(B, C, *n)` to its spectrum `(F, groups, C / groups, B)`, one matrix per frequency and group."""
        batch = values.shape[0]
        spectrum = self._transformed(values.transpose(0, 1)).flatten(0, 1)
        return spectrum.t().contiguous().view(spectrum.shape[1], self.groups, -1, batch)

    def _by_place(self, spectrum: Tensor) -> Tensor:
        """Inverse of `_by_frequency`, `(B, C, *L)`."""
        flat = spectrum.flatten(1).t().contiguous()
        return self._restored(flat).unflatten(0, (-1, spectrum.shape[-1])).transpose(0, 1)

    def _collect(self, products: Tensor, at: slice, to_basis: Tensor | None, to_weight: Tensor | None) -> None:
        """Adds the contributions of F Ψ̄ at some frequencies, `(f, d_out·i)`, to F φ̄ and L M̄."""
        entries = self._complex.take("entries", products.shape[1], products.shape[0]).copy_(products.t())
        parts = torch.view_as_real(entries).flatten(1)
        if to_basis is not None:
            to_basis[:, at] = torch.view_as_complex((self.mixing.t() @ parts).unflatten(1, (-1, 2)))
        if to_weight is not None:
            # half of a real signal's spectrum is stored: frequencies with a mirror image count twice
            response = torch.view_as_real(self.response[:, at] * self._multiplicity(at)).flatten(1)
            to_weight.addmm_(parts, response.t())

    def _multiplicity(self, at: slice) -> Tensor:
        """Multiplicity of each stored frequency in the whole spectrum, `(f,)`."""
        length = self.lengths[-1]
        half = torch.arange(at.start, at.stop, device=self.image.device) % (length // 2 + 1)
        return torch.where((half == 0) | (2 * half == length), 1.0, 2.0).to(self.image.dtype)

    def _transformed(self, values: Tensor) -> Tensor:
        """`(…, *n)` to its spectrum `(…, F)`."""
        return torch.fft.rfftn(values, self.lengths, self.axes).flatten(-len(self.axes))

    def _restored(self, spectrum: Tensor) -> Tensor:
        """`(…, F)` to values at L points per axis."""
        *outer, last = self.lengths
        return torch.fft.irfftn(spectrum.unflatten(-1, (*outer, last // 2 + 1)), self.lengths, self.axes)

    def _placed(self, grad: Tensor) -> Tensor:
        """v̄ on the transforms' points, result x at x modulo L."""
        shape = (*grad.shape[: -len(self.axes)], *self.lengths)
        padded = grad.new_zeros(shape)
        self._cut(padded, self.results).copy_(grad)
        return padded.roll(self.first, self.axes) if any(self.first) else padded

    def _wanted(self, values: Tensor) -> Tensor:
        """The requested results from the transforms' points."""
        if any(self.first):
            values = values.roll([-first for first in self.first], self.axes)
        return self._cut(values, self.results)

    def _cut(self, values: Tensor, shape: Sequence[int]) -> Tensor:
        """The first entries along each axis."""
        for axis, extent in zip(self.axes, shape, strict=True):
            values = values.narrow(axis, 0, extent)
        return values


def _product(matrices: Tensor, columns: Tensor, out: Tensor) -> None:
    """`(f, groups, a, c)` times `(f, groups, c, B)`, into `(f, groups, a, B)`."""
    if 1 in matrices.shape[2:]:
        # a product of numbers, or a sum of few: the setup of a matrix product would cost more
        torch.sum(matrices[..., None] * columns[:, :, None], 3, out=out)
    else:
        torch.bmm(matrices.flatten(0, 1), columns.flatten(0, 1), out=out.flatten(0, 1))


def _pairs(above: Tensor, below: Tensor) -> Tensor:
    """Σ_b of `(f, groups, o, B)` and `(f, groups, i, B)`: `(f, groups, o, i)`."""
    if above.shape[2] == below.shape[2] == 1:
        return (above * below).sum(3, keepdim=True)
    return torch.bmm(above.flatten(0, 1), below.flatten(0, 1).mT).unflatten(0, above.shape[:2])


def _filtered(
    inputs: FilterInputs, first: list[int], results: list[int], lengths: list[int], elements: int
) -> FilterOutputs:
    return FilterOutputs(BasisSpectra(inputs, first, results, lengths, elements).forward().contiguous())


basis_convolution = Operator(
    "basis_convolution",
    FilterInputs,
    FilterOutputs,
    _filtered,
    lambda inputs, _, results, *others: FilterOutputs(
        inputs.image.new_empty(inputs.image.shape[0], inputs.weight.shape[1], *results)
    ),
    lambda inputs, _, grads, wanted, *options: BasisSpectra(inputs, *options).backward(grads.out, wanted),
    plain=lambda inputs, *options: (BasisSpectra(inputs, *options).plain(),),
)
"""v. Options: those of `BasisSpectra`."""
