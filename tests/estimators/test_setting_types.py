"""Settings given by name are checked as the command line checks words."""

from typing import Any

import numpy as np
import pytest

import fredholm
from fredholm.estimators.setting_types import check_types
from fredholm.tasks import ImageLearning
from tests.refusals import refused

X = np.arange(80.0).reshape(20, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training": {"epochs": "3"}}, "training['epochs'] is '3'; expected a whole number"),
        ({"training": {"epochs": True}}, "training['epochs'] is True; expected a whole number"),
        (
            {"training": {"epochs": np.int64(3), "betas": (0.9,)}},
            "training['betas'] is (0.9,); expected a tuple of 2 numbers",
        ),
        ({"task": {"ignore": "x0"}}, "task['ignore'] is 'x0'; expected a tuple of texts"),
        ({"task": {"ignore": [0]}}, "task['ignore'] is [0]; expected a tuple of texts"),
        ({"task": {"split_by": "day"}}, "task['split_by'] is 'day'; expected one of 'shares', 'time'"),
        ({"task": {"image_size": "3h"}}, "task['image_size'] is '3h'; expected a tuple of 2 whole numbers or None"),
        ({"task": {"tokens": 3}}, "task['tokens'] is 3; expected Tokens(...)"),
    ],
)
def test_other_types_are_refused(settings: dict[str, Any], message: str) -> None:
    with refused(TypeError, message):
        fredholm.TableRegressor(**settings).fit(X, X[:, 0])


def test_whole_numbers_lists_and_the_parts_of_a_union_are_accepted() -> None:
    given = {"mean": [0.5, 1], "position_sigma": 2, "patch_size": (4, 2), "image_size": None, "bank": 3}
    check_types("task", given, ImageLearning.Config)
    with refused(TypeError, "task['patch_size'] is (4, 2.0); expected a whole number or a tuple of 2 whole numbers"):
        check_types("task", {"patch_size": (4, 2.0)}, ImageLearning.Config)
