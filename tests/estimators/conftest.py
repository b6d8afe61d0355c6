"""Shared by tests of estimators."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick_choices(quick_choices: None) -> None:
    """What fitted models choose matters here nowhere, and is most of the time of small fits."""
