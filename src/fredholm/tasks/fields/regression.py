"""The kernel regression beside a network of functions: its size, and its fit to prepared functions."""

import torch

from fredholm.models.fields.function_regression import FunctionRegression

from .field_set import FieldSet
from .preparation import Preparation

MOST_FUNCTIONS, MOST_VALUES = 1024, 1 << 23
"""Largest default number of training functions, and of values that are stored of them."""
LEAST_FUNCTIONS = 8
"""Smallest default number of training functions."""


def max_functions(config: FunctionRegression.Config | None, num_states: int) -> int:
    """Default number of training functions; 0: no regression.

    Args:
        config: sizes of the regression; None: functions have points of their own.
        num_states: number of functions to learn from, for trajectories of their steps.
    """
    if config is None:
        return 0
    values = config.num_inputs + config.num_targets
    count = min(num_states, MOST_FUNCTIONS, MOST_VALUES // values)
    return count if count >= LEAST_FUNCTIONS else 0


@torch.no_grad()
def fit_regression(
    regression: FunctionRegression, part: FieldSet, preparation: Preparation, device: torch.device
) -> None:
    """Fits a regression to functions as a network sees them, for trajectories to the changes of single steps.

    Of trajectories, as many steps as the regression holds are drawn.
    """
    config, steps = regression.config, preparation.num_steps
    given, answers, groups = part.given, part.targets, part.marks.group_numbers()
    groups = torch.arange(len(part)) if groups is None else groups
    if steps > 1:
        states = part.states()
        some = torch.randperm(len(part) * steps)[: config.num_functions].sort().values
        given, groups = states.select(some), groups.repeat(steps)[some]
        answers = states.select(some + len(part))
    seen, targets = (preparation.filled(each) for each in (preparation.shown(given), preparation.targets(answers)))
    if steps > 1:
        targets = targets - preparation.filled(preparation.targets(given))
    regression.fit(
        seen.to(device),
        targets.to(device),
        given_pos=preparation.box.placed(given.pos[0]) if isinstance(config.given, int) else None,
        target_pos=preparation.box.placed(answers.pos[0]) if isinstance(config.target, int) else None,
        # of one trajectory, single steps are left out
        groups=groups.to(device) if 1 < len(groups.unique()) < len(groups) else None,
    )
