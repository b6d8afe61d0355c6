"""The command line on text: train, evaluate, predict, generate."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fredholm import cli
from fredholm.models.language.generation import Sampling
from fredholm.tasks.text import Piece, language_modelling
from tests.command_line import call, check_refused
from tests.test_cli import TINY as TINY_IMAGES

TEXT = "".join(f"{i}: the cat sat on the mat, and {i % 7} mice watched it für den Käse.\n" for i in range(60))
TINY = [
    *("--task.context", "16", "--task.model.embed-dim", "8", "--task.model.depth", "1", "--task.model.num-heads", "2"),
    *("--training.epochs", "2", "--training.batch-size", "8", "--training.no-tensorboard"),
]


def generated(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    code, out, err = call(capsys, "generate", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, a run on it, and a run on images."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "cats.txt").write_text(TEXT)
    run = ["--run-dir", str(folder / "run")]
    assert cli.main(["train", "text", str(folder / "cats.txt"), *run, *TINY, "--task.vocab-size", "280"]) == 0
    assert cli.main(["train", "digits", "--run-dir", str(folder / "images"), *TINY_IMAGES]) == 0
    return folder


def test_evaluate_and_predict_report_loss_perplexity_and_bits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "evaluate", folder / "run", "--json")
    found = json.loads(out)
    assert code == 0
    assert {"perplexity", "loss", "bits_per_byte"} <= found.keys()
    code, out, _ = call(capsys, "predict", folder / "run", folder / "cats.txt", "--format", "json")
    (row,) = json.loads(out)
    assert code == 0
    assert list(row) == ["file", "tokens", "loss", "perplexity", "bits_per_byte"]
    code, out, _ = call(capsys, "predict", folder / "run", folder / "cats.txt")
    assert out.splitlines()[1].split("\t")[:3] == [str(folder / "cats.txt"), str(row["tokens"]), f"{row['loss']:.4f}"]


def test_generation_is_the_same_without_a_cache_and_with_the_same_seed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    for settings in (["--temperature", "0"], ["--temperature", "0.8", "--top-k", "40", "--top-p", "0.95"]):
        arguments = [run, "--prompt", "the cat", "--max-tokens", "60", *settings]
        first, again, uncached = (generated(capsys, *arguments, *more) for more in ([], [], ["--no-cache"]))
        assert first == again == uncached
    assert generated(capsys, *arguments, "--seed", "1") != first


def test_every_option_reaches_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received: dict[str, Any] = {}

    def record(*_: object, **settings: Any) -> Iterator[Piece]:
        received.update(settings)
        yield Piece(0, "")

    monkeypatch.setattr(language_modelling, "continue_text", record)
    options = ["--max-tokens", "7", "--temperature", "0.5", "--top-k", "3", "--top-p", "0.25", "--seed", "4"]
    assert cli.main(["generate", str(folder / "run"), *options, "--no-cache"]) == 0
    assert (received["max_tokens"], received["cache"]) == (7, False)
    assert received["sampling"] == Sampling(temperature=0.5, top_k=3, top_p=0.25)
    assert received["generator"].initial_seed() == 4


def test_the_prompt_is_printed_before_the_generated_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [folder / "run", "--prompt", "the", "--max-tokens", "30", "--num-samples", "2"]
    texts = generated(capsys, *arguments)
    assert len(texts) == 2
    assert texts[0]["tokens"] != texts[1]["tokens"]
    assert texts[0] == generated(capsys, *arguments[:-2])[0]
    assert all(text["ended_by"] in ("max_tokens", "end_of_text") for text in texts)
    code, out, _ = call(capsys, "generate", *arguments)
    assert (code, out) == (0, "\n---\n".join("the" + text["text"] for text in texts) + "\n")


def test_a_stop_string_at_the_last_token_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [folder / "run", "--prompt", "the", "--temperature", "0"]
    (text,) = generated(capsys, *arguments, "--max-tokens", "1")
    (stopped,) = generated(capsys, *arguments, "--max-tokens", "1", "--stop", text["text"])
    assert (text["ended_by"], stopped["ended_by"], stopped["text"]) == ("max_tokens", "stop", "")
    assert stopped["tokens"] == text["tokens"]


def test_text_is_printed_token_by_token(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *words, flush=False, **_: printed.append(f"{words[0]}{flush}"))
    cli.main(["generate", str(folder / "run"), "--prompt", "the", "--max-tokens", "5"])
    assert len(printed) == 1 + 5 + 1
    assert all(words.endswith("True") for words in printed[:-1])


def test_a_prompt_may_be_empty_or_come_from_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "prompt.txt").write_text("the mat")
    (text,) = generated(capsys, folder / "run", "--prompt-file", folder / "prompt.txt", "--max-tokens", "9")
    assert text == generated(capsys, folder / "run", "--prompt", "the mat", "--max-tokens", "9")[0]
    assert generated(capsys, folder / "run", "--max-tokens", "3")[0]["prompt"] == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "run", "--prompt", "x" * 99], "the prompt has 99 tokens, more than the model's context of 16"),
        (["generate", "run", "--prompt", "a", "--prompt-file", "cats.txt"], "a prompt and a prompt file are given"),
        (["generate", "run", "--prompt-file", "absent.txt"], "absent.txt: cannot be read"),
        (
            ["generate", "run", "--temperature", "0", "--seed", "3"],
            "--seed 3 has no effect with --temperature 0",
        ),
        (["generate", "run", "--temperature", "0", "--top-k", "3"], "--top-k 3 has no effect with --temperature 0"),
        (["generate", "run", "--temperature", "-1"], "--temperature is -1.0; expected a finite number of at least 0"),
        (["generate", "run", "--top-p", "0"], "--top-p is 0.0; expected a number above 0 and at most 1"),
        (["generate", "run", "--top-p", "1.5"], "--top-p is 1.5"),
        (["generate", "run", "--top-k", "0"], "--top-k is 0; expected at least 1"),
        (["generate", "run", "--max-tokens", "0"], "--max-tokens is 0; expected at least 1"),
        (["generate", "run", "--num-samples", "0"], "--num-samples is 0; expected at least 1"),
        (["generate", "run", "--seed", "-1"], "--seed is -1; expected an integer from 0 to 4294967295"),
        (["generate", "images"], "images is a run of the task 'images'; expected 'text'"),
        (["generate", "nowhere"], "nowhere is no folder; expected a run folder"),
        (["generate"], "RUN is missing: The run folder"),
        (["train", "text", "absent.txt", *TINY], "no text at 'absent.txt': did you mean"),
        (["train", "text", *TINY], "no text is given"),
        (["train", "text", "latin.txt", *TINY], "latin.txt: is no UTF-8 text: byte 0xe9 at offset 3"),
        (["train", "text", "cats.txt", "--task.context", "0"], "--task.context is 0"),
        (
            ["train", "text", "cats.txt", *TINY, "--task.vocab-size", "9"],
            "--task.vocab-size is 9; expected at least",
        ),
        (["predict", "run", "latin.txt"], "latin.txt: is no UTF-8 text"),
        (
            ["predict", "run", "rows.jsonl"],
            "rows.jsonl: no column with a usual name (text, content, document); the columns are a, b: name one "
            "(--task text-column)",
        ),
        (["evaluate", "run", "--task", "text-column=a"], "--task text-column=a chooses other training data"),
        (["evaluate", "run", "--task", "model.depth=2"], "--task model.depth=2 makes another model"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "rows.jsonl").write_text('{"a": "the cat", "b": "the mat"}')
    for name in ("run", "images", "cats.txt"):
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    check_refused(capsys, tmp_path, message, *arguments)


def test_predictions_of_rows_read_the_named_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rows.jsonl").write_text('{"a": "the cat", "b": "the mat"}')
    code, out, err = call(capsys, "predict", folder / "run", folder / "rows.jsonl", "--task", "text-column=a")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 2


def test_a_model_and_its_kernel_are_chosen_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cats.txt").write_text(TEXT)
    chosen = ["--task.model.stack.kernel.rank", "3", "--task.model", "itnet", "--task.model.stack.kernel=low-rank"]
    sizes = [word.replace("task.model.", "task.model.stack.") for word in TINY]
    run = tmp_path / "run"
    code, _, err = call(capsys, "train", "text", tmp_path / "cats.txt", "--run-dir", run, *chosen, *sizes)
    assert (code, err) == (0, "")
    model = json.loads((run / "config.json").read_text())["run"]["task"]["model"]
    assert model["type"] == "ITNetLanguageModel.Config"
    assert (model["stack"]["kernel"]["type"], model["stack"]["kernel"]["rank"]) == ("LowRankConfig", 3)
    (text,) = generated(capsys, run, "--prompt", "the", "--max-tokens", 5, "--stop", "zzz")
    assert text["ended_by"] in ("max_tokens", "end_of_text")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--task.model", "gpt3"), "--task.model is 'gpt3'; expected one of aether, ckcnntext, gpt2, itnet"),
        (
            ("--task.model", "itnet", "--task.model.stack.kernel", "low-rnk"),
            "--task.model.stack.kernel is 'low-rnk'; expected one of mlp, low-rank",
        ),
        (
            ("--task.model", "itnet", "--task.model.stack.kernel", "l"),
            "--task.model.stack.kernel is 'l'; expected one of low-rank, linear-attention",
        ),
    ],
)
def test_an_unknown_kind_is_one_line(
    option: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused(capsys, tmp_path, message, "train", "text", str(tmp_path / "cats.txt"), *option)
