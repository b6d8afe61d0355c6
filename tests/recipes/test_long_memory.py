"""Copy memory and the adding problem: sequences follow the paper, and a short run learns, stops and is stored."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes import long_memory as study


def test_copying_ends_with_the_first_ten_digits() -> None:
    given, found = study.copy_sequences(50, 30, torch.Generator().manual_seed(0))
    digits = given[:, :10, 0]
    assert given.shape == (50, 50, 1)
    assert set(digits.flatten().tolist()) == set(range(1, 9))
    assert (given[:, 10:39] == 0).all()
    assert (given[:, 39:] == 9).all()
    assert (found[:, :40] == 0).all()
    assert torch.equal(found[:, 40:].float(), digits)


def test_adding_marks_two_numbers_at_any_positions() -> None:
    given, found = study.adding_sequences(500, 20, torch.Generator().manual_seed(0))
    numbers, marks = given.unbind(-1)
    assert bool(((numbers >= 0) & (numbers < 1)).all())
    assert (marks.sum(1) == 2).all()
    torch.testing.assert_close(found, (numbers * marks).sum(1))
    assert (marks.sum(0) > 20).all()


def test_the_networks_have_the_sizes_of_the_paper() -> None:
    # 15.52K and 70.59K, minus the direction of a single input in each of four kernels
    sizes: dict[study.Problem, int] = {"copy": 15_520, "adding": 70_590}
    for problem, size in sizes.items():
        assert sum(p.numel() for p in study.network(problem, 100, 9.0).parameters()) == pytest.approx(size, abs=140)


def test_a_copying_network_sees_all_digits_at_any_length() -> None:
    for length in study.LENGTHS[:2]:
        net = study.network("copy", length, 19.2)
        given = study.copy_sequences(1, length, torch.Generator().manual_seed(0))[0]
        other = given.clone()
        other[:, 0] += 1
        assert (net(given)[:, -1] != net(other)[:, -1]).any()


@pytest.mark.long
def test_a_short_run_learns_to_add_and_is_only_read_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = study.Config(out=tmp_path, problems=("adding",), lengths=(100,), epoch_size=1600, epochs=2, test_size=64)
    study.main(config)
    (found,) = json.loads((tmp_path / "results.json").read_text())
    assert found["curve"][-1]["loss"] < 0.3  # above 1 if untrained
    assert not found["solved"]
    monkeypatch.setattr(study, "run", lambda *_: pytest.fail("ran again"))
    study.main(config)
    assert "adding  T = 100   not solved in 2 epochs" in capsys.readouterr().out


def test_a_solved_problem_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "SOLVED_LOSS", 1e9)
    config = study.Config(out=tmp_path, lengths=(100,), epoch_size=32, test_size=32)
    found = study.run("adding", 100, 0, config)
    assert (found["epochs"], found["solved"]) == (1, True)


def test_other_settings_are_stored_with_the_result_and_the_rate_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[torch.optim.Adam] = []
    adam = torch.optim.Adam

    def build(parameters: Any, lr: float) -> torch.optim.Adam:
        made.append(adam(parameters, lr=lr))
        return made[-1]

    monkeypatch.setattr(torch.optim, "Adam", build)
    for cosine in (True, False):
        config = study.Config(
            out=tmp_path, epoch_size=64, epochs=1, test_size=32, learning_rate=4e-3, omega_0=3.0, cosine=cosine
        )
        found = study.run("adding", 100, 0, config)
        assert (found["learning_rate"], found["omega_0"], found["cosine"]) == (4e-3, 3.0, cosine)
        assert made[-1].param_groups[0]["lr"] == (0 if cosine else 4e-3)


def test_training_sequences_grow_up_to_the_length_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def draw(count: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        drawn.append(length)
        return study.adding_sequences(count, length, generator)

    monkeypatch.setitem(study.SEQUENCES, "adding", draw)
    monkeypatch.setattr(study, "WINDOW", 2)
    for learned, lengths in ((1e9, [30, 30, 60, 60, 100, 100, 100]), (0.0, [30] * 7)):
        drawn.clear()
        monkeypatch.setattr(study, "LEARNED_LOSS", learned)
        config = study.Config(
            out=tmp_path, problems=("adding",), epoch_size=7 * 32, epochs=1, test_size=32, first_length=30
        )
        assert study.run("adding", 100, 0, config)["first_length"] == 30
        assert drawn == [100, *lengths]  # test sequences have their full length from the start


def test_results_of_other_settings_are_not_combined(tmp_path: Path) -> None:
    for rate, count in ((4e-3, 1), (2e-3, 2), (4e-3, 2)):
        study.main(
            study.Config(
                out=tmp_path,
                problems=("adding",),
                lengths=(100,),
                epoch_size=32,
                epochs=1,
                test_size=32,
                learning_rate=rate,
            )
        )
        assert len(json.loads((tmp_path / "results.json").read_text())) == count


def test_results_of_another_process_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = study.Config(out=tmp_path, problems=("adding",), lengths=(100,), epoch_size=32, epochs=1, test_size=32)
    run = study.run

    def run_beside_another(problem: study.Problem, length: int, seed: int, config: study.Config) -> dict[str, Any]:
        if seed == 0:
            study.main(dataclasses.replace(config, seeds=(1,)))
        return run(problem, length, seed, config)

    monkeypatch.setattr(study, "run", run_beside_another)
    study.main(config)
    assert [r["seed"] for r in json.loads((tmp_path / "results.json").read_text())] == [1, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"omega_0": 0.0}, "omega_0 must be above 0"),
        ({"epoch_size": 31}, "no batch of 32"),
        ({"epochs": 0}, "epochs"),
        ({"first_length": 50}, "first_length is for adding only .*; got 50 with copy, adding"),
        ({"first_length": 1, "problems": ("adding",)}, "at least 2; got 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        study.Config(**settings)


def test_a_length_without_settings_is_refused() -> None:
    with pytest.raises(ValueError, match=r"T must be one of \(100, 200, 1000, 3000, 6000\).* got 150"):
        study.Config(lengths=(150,))
