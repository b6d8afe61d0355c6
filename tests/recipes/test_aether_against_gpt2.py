"""The study of language models: both sides differ only in the model, the tables are right, and it runs."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm.models.language.aether import Aether
from fredholm.models.language.gpt2 import GPT2
from fredholm.tasks.text import open_text
from recipes import aether_against_gpt2 as study
from recipes.aether_against_gpt2 import CORPORA, SYSTEMS, Config, Job, chosen
from recipes.penn_treebank import penn_treebank, penn_treebank_gpt2
from recipes.shakespeare import shakespeare, shakespeare_gpt2

ROOT = Path(__file__).parents[2]
CORPUS, BASELINE, OURS = "Shakespeare", "GPT-2, rotary", "Aether, rotary"


@pytest.mark.parametrize("corpus", CORPORA)
def test_systems_of_a_corpus_have_one_size_and_differ_only_in_model_and_rate(corpus: Any) -> None:
    configs = {name: Job(corpus, name, 0.1, 3).config() for name, own in SYSTEMS.items() if corpus in own.corpora}
    first, *others = configs.values()
    for other in others:
        task = dataclasses.replace(other.task, model=first.task.model)  # pyright: ignore[reportAttributeAccessIssue]
        assert dataclasses.replace(other, task=task) == first
    sizes = {}
    with torch.device("meta"):
        for name, config in configs.items():
            task: Any = config.task
            model = task.model.build(2000, task.context)
            sizes[name] = sum(parameter.numel() for parameter in model.parameters())
    # learned positions are 8,192 parameters, and norms 576
    assert max(sizes.values()) - min(sizes.values()) < 9_000
    assert abs(sizes[BASELINE] - sizes[OURS]) < 600


def test_systems_match_their_names() -> None:
    for name, system in SYSTEMS.items():
        task: Any = Job(CORPUS, name, 0.1, 0).config().task
        model = task.model
        assert isinstance(model, GPT2.Config if "GPT" in name else Aether.Config)
        assert model.positions == ("rotary" if "rotary" in name else "learned")
        norm = "pre" if "before" in name else "post" if "after" in name else "none"
        assert getattr(model, "layer_norm", "none") == norm
        assert ("small" in name) is (getattr(model, "epsilon", 4.0) < 1)
        assert system.rates == tuple(sorted(system.rates))


def test_recipes_are_the_systems_of_the_study_at_their_best_rates() -> None:
    results = json.loads((ROOT / "docs" / "studies" / "aether.json").read_text())
    corpus: Any
    for recipe, corpus, name in (
        (shakespeare, CORPORA[0], OURS),
        (shakespeare_gpt2, CORPORA[0], "GPT-2"),
        (penn_treebank, CORPORA[1], OURS),
        (penn_treebank_gpt2, CORPORA[1], "GPT-2"),
    ):
        config = recipe()
        task: Any = config.task
        job: Any = Job(corpus, name, config.training.learning_rate, 0).config().task
        assert task.model == job.model
        assert config.training.learning_rate == chosen(results, corpus, name)[0]["rate"]


def results() -> list[dict[str, Any]]:
    """Results of two rates at seed 0, the better one also at seed 1, and of one that diverged."""
    runs: list[dict[str, Any]] = []
    for rate, seed, bits in ((0.1, 0, 2.0), (0.2, 0, 1.5), (0.2, 1, 1.7)):
        found = {"bits_per_byte": bits}
        runs.append({"corpus": CORPUS, "system": BASELINE, "rate": rate, "seed": seed, "valid": found})
        runs[-1] |= {"test": found, "parameters": 7, "curve": [[10, 3.0], [20, 2.0]]}
    other = {"corpus": CORPUS, "system": OURS, "rate": 0.2, "seed": 0}
    return [*runs, other | {"diverged": "the loss is nan at step 3", "curve": [[1, 9.0]]}]


def test_the_rate_is_chosen_by_the_validation_loss_of_the_first_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert [(run["rate"], run["seed"]) for run in chosen(results(), CORPUS, BASELINE)] == [(0.2, 0), (0.2, 1)]
    assert chosen(results(), CORPUS, OURS) == []
    study.print_results(results())
    printed = capsys.readouterr().out
    assert "bits_per_byte 1.6000 +- 0.1414 (2 seeds, 7 parameters)" in printed
    assert "the loss is nan at step 3" in printed


def test_curves_are_averaged_over_windows_of_steps() -> None:
    steps, losses = study.smoothed([[10, 4.0], [20, 2.0], [30, 1.0]], width=2)
    assert (steps, losses) == ([15, 30], [3.0, 1.0])


def test_the_figure_is_redrawn_from_its_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study.write(results(), tmp_path / "results.json")
    study.main(Config(out=tmp_path / "out", draw=tmp_path / "results.json"))
    assert (tmp_path / "out" / "aether.png").stat().st_size > 10_000


def test_a_finished_run_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(CORPUS, OURS, 0.1, 0)
    job.folder(tmp_path).mkdir()
    (job.folder(tmp_path) / "result.json").write_text('{"rate": 0.1}')
    monkeypatch.setattr(study, "train", lambda *_, **__: pytest.fail("trained again"))
    assert study.run(job, Config(out=tmp_path)) == {"rate": 0.1}


@pytest.mark.long
@pytest.mark.usefixtures("shared_data")
def test_it_tunes_the_rate_repeats_the_best_and_records_diverged_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    wild = SYSTEMS[OURS]._replace(rates=(1e-3, 3e-3, 1e9), corpora=(CORPUS,))
    monkeypatch.setattr(study, "SYSTEMS", {OURS: wild})
    study.main(Config(out=tmp_path, quick=True, systems=(OURS,)))
    found = json.loads((tmp_path / "results.json").read_text())
    best = chosen(found, CORPUS, OURS)
    assert len(best) == 3
    assert len(found) == 5
    assert "diverged" in next(run for run in found if run["rate"] == 1e9)
    assert (tmp_path / "aether.png").stat().st_size > 10_000


def test_an_unknown_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no system 'GPT-5'; expected some of 'GPT-2', 'GPT-2, rotary', 'Aether'"):
        study.main(Config(out=tmp_path, systems=("GPT-5",)))


def test_perplexity_per_word_counts_words_and_line_ends(shared_data: Path) -> None:
    test = open_text(shared_data / "text_lm" / "ptb").test
    assert test is not None
    assert sum(len(line.split()) + 1 for line in "".join(test).splitlines()) == study.PTB_TEST_WORDS
