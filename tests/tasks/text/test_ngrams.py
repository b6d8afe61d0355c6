import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm.models import GPT2, BlendedLanguageModel, NGramModel, Sampling
from fredholm.report.examination import examine
from fredholm.tasks import LanguageModelling
from fredholm.tasks.blending import SHARES
from fredholm.tasks.text import IGNORED
from fredholm.training import ExponentialMovingAverage, Run, TrainingConfig, train
from fredholm.training.learner import settled_buffers
from fredholm.training.plan import first_steps, plan
from fredholm.training.scoring import score_split
from tests.refusals import refused

CPU = torch.device("cpu")
NETWORK = GPT2.Config(embed_dim=8, depth=1, num_heads=2, dropout=0.0, positions="rotary")


def written(folder: Path, count: int = 120) -> Path:
    """Lines of words in a repeating order."""
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "went", "to", "see", "what", "there", "was"]
    lines = [" ".join(words[(i * k) % len(words)] for k in range(1, 7)) for i in range(count)]
    (folder / "book.txt").write_text("\n".join(lines))
    return folder / "book.txt"


def task_of(folder: Path, **settings: Any) -> LanguageModelling:
    given = {"data": str(written(folder)), "context": 16, "model": NETWORK, "ngrams": 4, **settings}
    return LanguageModelling.Config(**given).build()


def fitted(task: LanguageModelling) -> BlendedLanguageModel:
    torch.manual_seed(0)
    model = task.model()
    assert isinstance(model, BlendedLanguageModel)
    task.initialise(model, CPU)
    return model.eval()


def nats(task: LanguageModelling, model: nn.Module, split: Any = "valid") -> float:
    """Mean loss per token of a split, by hand."""
    return nats_of(task, model, split, *range(task.num_held_out(split)))


@torch.no_grad()
def nats_of(task: LanguageModelling, model: nn.Module, split: Any, *windows: int) -> float:
    """Mean loss per token of some windows."""
    total, count = 0.0, 0
    for i in windows:
        batch = task.held_out_batch(split, torch.tensor([i]))
        logs, targets = task.logits(model, batch).log_softmax(-1)[0], batch["targets"][0]
        for place, target in enumerate(targets.tolist()):
            if target != IGNORED:
                total, count = total - float(logs[place, target]), count + 1
    return total / count


def scores(task: LanguageModelling, model: nn.Module) -> dict[str, float]:
    return score_split(task, "valid", model, batch_size=4, device=CPU, dtype=torch.float32)


def test_a_run_stores_the_counts_of_its_text_and_is_read_back(tmp_path: Path) -> None:
    config = LanguageModelling.Config(data=str(written(tmp_path)), model=NETWORK, context=16)
    recommended = config.recommended("small").config
    assert isinstance(recommended, LanguageModelling.Config)
    assert (recommended.ngrams, recommended.recall) == (9, 4096)
    training = TrainingConfig(epochs=2, batch_size=8, tensorboard=False)
    train(Run.Config(task=recommended, training=training), tmp_path / "run")
    run = Run(tmp_path / "run")
    model = run.model()
    assert isinstance(model, BlendedLanguageModel)
    assert float(model.share) < 1  # a network trained for two epochs has a larger loss
    assert model.fitted.config.sizes == recommended.build().facts.ngrams
    found = run.evaluate("valid")
    assert math.log(found["perplexity"]) == pytest.approx(nats(recommended.build(), model.eval()), rel=1e-5)
    assert found["loss"] == pytest.approx(math.log(found["perplexity"]), rel=1e-6)
    examined = examine(run, model.eval(), "valid", most=9, seconds=60.0)
    costs = [nats_of(recommended.build(), model, "valid", int(index)) for index in examined.indices]
    torch.testing.assert_close(examined.losses, torch.tensor(costs, dtype=torch.float64), rtol=1e-5, atol=0)


def test_the_share_with_the_smallest_error_is_chosen(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    model = fitted(task)
    for scale in (1.0, 0.0):  # an untrained network, then useless counts
        if scale == 0.0:
            model.fitted.weights.zero_()
            model.fitted.kept.fill_(1.0)
            for parameter in model.network.parameters():
                parameter.data.zero_()
        found = {}
        for share in SHARES:
            model.share.fill_(share)
            found[share] = nats(task, model)
        chosen_on_validation(task, model)
        assert found[float(model.share)] == pytest.approx(min(found.values()), rel=1e-6)


@pytest.mark.parametrize("is_new", [True, False])
def test_earlier_text_is_recalled_where_that_helps(tmp_path: Path, is_new: bool) -> None:
    (folder := tmp_path / "book").mkdir()
    whole = written(tmp_path).read_text()
    name = "quixotic zephyr "  # the training text repeats itself, and the validation text does or not
    ends = {"train": whole[:1500] + whole[:1500], "valid": 20 * name if is_new else whole[1700:2100], "test": "none"}
    for split, text in ends.items():
        (folder / f"{split}.txt").write_text(text)
    task = LanguageModelling.Config(data=str(folder), context=16, model=NETWORK, ngrams=4, recall=200).build()
    model = fitted(task)
    recall = model.fitted.recall
    assert recall is not None
    if not is_new:  # as if learnt from a text that repeats itself more
        recall.kept.fill_(0.05)
    found = {}
    for recalled in (1.0, 0.0):
        for share in SHARES:
            recall.share.fill_(recalled)
            model.share.fill_(share)
            found[recalled, share] = nats(task, model)
    for before in (1.0, 0.0):  # the previous choice does not matter
        recall.share.fill_(before)
        chosen_on_validation(task, model)
        assert float(recall.share) == (1.0 if is_new else 0.0)
        assert found[float(recall.share), float(model.share)] == pytest.approx(min(found.values()), rel=1e-5)
    assert nats(task, model) == pytest.approx(min(found.values()), rel=1e-5)


def chosen_on_validation(task: LanguageModelling, model: BlendedLanguageModel) -> None:
    def measure(score: Any, metrics: Any) -> dict[str, float]:
        for indices in torch.arange(task.num_held_out("valid")).split(3):
            score(model, task.held_out_batch("valid", indices), metrics)
        return {name: float(metric.compute()) for name, metric in metrics.items()}

    task.choose_by_validation(model, measure)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_all_metrics_use_the_blend_of_network_and_counts(tmp_path: Path, share: float) -> None:
    task = task_of(tmp_path)
    model = fitted(task)
    model.share.fill_(share)
    found = scores(task, model)
    assert found["perplexity"] == pytest.approx(math.exp(nats(task, model)), rel=1e-5)
    assert found["loss"] == pytest.approx(nats(task, model), rel=1e-5)
    batch = task.held_out_batch("valid", torch.arange(2))
    count = int((batch["targets"] != IGNORED).sum())
    logs = model(batch["inputs"]).detach().log_softmax(-1)
    expected = -sum(
        float(logs[i, place, target])
        for i, row in enumerate(batch["targets"].tolist())
        for place, target in enumerate(row)
        if target != IGNORED
    )
    assert float(task.loss(model, batch).detach()) == pytest.approx(expected, rel=1e-5)
    assert count == task.num_targets(batch)


@pytest.mark.parametrize("stride", [16, 5])
def test_windows_recall_all_earlier_text(tmp_path: Path, stride: int) -> None:
    task = task_of(tmp_path, recall=600, stride=stride)
    model = fitted(task)
    model.share.fill_(0.0)
    counts, stream = model.fitted, torch.from_numpy(task.held_out_streams["valid"].tokens.astype(int))
    assert counts.recall is not None
    first = task.held_out_batch("valid", torch.tensor([0]))
    assert first["past"].shape == (1, 611)
    assert bool((first["past"] == -1).all())
    for index in (3, task.num_held_out("valid") - 1):
        batch = task.held_out_batch("valid", torch.tensor([index]))
        start = (index + 1) * stride - 16
        before = stream[max(0, start - 611) : start]
        assert torch.equal(batch["past"][0, 611 - len(before) :], before)
        assert torch.equal(batch["inputs"][0], torch.cat([stream[start:-1], stream[:1].repeat(16)])[:16])
    (alone := task_of(tmp_path, stride=stride)).initialise(without := alone.model().eval(), CPU)
    assert isinstance(without, BlendedLanguageModel)
    without.share.fill_(0.0)
    assert "past" not in alone.held_out_batch("valid", torch.tensor([3]))
    assert nats(task, model) == pytest.approx(nats(alone, without), rel=0.1)  # of repeated lines
    assert nats(task, model) != pytest.approx(nats(alone, without), rel=1e-3)


def test_a_tensor_form_notes_that_it_recalls_only_its_own_tokens(tmp_path: Path) -> None:
    task = task_of(tmp_path, recall=9)
    model = fitted(task)
    recall = model.fitted.recall
    assert recall is not None
    model.share.fill_(0.5)
    (note,) = task.tensor_form(model).notes
    assert "recalled only within the given ones" in note
    for share, recalled in ((1.0, 1.0), (0.5, 0.0)):
        model.share.fill_(share)
        recall.share.fill_(recalled)
        assert task.tensor_form(model).notes == ()
    assert (without := task_of(tmp_path)).tensor_form(fitted(without)).notes == ()


def test_generated_text_is_not_recalled(tmp_path: Path) -> None:
    task = task_of(tmp_path, recall=99)
    model = fitted(task)
    model.share.fill_(0.2)
    recall = model.fitted.recall
    assert recall is not None
    recall.kept.fill_(0.01)

    def drawn(model: nn.Module) -> str:
        given: Any = {"generator": torch.Generator(), "device": CPU, "max_tokens": 30}
        return "".join(
            each.text for each in task.generate(model, "cat cat cat", sampling=Sampling(temperature=0), **given)
        )

    tokens = torch.tensor([list(b"cat cat cat ")])
    free, logits, before = drawn(model), model.without_recall()(tokens), model(tokens)
    recall.share.fill_(0.0)
    assert drawn(model) == free
    torch.testing.assert_close(model(tokens), logits)
    assert not torch.allclose(before, logits)


def test_files_are_scored_like_splits(tmp_path: Path) -> None:
    (folder := tmp_path / "book").mkdir()
    whole = written(tmp_path).read_text()
    for name, text in (("train", whole[:2000]), ("valid", whole[2000:2500]), ("test", whole[2600:3000])):
        (folder / f"{name}.txt").write_text(text)
    task = LanguageModelling.Config(data=str(folder), context=16, model=NETWORK, ngrams=4, recall=200).build()
    model = fitted(task)
    model.share.fill_(0.25)
    (found,) = task.predict(model, [folder / "test.txt"], CPU)
    measured = score_split(task, "test", model, batch_size=4, device=CPU, dtype=torch.float32)
    for name, value in measured.items():
        assert found[name] == pytest.approx(value, rel=1e-5)


def test_a_plan_counts_memory_and_time_of_ngrams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, own = list[Tensor](), NGramModel.probabilities
    monkeypatch.setattr(
        NGramModel, "probabilities", lambda self, *given, **more: inputs.append(given[0]) or own(self, *given, **more)
    )
    # of several processes the first measures alone, and no metric may wait for the others
    monkeypatch.setattr("torchmetrics.Metric.sync", lambda *_, **__: pytest.fail("a metric waits for other processes"))
    monkeypatch.setattr("torchmetrics.metric.jit_distributed_available", lambda: True)
    training = TrainingConfig(epochs=2, batch_size=8)
    without, beside = (
        plan(task, training, first_steps(task, training, seed=0))
        for task in (task_of(tmp_path, ngrams=ngrams) for ngrams in (0, 4))
    )
    sizes = task_of(tmp_path).facts.ngrams
    # two checkpoints of two models: keys and weights of all n-grams, `kept` of all but the longest and of none, a share
    more = 2 * 2 * (8 * sum(sizes) * 2 + 8 * (1 + sum(sizes[:-1])) + 4)
    assert beside.num_bytes - without.num_bytes == more
    assert len(inputs) == 2  # once to choose the share, once to score both; evaluations account for this time


def test_a_network_and_its_average_share_the_counts(tmp_path: Path) -> None:
    model = fitted(task_of(tmp_path))
    average = ExponentialMovingAverage(model, 0.9)
    model.share.fill_(0.25)
    average.update(model, 0)
    assert isinstance(average.model, BlendedLanguageModel)
    assert average.model.fitted.weights is model.fitted.weights
    assert average.model.share is not model.share
    assert float(average.model.share) == 0.25
    assert set(settled_buffers(model)) == {"fitted.keys", "fitted.weights", "fitted.kept"}
    within = settled_buffers(nn.Sequential(nn.Linear(1, 1), model))
    assert within["1.fitted.keys"] is model.fitted.keys


def test_few_words_a_missing_validation_split_and_checkpoints_disable_ngrams(tmp_path: Path) -> None:
    def longest(**settings: Any) -> int | None:
        config = LanguageModelling.Config(**{"model": NETWORK, "context": 16, **settings}).recommended("small").config
        assert isinstance(config, LanguageModelling.Config)
        return config.ngrams

    (short := tmp_path / "short.txt").write_text("the cat sat on the mat\n" * 30)
    data = str(written(tmp_path))
    assert longest(data=data) == 9
    assert longest(data=data, context=4) == 5
    assert task_of(tmp_path, ngrams=17).config.ngrams == 17
    assert longest(data=data, ngrams=0) == 0
    assert longest(data=data, ngrams=3) == 3
    assert longest(data=data, valid_fraction=0.0) == 0
    assert longest(data=str(short)) == 0


def test_the_longest_ngrams_that_fit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LanguageModelling.Config(data=str(written(tmp_path)), model=NETWORK, context=16)
    sizes = task_of(tmp_path, ngrams=9).facts.ngrams
    for longest in (1, 4):
        monkeypatch.setattr("fredholm.tasks.text.language_modelling.MOST_NGRAMS", sum(sizes[:longest]))
        assert config.build().longest_counted == longest


def test_kernels_are_compared_without_ngrams(tmp_path: Path) -> None:
    config = task_of(tmp_path).config
    compared = task_of(tmp_path, recall=9).config.with_stack(LanguageModelling.Config().stack)
    assert (compared.ngrams, compared.recall) == (0, 0)
    assert config.with_stack(LanguageModelling.Config().stack).ngrams == 0


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    for settings, message in (
        ({"ngrams": -1}, "ngrams"),
        ({"recall": -1}, "recall"),
        ({"ngrams": 0, "recall": 9}, "recall=9 has no effect without n-grams, and ngrams is 0"),
        ({"ngrams": 18}, "ngrams is 18, of which a context of 16 tokens and the next one have 17 at most"),
        ({"valid_fraction": 0.0}, "ngrams is 4, whose share is chosen by a validation split, and there is none"),
    ):
        with refused(ValueError, message):
            task_of(tmp_path, **settings)


def test_a_run_starts_from_the_network_of_another_and_counts_its_own_text(tmp_path: Path) -> None:
    training = TrainingConfig(epochs=1, batch_size=8, tensorboard=False)
    for name, ngrams in (("with", 3), ("without", 0)):
        task = task_of(tmp_path, ngrams=ngrams).config
        train(Run.Config(task=task, training=training), tmp_path / name)
    for first, ngrams in (("with", 0), ("without", 3), ("with", 4)):
        task = task_of(tmp_path, ngrams=ngrams).config
        none = TrainingConfig(epochs=1, batch_size=8, learning_rate=1e-12, tensorboard=False)
        place = tmp_path / f"{first}-{ngrams}"
        train(Run.Config(task=task, training=none, init=str(tmp_path / first)), place)
        there, here = Run(tmp_path / first).model(), Run(place).model()
        before, after = (each.network if isinstance(each, BlendedLanguageModel) else each for each in (there, here))
        for name, tensor in before.state_dict().items():
            torch.testing.assert_close(after.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
