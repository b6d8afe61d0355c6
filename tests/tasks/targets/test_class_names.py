"""The order of class names."""

import itertools

from fredholm.tasks.targets.class_names import ClassNames


def test_numbers_come_first_by_value_and_the_order_does_not_depend_on_the_input() -> None:
    names = ("nan", "10", "inf", "2", "b", "1_0")
    for order in itertools.permutations(names):
        assert ClassNames(None).number(order)[1] == ("2", "10", "1_0", "b", "inf", "nan")
