"""In-context regression: layers of attention that are steps of gradient descent on a field.

Legend
    Φ_i      features of sample i in its frame, K           c, r_i     coefficients, residuals
    P, E     preconditioner `(K, K)` and step `(m, m)` of a layer; at the start P = I, E = η I

    c ← c + P g Eᵀ,   r_i ← r_i - (Φ_iᵀ P g) Eᵀ,   g = Σ_j ω_j Φ_j r_jᵀ

Both lines are one integral operator with keys Φ_j and values r_j: at the query Pᵀ e_k it gives row k of P g, at Pᵀ Φ_i
the decrease of the residual. So T layers are T steps of descent on ½ Σ_j ω_j ‖y_j - cᵀ Φ_j‖², up to rounding.

With softmax at temperature τ the integral is O(τ), and g is replaced by M τ (O - r̄) + M s̄ r̄, which is g up to O(1/τ)
(`analysis.softmax_expansion`).

Source: Neural Fields Meet Attention, theorems 3, 14 and 16 and appendix A.5. The paper has one step. Deviation: the
same layer updates residuals, as further queries, so that several steps can follow each other.
"""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive
from fredholm.domains import Domain, Sequence
from fredholm.fields.frames.frame import Frame
from fredholm.fields.frames.sizes import Identity
from fredholm.fields.placed_field import PlacedField
from fredholm.fields.sinusoidal import SinusoidalField
from fredholm.kernels import Attention, UnnormalisedAttention
from fredholm.models.fields.framed_samples import framed_samples
from fredholm.models.saved_model import SavedModel
from fredholm.operators import IntegralOperator

NAME = "models.InContextRegressor"


@final
class InContextRegressor(SavedModel):
    """{(x_i, y_i)} -> Σ_k c_k φ_k, with c from T layers of attention that start as T gradient steps from c = 0.

    P and E of every layer are parameters, so that training may make the descent faster. Samples count as the domain's
    measure counts points (`Domain.counts`): each once by default, explicit weights unscaled.

    Args:
        field: φ, whose values in the samples' frame are the features.
        num_layers: T.
        step_size: η, > 0. Descent converges below 2 / λ with λ the largest eigenvalue of Σ_j ω_j Φ_j Φ_jᵀ, which is at
            most K times the number of samples.
        temperature: τ of softmax layers, > 0; None: linear attention, the exact step.
        frame: μ and M; `fields.Identity()` by default, which leaves positions as they are.
        pos_dim: number of coordinates of a sample; None: the field's.
        margin: see `PlacedField`.

    Raises:
        ValueError: on sizes, steps or temperatures that are not positive, or if field and frame differ in their number
            of coordinates.
    """

    def __init__(
        self,
        field: SinusoidalField,
        *,
        num_layers: int,
        step_size: float,
        temperature: float | None = None,
        frame: Frame | None = None,
        pos_dim: int | None = None,
        margin: float = 1.5,
    ) -> None:
        super().__init__()
        check_count(NAME, "num_layers", num_layers)
        for what, value in (("step_size", step_size), ("margin", margin)):
            check_positive(NAME, what, value)
        if temperature is not None:
            check_positive(NAME, "temperature", temperature)
        self.frame = Identity() if frame is None else frame
        self.pos_dim = field.pos_dim // self.frame.coordinates_per_axis if pos_dim is None else pos_dim
        if field.pos_dim != self.pos_dim * self.frame.coordinates_per_axis:
            raise ValueError(
                f"{NAME}: the frame {self.frame} makes {self.pos_dim * self.frame.coordinates_per_axis} coordinates of "
                f"pos_dim {self.pos_dim}; the field takes {field.pos_dim}"
            )
        if temperature is not None and field.out_dim > field.num_terms:
            raise ValueError(
                f"{NAME}: softmax layers hold values in the {field.num_terms} channels of a query; the field has "
                f"{field.out_dim} values"
            )
        self.field, self.temperature, self.margin = field, temperature, margin
        self.layers = nn.ModuleList(self._layer() for _ in range(num_layers))
        self.steps = nn.ParameterList(step_size * torch.eye(field.out_dim) for _ in range(num_layers))

    def _layer(self) -> IntegralOperator:
        """The integral operator, without channel maps: keys and values are the inputs themselves."""
        K, m = self.field.num_terms, self.field.out_dim
        if self.temperature is None:
            kernel = UnnormalisedAttention.of_features(K, m)
            fixed = (kernel.key_weight, kernel.value_weight)
        else:
            kernel = Attention(K, kdim=K, vdim=m, bias=False, scale=1 / self.temperature)
            own = kernel.projections
            with torch.no_grad():
                for weight in own.parameters():
                    weight.copy_(torch.eye(*weight.shape))
            fixed = (own.key_weight, own.value_weight)
        for weight in fixed:
            weight.requires_grad_(False)
        return IntegralOperator(kernel, residual=False, bias=False, output_projection=False)

    def forward(
        self,
        u: Tensor,
        domain: Domain,
        *,
        key_padding_mask: Tensor | None = None,
        frame_weights: Tensor | None = None,
    ) -> PlacedField:
        """Returns the fields of B sets of samples; arguments and errors as in `FieldOperator.forward`."""
        sizes = (self.pos_dim, self.field.out_dim)
        samples = framed_samples(NAME, u, domain, self.frame, sizes, key_padding_mask, frame_weights)
        features = self.field.basis(samples.z.flatten(0, 1)).to(u.dtype)
        residual = samples.each(samples.u)
        K = self.field.num_terms
        selectors = torch.eye(K, dtype=u.dtype, device=u.device).expand(len(features), -1, -1)
        query = torch.cat([selectors, features], dim=1)
        c = residual.new_zeros(len(features), K, residual.shape[-1])
        for layer, step in zip(self.layers, self.steps, strict=True):
            assert isinstance(layer, IntegralOperator)
            change = self._integral(layer, features, residual, query, samples.at) @ step.mT
            c, residual = c + change[:, :K], residual - change[:, K:]
        return PlacedField(
            field=self.field,
            parameters=c.flatten(1).unflatten(0, samples.z.shape[:2]),
            coordinates=samples.coordinates,
            reach=samples.reach,
            margin=self.margin,
        )

    def _integral(
        self, layer: IntegralOperator, features: Tensor, residual: Tensor, query: Tensor, at: Domain
    ) -> Tensor:
        """Returns Pᵀ q · g at every query, `(B·F, Nq, m)`; with softmax up to O(1/τ)."""
        signal, queries = torch.cat([features, residual], dim=-1), Sequence(query.shape[1], device=query.device)
        out = layer(signal, at, query=query, query_domain=queries)
        if self.temperature is None:
            return out
        kernel = layer.kernel
        assert isinstance(kernel, Attention)
        counts = torch.atleast_2d(at.counts).to(residual.dtype)[..., None]  # (B', N, 1)
        mass = counts.sum(1, keepdim=True)
        shares = counts / torch.where(mass > 0, mass, 1.0)
        mean, centre = ((shares * part).sum(1, keepdim=True) for part in (residual, features))
        scores = kernel.projections.queries(query)[:, 0] @ centre.mT  # s̄, (B, Nq, 1)
        return mass * (self.temperature * (out[..., : residual.shape[-1]] - mean) + scores * mean)
