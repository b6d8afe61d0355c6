"""Prediction targets of an example: a class, labels or numbers."""

from .classes import ClassAnswers, ClassTarget
from .elements import UNKNOWN, ElementCounts, ElementTarget
from .labels import LabelAnswers, LabelTarget
from .numbers import NumberAnswers, NumberTarget
from .reading import answers_of_array, answers_of_cells
from .target import Answer, Answers, ClassWeights, Kind, Known, Target, TargetSettings

TARGETS: tuple[type[Target], ...] = (ClassTarget, ElementTarget, LabelTarget, NumberTarget)
"""Every kind of target; a new one is added here."""

__all__ = [
    "TARGETS",
    "UNKNOWN",
    "Answer",
    "Answers",
    "ClassAnswers",
    "ClassTarget",
    "ClassWeights",
    "ElementCounts",
    "ElementTarget",
    "Kind",
    "Known",
    "LabelAnswers",
    "LabelTarget",
    "NumberAnswers",
    "NumberTarget",
    "Target",
    "TargetSettings",
    "answers_of_array",
    "answers_of_cells",
]
