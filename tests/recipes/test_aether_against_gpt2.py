"""The study of language models: both sides differ in the model alone, the tables are right, and it runs."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm.models import GPT2
from fredholm.tasks.text import open_text
from recipes import aether_against_gpt2 as study
from recipes.aether_against_gpt2 import AETHER, CORPORA, POST, PRE, Config, Job, chosen
from recipes.penn_treebank import penn_treebank, penn_treebank_gpt2
from recipes.shakespeare import shakespeare, shakespeare_gpt2


@pytest.mark.parametrize("pair", [(shakespeare, shakespeare_gpt2), (penn_treebank, penn_treebank_gpt2)])
def test_both_models_have_one_size_and_differ_in_nothing_but_their_rate(pair: Any) -> None:
    aether, gpt2 = (recipe() for recipe in pair)
    same = dataclasses.replace(gpt2, task=dataclasses.replace(gpt2.task, model=aether.task.model))
    rate = aether.training.learning_rate
    assert dataclasses.replace(same, training=dataclasses.replace(same.training, learning_rate=rate)) == aether
    with torch.device("meta"):
        models = [config.task.model.build(2000, config.task.context) for config in (aether, gpt2)]
    ours, theirs = (sum(parameter.numel() for parameter in model.parameters()) for model in models)
    assert abs(ours - theirs) < 0.01 * theirs


def test_the_ablations_are_aether_with_norms() -> None:
    plain, pre, post = (Job("Shakespeare", name, 0.1, 3).config(quick=False) for name in (AETHER, PRE, POST))
    for config, norm in ((plain, "none"), (pre, "pre"), (post, "post")):
        assert config.task == dataclasses.replace(
            plain.task,
            model=dataclasses.replace(plain.task.model, layer_norm=norm),  # pyright: ignore[reportAttributeAccessIssue]
        )
        assert (config.training.learning_rate, config.seed) == (0.1, 3)


def results() -> list[dict[str, Any]]:
    """Two rates at seed 0, the better one at seed 1, and one that diverged."""
    runs: list[dict[str, Any]] = []
    for rate, seed, bits in ((0.1, 0, 2.0), (0.2, 0, 1.5), (0.2, 1, 1.7)):
        found = {"bits_per_byte": bits}
        runs.append({"corpus": CORPORA[0], "model": study.GPT2, "rate": rate, "seed": seed, "valid": found})
        runs[-1] |= {"test": found, "parameters": 7, "curve": [[10, 3.0], [20, 2.0]]}
    other = {"corpus": CORPORA[0], "model": AETHER, "rate": 0.2, "seed": 0}
    return [*runs, other | {"diverged": "the loss is nan at step 3", "curve": [[1, 9.0]]}]


def test_the_rate_is_chosen_by_the_validation_text_of_the_first_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert [(run["rate"], run["seed"]) for run in chosen(results(), CORPORA[0], study.GPT2)] == [(0.2, 0), (0.2, 1)]
    assert chosen(results(), CORPORA[0], AETHER) == []
    study.tell(results())
    told = capsys.readouterr().out
    assert "bits_per_byte 1.6000 +- 0.1414 (2 seeds, 7 parameters)" in told
    assert "the loss is nan at step 3" in told


def test_the_figure_is_drawn_again_from_its_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study.write(results(), tmp_path / "results.json")
    study.main(Config(out=tmp_path / "out", draw=tmp_path / "results.json"))
    assert (tmp_path / "out" / "aether.png").stat().st_size > 10_000


def test_a_run_that_is_done_is_only_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("Shakespeare", AETHER, 0.1, 0)
    (tmp_path / job.folder).mkdir()
    (tmp_path / job.folder / "result.json").write_text('{"rate": 0.1}')
    monkeypatch.setattr(study, "train", lambda *_, **__: pytest.fail("trained again"))
    assert study.run(job, Config(out=tmp_path)) == {"rate": 0.1}


def test_an_unknown_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no model 'GPT-5'; expected some of GPT-2, Aether"):
        study.main(Config(out=tmp_path, models=("GPT-5",)))


def test_a_word_s_perplexity_is_of_words_and_line_ends(shared_data: Path) -> None:
    test = open_text(shared_data / "text_lm" / "ptb").test
    assert test is not None
    assert sum(len(line.split()) + 1 for line in test[0].splitlines()) == study.PTB_TEST_WORDS


def test_gpt2_is_the_baseline() -> None:
    assert isinstance(shakespeare_gpt2().task.model, GPT2.Config)  # pyright: ignore[reportAttributeAccessIssue]
