import dataclasses
from pathlib import Path

import pytest
import torch

from fredholm import IntegralOperator, kernels
from fredholm.training import train
from recipes.digits import digits
from recipes.rank_sweep import Config, exact_operators, main


@pytest.mark.long
def test_every_layer_of_a_trained_run_is_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    config, run = digits(), tmp_path / "digits"
    train(dataclasses.replace(config, training=dataclasses.replace(config.training, epochs=1)), run)
    main(Config(run=run, out=tmp_path / "out", ranks=(2, 4), images=10, steps=2))
    assert (tmp_path / "out" / "rank_sweep.png").stat().st_size > 10_000
    assert '"rank": 4' in (tmp_path / "out" / "results.json").read_text()
    assert "kernel_error" in capsys.readouterr().out


def test_operators_with_exact_kernels_are_found() -> None:
    model = torch.nn.Sequential(IntegralOperator(kernels.MLP(4, width=3)), IntegralOperator(kernels.Attention(4)))
    assert list(exact_operators(model)) == ["0"]
    with pytest.raises(SystemExit, match="no operator with an MLP kernel"):
        exact_operators(model[1])
