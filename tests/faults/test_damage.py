"""A quick part of the damages of run folders, and a check that the driver reports errors."""

from pathlib import Path

import pytest

from tests.faults.damage import KINDS, LOG_KINDS, damage_folders

COUNT = 3 * (len(KINDS) + len(LOG_KINDS))
"""One case of every kind for each task."""


@pytest.mark.slow
def test_damaged_run_folders_are_refused_or_read_bit_for_bit() -> None:
    outcomes = damage_folders(COUNT, seed=1)
    assert [line for outcome in outcomes for line in outcome.broken] == []
    assert sum(outcome.held for outcome in outcomes) == COUNT


@pytest.mark.long
def test_without_checksums_the_driver_finds_silent_misreading(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(path: Path, entry: object) -> None:
        pass

    monkeypatch.setattr("fredholm.training.storage.checkpoint.check_listed", unchecked)
    broken = [line for outcome in damage_folders(COUNT // 2, seed=1) for line in outcome.broken]
    assert any("silently read as something else" in line for line in broken)
