"""The recipe of InfViT on digits: its model trains, and its alignment is computed from a run folder."""

import dataclasses
import re
from pathlib import Path

import pytest

from fredholm.models.images.infvit import InfViT
from fredholm.training import train
from recipes.digits_infvit import digits_infvit, print_alignment


@pytest.mark.slow
def test_alignment_is_computed_from_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = digits_infvit()
    small = InfViT.Config(embed_dim=8, depth=2, num_heads=2)
    training = dataclasses.replace(run.training, epochs=1, batch_size=480, evaluate_every=1, tensorboard=False)
    task = dataclasses.replace(run.task, model=small)  # pyright: ignore[reportCallIssue]
    train(dataclasses.replace(run, task=task, training=training), tmp_path / "run")
    capsys.readouterr()
    print_alignment(tmp_path / "run", num_images=3)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["blocks.0.operator", "blocks.1.operator"]
    for line in lines:
        found = re.search(r"6 samples, cosine (-?[\d.]+) \+- [\d.]+, Spearman -?[\d.]+", line)
        assert found is not None
        assert 0 < float(found[1]) <= 1  # both consist of weights >= 0
