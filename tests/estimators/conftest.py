"""Fixtures of the tests of estimators."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick_choices(quick_choices: None) -> None:
    """Replaces the choices of fitted models, which take most of the time of small fits and do not matter here."""
