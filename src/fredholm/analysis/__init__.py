"""Reading a trained kernel: weights, centrality, faithfulness of maps, and pictures."""

from fredholm.analysis.alignment import Alignment, alignment
from fredholm.analysis.attention_gradient import (
    SoftmaxExpansion,
    decay_exponent,
    negative_gradient,
    preconditioned_step,
    softmax_expansion,
)
from fredholm.analysis.centrality import (
    absorption_probabilities,
    expected_visits,
    incoming_influence,
    katz_centrality,
    outgoing_influence,
)
from fredholm.analysis.degradation import DegradationCurve, Fill, Order, degradation_curve
from fredholm.analysis.equivariance import EquivarianceError, SetOperator, equivariance_error
from fredholm.analysis.localisation import (
    DetectionCurves,
    Localisation,
    box_mask,
    detection_curves,
    localisation,
    patch_labels,
)
from fredholm.analysis.markov import MarkovReading, markov_reading
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
from fredholm.analysis.perron_alignment import perron_alignment
from fredholm.analysis.relevance import patch_relevance
from fredholm.analysis.rollout import attention_rollout
from fredholm.analysis.weights import attention_weights, record_weights

__all__ = [
    "Alignment",
    "AnisotropicScalings",
    "DegradationCurve",
    "DetectionCurves",
    "EquivarianceError",
    "Fill",
    "LinearMaps",
    "Localisation",
    "MarkovReading",
    "Move",
    "Moves",
    "Order",
    "OrthogonalMaps",
    "Permutations",
    "PerronVector",
    "Rotations",
    "Scalings",
    "SetOperator",
    "SoftmaxExpansion",
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
    "localisation",
    "markov_reading",
    "negative_gradient",
    "outgoing_influence",
    "overlay",
    "patch_labels",
    "patch_relevance",
    "perron_alignment",
    "perron_vector",
    "preconditioned_step",
    "record_weights",
    "save_overlays",
    "softmax_expansion",
]
