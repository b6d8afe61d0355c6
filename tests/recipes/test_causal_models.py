"""The comparison of causal models, at a tiny size."""

import json
from pathlib import Path
from typing import Any

import pytest

from recipes import causal_models
from recipes.causal_models import SYSTEMS, Config
from tests.refusals import refused

pytest.importorskip("matplotlib")


@pytest.mark.long
def test_every_system_is_measured_on_validation_and_test(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 80)
    sizes: dict[str, Any] = {"embed_dim": 8, "depth": 1, "num_heads": 2, "context": 16, "batch_size": 16}
    tiny = Config(data=tmp_path / "text.txt", out=tmp_path / "out", rates=(1e-3, 3e-2), seeds=(0, 1), rounds=1, **sizes)
    causal_models.main(tiny)
    report = json.loads((tiny.out / "results.json").read_text())
    assert tuple(report["systems"]) == SYSTEMS
    for found in report["systems"].values():
        assert len(found["valid"]) == len(found["test"]) == 2
        assert found["by_rate"][f"{found['rate']:g}"] == min(found["by_rate"].values()) == found["valid"][0]
        assert all(0 < bits < 8 for bits in found["test"])
    assert (tiny.out / "causal_models.png").stat().st_size > 1000
    ratios = report["tokens a second over the first"]
    assert ratios[SYSTEMS[0]] == {"training": 1, "reading": 1}
    assert all(ratio > 0 for found in ratios.values() for ratio in found.values())


def test_the_error_for_an_unknown_system_names_it() -> None:
    with refused(ValueError, "no system 'magic'", "GPT-2, rotary"):
        Config(systems=("magic",))
