"""Settings of the training engine."""

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, Self, final, get_args

import numpy as np
import torch

from fredholm._settings import check_number, check_whole, refuse_idle

Decay = Literal["cosine", "linear"]
"""Shape of the learning-rate decay after the peak."""


OF_STEPS = (
    *("batch_size", "accumulation", "learning_rate", "final_learning_rate", "decay", "warmup_fraction"),
    *("weight_decay", "betas", "adam_epsilon", "gradient_clip", "ema_decay", "num_workers", "evaluate_every"),
    *("patience", "checkpoint_every", "log_every"),
)
"""Settings that affect only models trained in optimiser steps."""
_OWNER = "training.TrainingConfig"


@final
@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a training run, independent of its task.

    Args:
        epochs: passes over the training data, at most; 0 for models that are computed in closed form.
        batch_size: examples per optimiser step.
        accumulation: parts of a batch that are computed one after the other to save memory, at most as many as it has
            examples; the result is that of the whole batch up to rounding.
        learning_rate: peak of the schedule.
        final_learning_rate: end of the decay, at most the peak. With the default, a lower peak is the end too.
        decay: shape of the decay from the peak, cosine or linear.
        warmup_fraction: share of all steps in which the rate rises linearly.
        weight_decay: weight decay of matrices; biases, norms and exempt parameters have none.
        betas: AdamW's betas.
        adam_epsilon: AdamW's epsilon.
        gradient_clip: largest global gradient norm.
        ema_decay: largest decay of the moving average of the weights, which is the model that gets evaluated.
        precision: bfloat16 computes under autocast; weights and optimiser states stay float32.
        device: auto (CUDA if there is one), cpu, cuda, cuda:1, ...
        num_workers: processes that prepare batches ahead; 0 prepares them in the training process.
        evaluation_batch_size: examples per batch in evaluation.
        evaluate_every: epochs between evaluations on the validation split, each followed by a checkpoint.
        patience: number of successive evaluations without an improvement after which a run ends; None: never. Refused
            without a validation split.
        checkpoint_every: steps between further checkpoints; 0 for none.
        log_every: steps between two lines of training metrics; the last step has one too.
        tensorboard: also write TensorBoard event files.
        shard: each of several processes keeps a part of the weights, of their average and of the optimiser's state. It
            gathers the weights of a block while it computes, and in evaluation all of the averaged ones: less memory,
            more communication. Refused on one process.
    """

    epochs: int = 300
    batch_size: int = 128
    accumulation: int = 1
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-5
    decay: Decay = "cosine"
    warmup_fraction: float = 0.05
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    adam_epsilon: float = 1e-8
    gradient_clip: float = 1.0
    ema_decay: float = 0.9999
    precision: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    num_workers: int = 0
    evaluation_batch_size: int = 256
    evaluate_every: int = 1
    patience: int | None = None
    checkpoint_every: int = 0
    log_every: int = 10
    tensorboard: bool = True
    shard: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.number):
                # a frozen dataclass refuses plain assignment; a run folder stores Python numbers
                object.__setattr__(self, field.name, value := value.item())
            if type(field.default) is float:
                check_number(_OWNER, field.name, value)
            elif type(field.default) is int or (field.name == "patience" and value is not None):
                check_whole(_OWNER, field.name, value)
        for name in ("batch_size", "accumulation", "evaluation_batch_size", "evaluate_every", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.epochs < 0:
            raise ValueError(f"epochs is {self.epochs}; expected at least 0")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience is {self.patience}; expected at least 1, or none")
        if self.accumulation > self.batch_size:
            raise ValueError(
                f"accumulation is {self.accumulation}; a batch of {self.batch_size} has no more than {self.batch_size} "
                "parts"
            )
        for name in ("num_workers", "checkpoint_every", "final_learning_rate", "weight_decay", "adam_epsilon"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a finite number of at least 0")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate is {self.learning_rate}; expected a finite number of more than 0")
        if not self.gradient_clip > 0:
            raise ValueError(f"gradient_clip is {self.gradient_clip}; expected more than 0")
        for name in ("warmup_fraction", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected from 0 to below 1")
        if self.decay not in ("cosine", "linear"):
            raise ValueError(f"decay is {self.decay!r}; expected 'cosine' or 'linear'")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision is {self.precision!r}; expected 'float32' or 'bfloat16'")
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise TypeError(f"{_OWNER}: betas must be two numbers; got {self.betas!r}")
        numbers = tuple(beta.item() if isinstance(beta, np.number) else beta for beta in self.betas)
        object.__setattr__(self, "betas", numbers)
        for beta in numbers:
            check_number(_OWNER, "each of betas", beta)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}; expected both from 0 to below 1")

    def rate_at(self, step: int, num_steps: int) -> float:
        """Returns the learning rate of a step, counted from 0, in a run of ``num_steps``."""
        return learning_rate(
            step,
            num_steps=num_steps,
            warmup_steps=int(self.warmup_fraction * num_steps),
            peak=self.learning_rate,
            final=min(self.final_learning_rate, self.learning_rate),
            decay=self.decay,
        )

    def without_steps(self) -> Self:
        """Returns these settings for a closed-form model: no epochs, and the defaults of all in `OF_STEPS`."""
        default = TrainingConfig()
        return replace(self, epochs=0, **{name: getattr(default, name) for name in OF_STEPS})

    def check_steps(self, *, learns_by_steps: bool) -> None:
        """Raises a ValueError where the settings do not suit the model.

        A model that learns by steps needs epochs, and a peak that is at least the final rate. A model in closed form
        takes neither epochs nor settings of steps.
        """
        if learns_by_steps:
            if self.epochs == 0:
                raise ValueError("epochs is 0, and nothing would be learnt; expected at least 1")
            if self.learning_rate < self.final_learning_rate != TrainingConfig.final_learning_rate:
                raise ValueError(
                    f"final_learning_rate is {self.final_learning_rate}, and the rate falls to it from learning_rate="
                    f"{self.learning_rate}; pass at most that"
                )
            return
        closed_form, other = "a model that is fitted in closed form", "take a model that learns by steps"
        if self.epochs:
            raise ValueError(f"epochs={self.epochs} has no effect with {closed_form}; pass 0, or {other}")
        refuse_idle("", TrainingConfig, closed_form, other, **{name: getattr(self, name) for name in OF_STEPS})

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the computation."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32


def learning_rate(
    step: int, *, num_steps: int, warmup_steps: int, peak: float, final: float = 0.0, decay: Decay = "cosine"
) -> float:
    """Decay after a linear warm-up.

    lr(t) = peak (t + 1) / w                    t < w
    lr(t) = final + (peak - final) r(p)         t >= w,  p = (t - w) / (T - w)
    r(p) = (1 + cos(pi p)) / 2  or  1 - p

    Args:
        step: t, counted from 0; from ``num_steps`` on the rate stays at ``final``.
        num_steps: T, number of steps of the whole run.
        warmup_steps: w < T.
        peak: the rate at the end of the warm-up.
        final: the rate that the decay approaches.
        decay: r, cosine or linear.

    Raises:
        ValueError: a step below 0, a warm-up that is not shorter than the run, or another decay.
    """
    if step < 0:
        raise ValueError(f"training.learning_rate: step must be at least 0; got {step}")
    if not 0 <= warmup_steps < max(num_steps, 1):
        raise ValueError(
            f"training.learning_rate: warmup_steps must be at least 0 and below num_steps={num_steps}; got "
            f"{warmup_steps}"
        )
    if decay not in (known := get_args(Decay)):
        raise ValueError(f"training.learning_rate: decay must be one of {', '.join(known)}; got {decay!r}")
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = min((step - warmup_steps) / max(num_steps - warmup_steps, 1), 1.0)
    share = 1 - progress if decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return final + (peak - final) * share
