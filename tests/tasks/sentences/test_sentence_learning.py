import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.models import NGramBank, SentenceStackConfig
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import MLPConfig
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import SentenceLearning
from fredholm.tasks.targets import ClassTarget, LabelTarget, NumberTarget, TargetSettings
from fredholm.tasks.text import Tokens
from fredholm.training import Run, TrainingConfig, train
from fredholm.training.scoring import score_split
from tests.refusals import refused

SMALL = SentenceStackConfig(
    stack=ITNet.Config(
        embed_dim=8,
        depth=1,
        num_heads=2,
        kernel=MLPConfig(width=8, num_frequencies=4),
        dropout=0.0,
        drop_path=0.0,
    )
)
BANK = NGramBank.Config(num_grams=300)
CPU = torch.device("cpu")
NONE = torch.Generator()
WORDS = "a the film plot actor and it was so very"


def write_csv(folder: Path, name: str = "reviews.csv", *, count: int = 60) -> Path:
    """Writes sentences of 3 to 11 words; the class is one of the words, and the score counts the word "very"."""
    drawn = torch.Generator().manual_seed(0)
    rows = ["text,second,label,score"]
    for i in range(count):
        length = int(torch.randint(2, 11, (), generator=drawn))
        words = [WORDS.split()[k] for k in torch.randint(10, (length,), generator=drawn).tolist()]
        words.insert(length // 2, "good" if i % 2 else "bad")
        rows.append(f"{' '.join(words)},the end {i},{'pos' if i % 2 else 'neg'},{words.count('very') * 10 + 100}")
    path = folder / name
    path.write_text("\n".join(rows) + "\n")
    return path


def config(folder: Path, **settings: Any) -> SentenceLearning.Config:
    chosen = {
        "data": str(write_csv(folder)),
        "text_column": "text",
        "tokens": Tokens(vocab_size=100),
        "context": 16,
        "model": SMALL,
    }
    return SentenceLearning.Config(**(chosen | settings))


class Fixed(nn.Module):
    """Outputs that are a linear function of a row's tokens, without padding."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.weight = torch.randn(200, num_outputs, generator=torch.Generator().manual_seed(3))

    def forward(self, tokens: Tensor) -> Tensor:
        return (self.weight[tokens] * (tokens != 0)[..., None]).mean(1) * tokens.shape[1]


def outputs_of(task: SentenceLearning, model: nn.Module) -> tuple[Tensor, Tensor]:
    batch = task.held_out_batch("test", torch.arange(task.num_held_out("test")))
    return model(batch["tokens"]), batch["targets"]


def test_facts_are_the_training_splits(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    assert (task.num_train, task.num_held_out("valid")) == (42, 6)
    facts = task.facts
    assert (facts.target, facts.context) == (ClassTarget(names=("neg", "pos")), 16)
    assert (facts.columns.text, facts.columns.second, facts.columns.labels) == ("text", None, ("label",))
    assert facts.files == {"tokenizer.json": task.tokenizer.state}
    assert from_json(json.loads(json.dumps(to_json(facts))), SentenceLearning.Facts, SentenceLearning.parts) == facts
    numbers = config(tmp_path, target="number", label_columns=("score",)).build()
    assert numbers.target == numbers.splits.train.answers.learn(TargetSettings(), "x")


def test_tokens_are_learnt_from_the_training_split_alone(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    write_csv(folder, "train.csv")
    for split in ("valid", "test"):
        (folder / f"{split}.csv").write_text("text,label\nzzz zzz zzz zzz,pos\n")
    task = config(tmp_path, data=str(folder)).build()
    assert "z" not in "".join(json.loads(task.tokenizer.state)["model"]["vocab"])


def test_a_batch_is_padded_to_its_longest_and_pairs_have_two_ends(tmp_path: Path) -> None:
    task = config(tmp_path, second_column="second", context=24).build()
    marks, lengths = task.tokenizer.marks, task.train_lengths
    order = lengths.argsort()
    for indices in (order[:5], order[-5:]):
        batch = task.train_batch(indices, NONE)
        tokens, exists = batch["tokens"], batch["tokens"] != marks.pad
        assert tokens.dtype == torch.int64
        assert tokens.shape == (5, int(lengths[indices].max()))
        assert torch.equal(exists.sum(1), lengths[indices])
        assert (tokens[:, 0] == marks.class_token).all()
        assert ((tokens == marks.separator).sum(1) == 2).all()
        assert torch.equal(batch["targets"], task.splits.train.answers.values[indices])


def test_evaluation_goes_from_short_to_long_sentences(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    assert task.num_held_out("test") == 12
    batch = task.held_out_batch("test", torch.arange(12))
    sizes = (batch["tokens"] != 0).sum(1)
    assert torch.equal(sizes, sizes.sort().values)
    assert sorted(batch["targets"].tolist()) == sorted(task.held_out("test").answers.values.flatten().tolist())


def test_padding_changes_no_output(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    model = task.model().eval()
    whole = task.held_out_batch("valid", torch.arange(6))["tokens"]
    longer = F.pad(whole, (0, 3), value=task.tokenizer.marks.pad)
    alone = torch.cat([model(task.held_out_batch("valid", torch.tensor([i]))["tokens"]) for i in range(6)])
    for tokens in (whole, longer):
        torch.testing.assert_close(model(tokens), alone, rtol=1e-5, atol=1e-6)


def test_loss_and_metrics_of_classes(tmp_path: Path) -> None:
    from sklearn.metrics import balanced_accuracy_score, f1_score, matthews_corrcoef, roc_auc_score

    task, model = config(tmp_path).build(), Fixed(2)
    batch = task.held_out_batch("test", torch.arange(12))
    outputs, targets = outputs_of(task, model)
    assert task.num_targets(batch) == 12
    loss = F.cross_entropy(outputs, targets, reduction="sum")
    torch.testing.assert_close(task.loss(model, batch), loss)
    found = score_split(task, "test", model, batch_size=5, device=CPU, dtype=torch.float32)
    predicted = outputs.argmax(1)
    expected = {
        "balanced_accuracy": balanced_accuracy_score(targets, predicted),
        "auroc": roc_auc_score(targets, outputs[:, 1] - outputs[:, 0]),
        "accuracy": float((predicted == targets).double().mean()),
        "macro_f1": f1_score(targets, predicted, average="macro"),
        "matthews": matthews_corrcoef(targets, predicted),
        "loss": float(loss) / 12,
    }
    assert found == pytest.approx(expected, abs=1e-6)
    assert 0.1 < found["accuracy"] < 0.9


def test_loss_and_metrics_of_numbers(tmp_path: Path) -> None:
    from scipy.stats import pearsonr, spearmanr

    task, model = config(tmp_path, target="number", label_columns=("score",)).build(), Fixed(1)
    outputs, targets = outputs_of(task, model)
    target = task.target
    assert isinstance(target, NumberTarget)
    scores = targets[:, 0].double() * target.deviation[0] + target.mean[0]
    assert sorted(scores.round().tolist()) == sorted(task.held_out("test").answers.values.flatten().tolist())
    answers = outputs[:, 0].double() * target.deviation[0] + target.mean[0]
    batch = task.held_out_batch("test", torch.arange(12))
    torch.testing.assert_close(task.loss(model, batch), (outputs - targets).square().sum())
    found = score_split(task, "test", model, batch_size=5, device=CPU, dtype=torch.float32)
    expected = {
        "pearson": pearsonr(answers, scores)[0],
        "spearman": spearmanr(answers, scores)[0],
        "mean_absolute_error": float((answers - scores).abs().mean()),
        "root_mean_squared_error": float((answers - scores).square().mean().sqrt()),
        "r2": float(1 - (answers - scores).square().sum() / (scores - scores.mean()).square().sum()),
        "loss": float((outputs - targets).square().mean()),
    }
    assert found == pytest.approx(expected, rel=1e-4)


def test_constant_predictions_have_correlation_0(tmp_path: Path) -> None:
    task = config(tmp_path, target="number", label_columns=("score",), valid_fraction=0.2).build()
    model = Fixed(1)
    model.weight.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = score_split(task, "valid", model, batch_size=3, device=CPU, dtype=torch.float32)
    assert (found["pearson"], found["spearman"]) == (0.0, 0.0)


def test_the_chosen_objective_is_used(tmp_path: Path) -> None:
    for target, chosen, expected in (
        ("class", None, "accuracy"),
        ("class", "matthews", "matthews"),
        ("class", "macro_f1", "macro_f1"),
        ("number", None, "mean_absolute_error"),
        ("number", "spearman", "spearman"),
        ("number", "pearson", "pearson"),
    ):
        label = "label" if target == "class" else "score"
        task = config(tmp_path, target=target, objective=chosen, label_columns=(label,)).build()
        assert task.objective.metric == expected
        assert expected in task.metrics()
        assert task.objective.maximise == (expected != "mean_absolute_error")


def test_predictions_are_the_outputs_for_each_row(tmp_path: Path) -> None:
    task, model = config(tmp_path).build(), Fixed(2)
    path = tmp_path / "new.jsonl"
    path.write_text('{"text": "a good film"}\n\n{"text": "bad"}\n')
    rows = task.predict(model, [path], CPU)
    assert [list(row) for row in rows] == [["file", "line", "class", "probability"]] * 2
    assert [row["line"] for row in rows] == [1, 3]
    alone = model(task.tokenizer.lay_out("a good film", None, 16).tokens.long()[None]).softmax(-1)[0]
    assert [rows[0].probabilities[name] for name in ("neg", "pos")] == pytest.approx(alone.tolist(), abs=1e-6)
    assert rows[0]["class"] == ("neg", "pos")[int(alone.argmax())]
    numbers = config(tmp_path, target="number", label_columns=("score",)).build()
    assert isinstance(numbers.target, NumberTarget)
    (row, _) = numbers.predict(Fixed(1), [path], CPU)
    answer = float(Fixed(1)(numbers.tokenizer.lay_out("a good film", None, 16).tokens.long()[None]))
    assert row == {
        "file": str(path),
        "line": 1,
        "score": pytest.approx(answer * numbers.target.deviation[0] + numbers.target.mean[0], rel=1e-5),
    }


@pytest.mark.slow
def test_a_run_learns_a_word_and_is_read_back(tmp_path: Path) -> None:
    training = TrainingConfig(
        epochs=12, batch_size=8, learning_rate=1e-2, ema_decay=0.5, tensorboard=False, device="cpu", log_every=50
    )
    task = config(tmp_path, data=str(write_csv(tmp_path, count=120)))
    result = train(Run.Config(task=task, training=training), tmp_path / "run")
    assert result.metrics["accuracy"] > 0.9
    assert result.split == "test"
    run = Run(tmp_path / "run", device="cpu")
    assert run.evaluate() == result.metrics
    again = Tokens(file=str(tmp_path / "run" / "tokenizer.json")).learn([])
    assert again.state == run.task.facts.tokenizer  # pyright: ignore[reportAttributeAccessIssue]


def test_settings_that_differ_from_the_run_are_refused(tmp_path: Path) -> None:
    task = config(tmp_path)
    facts = task.build().facts
    for change, message in (
        ({"context": 8}, "context is 8; the run was made with 16"),
        ({"target": "number", "label_columns": ("score",)}, "the targets of"),
    ):
        with refused(ValueError, message):
            assert dataclasses.replace(task, **change).build(facts).splits


def test_one_warning_reports_truncated_sentences(tmp_path: Path) -> None:
    task = config(tmp_path, context=8).build()
    with pytest.warns(UserWarning, match=r"of 42 training sentences of .* have more than 8 tokens and are cut"):
        assert int(task.train_lengths.max()) == 8
    assert task.train_batch(torch.arange(3), NONE)["tokens"].shape[1] <= 8
    with pytest.warns(UserWarning, match=r"^valid texts of more than 8 tokens, .* are cut at the end") as warned:
        [task.held_out_batch("valid", torch.tensor([i])) for i in range(2)]
    assert len(warned) == 1  # of this split alone, and once
    path = tmp_path / "new.jsonl"
    path.write_text('{"text": "a good film, and a long one that goes on and on"}\n{"text": "bad"}\n')
    with pytest.warns(UserWarning, match=r"^texts of more than 8 tokens, .* are cut at the end: 1 of 2$"):
        task.predict(Fixed(2), [path], CPU)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "pearson"}, "objective is 'pearson'; expected one of accuracy"),
        ({"class_weights": "balanced", "quantiles": (0.5,)}, "quantiles=(0.5,) has no effect with classes"),
        ({"split_by": "time"}, "the data have no times"),
        ({"model": BANK, "valid_fraction": 0.2}, "valid_fraction=0.2 has no effect with model=NGramBank"),
        ({"data": ""}, "no sentences are given"),
        ({"model": SentenceStackConfig(stack=ITNet.Config(pool="none"))}, "since a sentence has one output"),
        ({"context": 4}, "context=4 has no room for a text between its marks; expected at least 5"),
        ({"label_columns": ("text",)}, "column 'text' would be read as two things"),
        ({"target": "number"}, "column 'label': 'neg' is no finite number"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        assert config(tmp_path, **settings).build().train_lengths is not None


def test_a_single_class_or_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text,label\n" + "".join(f"sentence {i},1\n" for i in range(20)))
    with refused(ValueError, f"{path} has the classes ['1']; expected at least 2"):
        config(tmp_path, data=str(path)).build()
    with refused(ValueError, f"all training values of 'label' of {path} are 1; expected at least 2 of them"):
        config(tmp_path, data=str(path), target="number").build()


def test_labels_missing_from_training_are_refused_in_every_other_split(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    write_csv(folder, "train.csv")
    known = "text,label\ngood,pos\n"
    for split, other in (("valid", "test"), ("test", "valid")):
        (folder / f"{split}.csv").write_text(known + "so so,fair\n")
        (folder / f"{other}.csv").write_text(known)
        with refused(ValueError, f"{split}.csv, line 3: column 'label': class 'fair' is none of neg, pos"):
            config(tmp_path, data=str(folder)).build()


def test_data_may_have_no_test_split(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    write_csv(folder, "train.csv")
    (folder / "valid.csv").write_text("text,label\ngood,pos\n")
    with refused(ValueError, "the data have no test split"):
        config(tmp_path, data=str(folder)).build().held_out("test")
    assert config(tmp_path, data=str(folder)).build().num_held_out("valid") == 1


def test_labels_in_lists_and_in_columns_are_learnt_and_predicted(tmp_path: Path) -> None:
    rows = [
        {"text": f"a film {i}", "label": ["x", "y"][: i % 3], "wet": i % 2, "cold": int(i % 3 == 0)} for i in range(40)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    listed = config(tmp_path, data=str(path), target="labels").build()
    assert listed.target == LabelTarget(names=("x", "y"))
    columns = config(tmp_path, data=str(path), label_columns=("wet", "cold"), class_weights="balanced").build()
    assert columns.target.names == ("wet", "cold")
    for task in (listed, columns):
        found = score_split(task, "test", Fixed(2), batch_size=3, device=CPU, dtype=torch.float32)
        assert 0 <= found["auroc"] <= 1
        row = task.predict(Fixed(2), [path], CPU)[0]
        assert list(row)[:3] == ["file", "line", "labels"]


def test_sentences_of_a_group_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text,label,group\n" + "".join(f"word {i},{i % 2},p{i // 5}\n" for i in range(60)))
    splits = config(tmp_path, data=str(path)).build().splits
    own = [set(part.keys.groups or ()) for part in (splits.train, splits.held_out("valid"), splits.held_out("test"))]
    assert sum(map(len, own)) == len(set().union(*own)) == 12


def test_a_bank_is_fitted_to_training_and_validation_data_and_read_back(tmp_path: Path) -> None:
    training = TrainingConfig(epochs=0, tensorboard=False, device="cpu")
    task = config(tmp_path, model=BANK)
    built = task.build()
    assert (built.num_train, built.num_held_out("valid"), built.num_held_out("test")) == (48, 0, 12)
    assert not built.learns_by_steps
    result = train(Run.Config(task=task, training=training), tmp_path / "run")
    assert result.metrics["accuracy"] > 0.9
    run = Run(tmp_path / "run", device="cpu")
    assert run.evaluate() == result.metrics
    own = tmp_path / "own"
    own.mkdir()
    write_csv(own, "train.csv")
    write_csv(own, "valid.csv", count=8)
    assert config(tmp_path, data=str(own), model=BANK).build().num_held_out("valid") == 8


def test_groups_are_left_out_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor | None] = []
    fit = NGramBank.fit

    def watched(model: NGramBank, *given: Any, groups: Tensor | None = None, **others: Any) -> None:
        seen.append(groups)
        fit(model, *given, groups=groups, **others)

    monkeypatch.setattr(NGramBank, "fit", watched)
    lines = [f"word {i},{i % 2},p{i // 5}\n" for i in range(60)]
    for header, cut in (("text,label,group\n", 0), ("text,label\n", 1)):
        path = tmp_path / "t.csv"
        path.write_text(header + "".join(line.rsplit(",", cut)[0] + "\n" * cut for line in lines))
        task = config(tmp_path, data=str(path), model=BANK).build()
        task.initialise(task.model(), CPU)
    grouped, alone = seen
    assert alone is None
    assert grouped is not None
    assert grouped.bincount().tolist() == [5] * 10  # the groups that are not in the test split
