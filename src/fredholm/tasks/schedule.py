"""Training schedules and model widths that follow from the size of the data."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal, NamedTuple, final

Preset = Literal["small", "base"]
"""Compute budgets: what a CPU with two cores can train, or what a GPU trains in the same time."""


@final
class Effort(NamedTuple):
    """Compute budget of a run."""

    preset: Preset
    share: float = 1.0
    """Share of the examples, in (0, 1], that the run is sized for; below 1 for short runs."""
    epochs: int | None = None
    """Requested epochs; None: as many as suit the data."""
    keeps_model: bool = False
    """Whether the kind of model was chosen, and stays, even if it is the default; see `names_model`."""


def names_model(settings: Iterable[str]) -> bool:
    """Whether given settings of a task, such as model.dropout, name its model or a setting of the model."""
    return any(name.partition(".")[0] == "model" for name in settings)


def note_on_network(config: object, default: object, names: Sequence[str], effort: Effort, instead: str) -> str | None:
    """Returns a note that settings require a network where a closed-form model suits the data; None: no setting does.

    Args:
        config, default: settings as given, and by default.
        names: settings that affect only a network.
        effort: its epochs require a network too.
        instead: the suitable closed-form model, and where it is better.
    """
    changed = [name for name in names if getattr(config, name) != getattr(default, name)]
    words = [name if is_dataclass(getattr(config, name)) else f"{name}={getattr(config, name)!r}" for name in changed]
    words += [] if effort.epochs is None else [f"epochs={effort.epochs}"]
    if not words:
        return None
    takes, it = ("takes", "it") if len(words) == 1 else ("take", "them")
    return f"{' and '.join(words)} {takes} a network; without {it} there is {instead}"


STEPS: dict[Preset, int] = {"small": 150, "base": 600}
"""Optimiser steps of a run on n examples, relative to n^0.4."""
DEPTH: dict[Preset, int] = {"small": 4, "base": 8}
"""Default number of blocks of a model."""
LEAST_BATCH, MOST_BATCH = 8, 128
"""Default limits of the batch size."""
FEW_STEPS = 800
"""Number of steps below which the batch size of a run of few epochs is reduced, for more steps."""
EVALUATIONS = 40
"""Largest number of evaluations on the validation split in a run."""

FINE_TUNING = 0.3
"""Learning rate of a run from trained weights, relative to that of a new one."""
FINE_TUNING_STEPS: dict[Preset, int] = {"small": 300, "base": 1000}
"""Smallest number of steps of a run from a checkpoint, as far as the limits of its epochs allow."""
FINE_TUNING_EPOCHS = (3, 20)
"""Smallest and largest number of epochs of a run from a checkpoint."""
MOST_RATE, RATED_WIDTH = 2e-3, 0.128
"""Largest learning rate of a new model, and the product of a transformer's learning rate and channels."""


@final
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Settings of `TrainingConfig` by name for a number of training examples."""

    num_train: int
    epochs: int
    batch_size: int
    learning_rate: float
    warmup_fraction: float
    weight_decay: float
    ema_decay: float
    evaluate_every: int
    patience: int | None
    final_learning_rate: float = 1e-5

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by name; for a closed-form model, with 0 epochs, there are no others."""
        numbers = {name: value for name, value in vars(self).items() if name != "num_train"}
        return {"epochs": 0} if self.epochs == 0 else numbers

    def adjusted(self, *, epochs: int | None = None, batch_size: int | None = None) -> "Schedule":
        """Returns the schedule with requested epochs and batch size, and the settings that depend on them.

        These are the averaging and, for epochs, evaluations and patience. A closed-form model keeps its settings. A
        changed batch size does not change the epochs: each example is seen as often.

        Args:
            epochs, batch_size: at least 1; None: the recommended ones.
        """
        if self.epochs == 0:
            return self
        ends = self if epochs is None else self._ending(epochs)
        size = batch_size or self.batch_size
        steps = ends.epochs * math.ceil(self.num_train / size)
        return replace(ends, batch_size=size, ema_decay=_ema_decay(steps))

    def _ending(self, epochs: int) -> "Schedule":
        evaluate_every = math.ceil(epochs / EVALUATIONS)
        patience = None if self.patience is None else _patience(epochs, evaluate_every)
        return replace(self, epochs=epochs, evaluate_every=evaluate_every, patience=patience)


def schedule_at_once(num_train: int, effort: Effort) -> Schedule:
    """Returns the schedule of a closed-form model, with 0 epochs."""
    return replace(schedule_for(num_train, effort, has_valid=False), epochs=0)


def _batch_size(wanted: float, most: int = MOST_BATCH) -> int:
    """Returns the power of two nearest, in ratio, to a number of examples."""
    return int(2 ** round(math.log2(min(max(wanted, LEAST_BATCH), most))))


def _ema_decay(steps: int) -> float:
    """Returns the decay of a moving average over the last fiftieth of a run."""
    return round(min(max(1 - 50 / steps, 0.5), 0.9999), 4)


def _patience(epochs: int, evaluate_every: int) -> int:
    return max(5, math.ceil(epochs / evaluate_every) // 4)


def width_for(amount: float, effort: Effort, *, least: int, up_to: float) -> int:
    """Returns the channels of a model: half as many more with each factor of 10 of data, twice as many for `base`.

    Args:
        amount: amount of training data: examples, or tokens.
        effort: compute budget.
        least: channels for small data, a multiple of 16.
        up_to: largest amount of small data.
    """
    growth = 1.5 ** max(0.0, math.log10(effort.share * amount / up_to))
    return 16 * round(least / 16 * growth) * (1 if effort.preset == "small" else 2)


def rate_for(width: int | None) -> float:
    """Returns the learning rate of a new model: MOST_RATE, or RATED_WIDTH / channels of a transformer if lower.

    With 768 channels it is 1.7e-4. The scaling of Adam's step sizes in inverse proportion to the width is from G. Yang
    et al., "Tensor Programs V" (arXiv 2203.03466), table 3.

    Args:
        width: channels; None: the model is no transformer.
    """
    return MOST_RATE if width is None else min(MOST_RATE, RATED_WIDTH / width)


def fine_tuning_for(
    num_train: int, preset: Preset, *, has_valid: bool, width: int | None, share: float = FINE_TUNING
) -> Schedule:
    """Returns the schedule of a run that starts from a checkpoint, with at most a new head.

    There are at least 3 epochs, and up to 20, to reach FINE_TUNING_STEPS: J. Devlin et al., "BERT" (arXiv 1810.04805),
    appendix A.3, take 2 to 4, and M. Mosbach et al. (arXiv 2006.04884) 20 for few examples. The rate falls to 0 from
    `share` times the rate of a new model: with 768 channels from FINE_TUNING * 1.7e-4 = 5e-5.

    Args:
        num_train: examples in the training split, at least 1.
        preset: compute budget.
        has_valid: whether there is a validation split.
        width: channels of the model; None: it is no transformer.
        share: share of the learning rate; 1 for a model that continues to predict tokens.
    """
    size = _batch_size(num_train / 20, most=32)
    steps_per_epoch = math.ceil(num_train / size)
    fewest, most = FINE_TUNING_EPOCHS
    epochs = min(max(math.ceil(FINE_TUNING_STEPS[preset] / steps_per_epoch), fewest), most)
    return Schedule(
        num_train=num_train,
        epochs=epochs,
        batch_size=size,
        learning_rate=share * rate_for(width),
        warmup_fraction=0.1,
        weight_decay=0.01,
        ema_decay=_ema_decay(epochs * steps_per_epoch),
        evaluate_every=1,
        patience=_patience(epochs, 1) if has_valid else None,
        final_learning_rate=0.0,
    )


def schedule_for(
    num_train: int,
    effort: Effort,
    *,
    has_valid: bool,
    length: float = 1.0,
    learning_rate: float = MOST_RATE,
    weight_decay: float = 0.05,
    batch_size: int | None = None,
    min_steps: int = 1,
) -> Schedule:
    """Returns the schedule for a number of examples.

    The batch size is the power of two nearest to a twentieth of the examples, from LEAST_BATCH to MOST_BATCH, and
    halved while the requested epochs make fewer than FEW_STEPS steps. Epochs give STEPS n^0.4 steps: small data are
    seen more often, but a run on large data is longer. The moving average covers the last fiftieth of a run. A run ends
    after a quarter of its evaluations, at least 5, without an improvement.

    Args:
        num_train: examples in the training split, at least 1.
        effort: compute budget.
        has_valid: whether there is a validation split, which patience needs.
        length: number of steps relative to this rule.
        learning_rate, weight_decay: values for the task's default models.
        batch_size: batch size in place of the rule's.
        min_steps: smallest number of steps, however few the examples.
    """
    sized_for = effort.share * num_train
    steps = max(length * STEPS[effort.preset] * sized_for**0.4, min_steps)
    size = batch_size or _batch_size(sized_for / 20)
    if batch_size is None and effort.epochs is not None:
        shown = effort.epochs * num_train
        while size > LEAST_BATCH and shown / size < min(steps, FEW_STEPS):
            size //= 2
    steps_per_epoch = math.ceil(num_train / size)
    epochs = max(1, round(steps / steps_per_epoch))
    evaluate_every = math.ceil(epochs / EVALUATIONS)
    return Schedule(
        num_train=num_train,
        epochs=epochs,
        batch_size=size,
        learning_rate=learning_rate,
        warmup_fraction=0.1,
        weight_decay=weight_decay,
        ema_decay=_ema_decay(epochs * steps_per_epoch),
        evaluate_every=evaluate_every,
        patience=_patience(epochs, evaluate_every) if has_valid else None,
    )
