import pytest

from tests.faults.contained import broken_cases
from tests.faults.hostile import hostile_cases

# Words in the names of cases that are slow to make or read, and of kinds of which one is enough here.
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


def test_there_are_enough_cases_with_unique_names() -> None:
    cases = hostile_cases()
    assert len({case.name for case in cases}) == len(cases) >= 150


def test_quick_cases_end_as_promised() -> None:
    cases = [case for case in hostile_cases() if not any(word in case.name for word in LONG)]
    assert [(cases[i].name, ending) for i, ending in broken_cases(len(cases), cases.__getitem__)] == []


@pytest.mark.long
def test_all_cases_end_as_promised() -> None:
    cases = hostile_cases()
    assert [(cases[i].name, ending) for i, ending in broken_cases(len(cases), cases.__getitem__)] == []
