import pytest

from tests.faults.contained import broken_cases
from tests.faults.hostile import hostile_cases

# Cases that take longest to make or read, and kinds of which one is enough here.
LONG = (
    "bomb",
    "large but allowed",
    "megapixels",
    "many",
    "one long",
    "wide",
    "channels",
    "deep folder",
    "60,000",
    "overlapping",
)


def test_there_are_enough_cases_and_each_has_a_name() -> None:
    cases = hostile_cases()
    assert len({case.name for case in cases}) == len(cases) >= 150


def test_quick_cases_end_as_promised() -> None:
    cases = [case for case in hostile_cases() if not any(word in case.name for word in LONG)]
    assert [(cases[i].name, ending) for i, ending in broken_cases(len(cases), cases.__getitem__)] == []


@pytest.mark.long
def test_all_cases_end_as_promised() -> None:
    cases = hostile_cases()
    assert [(cases[i].name, ending) for i, ending in broken_cases(len(cases), cases.__getitem__)] == []
