"""Analysis of trained kernels: attention weights, centrality, faithfulness of relevance maps, spectra and plots."""

from fredholm.analysis.alignment import Alignment, alignment, perron_alignment
from fredholm.analysis.attention_gradient import (
    SoftmaxExpansion,
    decay_exponent,
    negative_gradient,
    preconditioned_step,
    softmax_expansion,
)
from fredholm.analysis.centrality import (
    MarkovReading,
    absorption_probabilities,
    expected_visits,
    incoming_influence,
    katz_centrality,
    markov_reading,
    outgoing_influence,
)
from fredholm.analysis.costs import OperatorCost, operator_costs
from fredholm.analysis.degradation import DegradationCurve, Fill, Order, degradation_curve
from fredholm.analysis.equivariance import EquivarianceError, SetOperator, equivariance_error
from fredholm.analysis.kernel_profile import KernelProfile, kernel_profile
from fredholm.analysis.kernel_spectrum import KernelSpectrum, kernel_spectrum
from fredholm.analysis.localisation import (
    DetectionCurves,
    Localisation,
    box_mask,
    detection_curves,
    localisation,
    patch_labels,
)
from fredholm.analysis.moves import (
    AnisotropicScalings,
    LinearMaps,
    Move,
    Moves,
    OrthogonalMaps,
    Permutations,
    Rotations,
    Scalings,
    Translations,
)
from fredholm.analysis.overlay import overlay, save_overlays
from fredholm.analysis.perron import PerronVector, perron_vector
from fredholm.analysis.receptive_field import ReceptiveField, model_receptive_field, receptive_field
from fredholm.analysis.record_integrals import record_integrals
from fredholm.analysis.relevance import patch_relevance
from fredholm.analysis.rollout import attention_rollout
from fredholm.analysis.symmetry import Symmetry, symmetry
from fredholm.analysis.weights import attention_weights, record_weights

__all__ = [
    "Alignment",
    "AnisotropicScalings",
    "DegradationCurve",
    "DetectionCurves",
    "EquivarianceError",
    "Fill",
    "KernelProfile",
    "KernelSpectrum",
    "LinearMaps",
    "Localisation",
    "MarkovReading",
    "Move",
    "Moves",
    "OperatorCost",
    "Order",
    "OrthogonalMaps",
    "Permutations",
    "PerronVector",
    "ReceptiveField",
    "Rotations",
    "Scalings",
    "SetOperator",
    "SoftmaxExpansion",
    "Symmetry",
    "Translations",
    "absorption_probabilities",
    "alignment",
    "attention_rollout",
    "attention_weights",
    "box_mask",
    "decay_exponent",
    "degradation_curve",
    "detection_curves",
    "equivariance_error",
    "expected_visits",
    "incoming_influence",
    "katz_centrality",
    "kernel_profile",
    "kernel_spectrum",
    "localisation",
    "markov_reading",
    "model_receptive_field",
    "negative_gradient",
    "operator_costs",
    "outgoing_influence",
    "overlay",
    "patch_labels",
    "patch_relevance",
    "perron_alignment",
    "perron_vector",
    "preconditioned_step",
    "receptive_field",
    "record_integrals",
    "record_weights",
    "save_overlays",
    "softmax_expansion",
    "symmetry",
]
