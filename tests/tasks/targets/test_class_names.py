"""Names of classes in their order."""

import itertools

from fredholm.tasks.targets.class_names import ClassNames


def test_numbers_come_first_by_their_size_and_their_order_is_one_however_they_come() -> None:
    names = ("nan", "10", "inf", "2", "b", "1_0")
    for order in itertools.permutations(names):
        assert ClassNames(None).number(order)[1] == ("2", "10", "1_0", "b", "inf", "nan")
