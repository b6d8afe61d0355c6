"""How long to train, in what steps, and how wide a model: numbers that follow from the size of the data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal, NamedTuple, final

Preset = Literal["small", "base"]
"""How much to spend: what a processor of two cores can train, or what a GPU trains in as long."""


@final
class Effort(NamedTuple):
    """How much to spend on a run."""

    preset: Preset
    share: float = 1.0
    """Of the examples, in (0, 1]: a run that is to be short is sized as one on so many fewer of them."""
    epochs: int | None = None
    """That were asked for; None: as many as suit."""


def note_on_network(config: object, default: object, names: Sequence[str], effort: Effort, instead: str) -> str | None:
    """That some settings take a network where a model suits that is computed at once, for a person; None: none does.

    Args:
        config, default: settings as they are, and by default.
        names: of those that only a network heeds.
        effort: whose epochs are of a network too.
        instead: the model that suits, and where it is better.
    """
    asked = [name for name in names if getattr(config, name) != getattr(default, name)]
    words = [name if is_dataclass(getattr(config, name)) else f"{name}={getattr(config, name)!r}" for name in asked]
    words += [] if effort.epochs is None else [f"epochs={effort.epochs}"]
    if not words:
        return None
    takes, it = ("takes", "it") if len(words) == 1 else ("take", "them")
    return f"{' and '.join(words)} {takes} a network; without {it} there is {instead}"


STEPS: dict[Preset, int] = {"small": 150, "base": 600}
"""Optimiser steps of a run on n examples, in units of n^0.4."""
DEPTH: dict[Preset, int] = {"small": 4, "base": 8}
"""Blocks of a model, where a task asks for no others."""
LEAST_BATCH, MOST_BATCH = 8, 128
"""Examples in a batch by default."""
FEW_STEPS = 800
"""Of a run in so few epochs that its batches are smaller, to have as many steps."""
EVALUATIONS = 40
"""Of the validation split in a run, at most."""

FINE_TUNING = 0.3
"""The learning rate of a run that starts from trained weights, in units of that of a new one."""
FINE_TUNING_STEPS: dict[Preset, int] = {"small": 300, "base": 1000}
"""Optimiser steps of a run that starts from a checkpoint, at least, where that takes no more epochs than these."""
FINE_TUNING_EPOCHS = (3, 20)
"""The fewest and the most of such a run."""
MOST_RATE, RATED_WIDTH = 2e-3, 0.128
"""The largest learning rate of a new model, and that of a transformer times its channels."""


@final
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Numbers of `TrainingConfig` by name, see there, for so many training examples."""

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
        """These by name; of a model that is computed at once, in 0 epochs, there are no others."""
        numbers = {name: value for name, value in vars(self).items() if name != "num_train"}
        return {"epochs": 0} if self.epochs == 0 else numbers

    def asked(self, *, epochs: int | None = None, batch_size: int | None = None) -> "Schedule":
        """These as somebody asks for them, with what follows: averaging and, from epochs, evaluations and patience.

        Neither is asked of a model that is computed at once, whose settings stay. Other batches leave the epochs as
        they are: each example is seen as often.

        Args:
            epochs, batch_size: at least 1; None: those that suit.
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
    """Of a model that is computed from so many examples at once: there are no epochs."""
    return replace(schedule_for(num_train, effort, has_valid=False), epochs=0)


def _batch_size(wanted: float, most: int = MOST_BATCH) -> int:
    """The power of two nearest, in ratio, to a wanted number of examples."""
    return int(2 ** round(math.log2(min(max(wanted, LEAST_BATCH), most))))


def _ema_decay(steps: int) -> float:
    """Of a moving average over the last fiftieth of a run."""
    return round(min(max(1 - 50 / steps, 0.5), 0.9999), 4)


def _patience(epochs: int, evaluate_every: int) -> int:
    return max(5, math.ceil(epochs / evaluate_every) // 4)


def width_for(amount: float, effort: Effort, *, least: int, up_to: float) -> int:
    """Channels of a model for so much data: half as many more with each factor of 10, twice as many for `base`.

    Args:
        amount: of what there is to learn from: examples, or tokens.
        effort: how much to spend.
        least: channels for a small amount, a multiple of 16.
        up_to: the largest small amount.
    """
    growth = 1.5 ** max(0.0, math.log10(effort.share * amount / up_to))
    return 16 * round(least / 16 * growth) * (1 if effort.preset == "small" else 2)


def rate_for(width: int | None) -> float:
    """The learning rate of a new model: of a transformer inverse to its channels, at most that of all others.

    With 768 channels it is 1.7e-4. That steps of Adam that suit a width suit others in inverse proportion to it is
    G. Yang et al.'s finding, "Tensor Programs V" (arXiv 2203.03466), table 3.

    Args:
        width: the channels; None: it is no transformer.
    """
    return MOST_RATE if width is None else min(MOST_RATE, RATED_WIDTH / width)


def fine_tuning_for(
    num_train: int, preset: Preset, *, has_valid: bool, width: int | None, share: float = FINE_TUNING
) -> Schedule:
    """A schedule for so many examples, of a run that starts from a checkpoint, of which a head at most is new.

    There are at least 3 epochs, and as many more, up to 20, as make FINE_TUNING_STEPS: J. Devlin et al., "BERT" (arXiv
    1810.04805), appendix A.3, take 2 to 4, and M. Mosbach et al. (arXiv 2006.04884) 20 where there are few examples.
    The rate falls to 0 from a share of that of a new model, which for 768 channels is 1.7e-4, and 5e-5 by FINE_TUNING.

    Args:
        num_train: examples in the training split, at least 1.
        preset: how much to spend.
        has_valid: whether there is a validation split.
        width: channels of the model; None: it is no transformer.
        share: of the rate; a model that goes on predicting tokens bears all of it.
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
    least_steps: int = 1,
) -> Schedule:
    """A schedule for so many examples.

    A batch is the power of two nearest to a twentieth of the examples, from LEAST_BATCH to MOST_BATCH, and halved where
    the epochs that were asked for make fewer than FEW_STEPS steps. There are enough epochs for STEPS n^0.4 steps: few
    data are seen more often, but a run on many is longer. The moving average reaches over the last fiftieth of a run. A
    run ends where a quarter of its evaluations, at least 5 in a row, were no better than the best one.

    Args:
        num_train: examples in the training split, at least 1.
        effort: how much to spend.
        has_valid: whether there is a validation split, without which patience has nothing to go by.
        length: share of these steps that the task takes.
        learning_rate, weight_decay: of the task's default models.
        batch_size: another one.
        least_steps: steps that a run has at least, however few the examples.
    """
    sized_for = effort.share * num_train
    steps = max(length * STEPS[effort.preset] * sized_for**0.4, least_steps)
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
