"""The command line on graphs, nodes and links: train, evaluate, predict."""

import json
import shutil
from pathlib import Path

import pytest

from fredholm import cli
from fredholm.training import Run
from tests.command_line import call, check_refused
from tests.tasks.graphs.build import rings, two_groups, write_several, write_tu

SHORT = ("--training.epochs", "2", "--training.batch-size", "16", "--training.no-tensorboard")
STACKS = {"graphs": "--task.model.stack", "nodes": "--task.model", "links": "--task.model"}
"""Option of each task that holds its network."""


def tiny(word: str, **settings: str) -> list[str]:
    """Options for a short run of a small network; `settings` are options of its stack, such as num-heads."""
    named = {f"{STACKS[word]}.{name}": value for name, value in {"embed-dim": "8", "depth": "1", **settings}.items()}
    kind = ["--task.model", "graph-stack"] if word == "graphs" else []
    return [*kind, *(each for option in named.items() for each in option), *SHORT]


HEADS = {"num-heads": "2"}
NARROW = {"kernel.kernel.width": "4", **HEADS}


def trained(folder: Path, word: str, data: Path, *more: str, **settings: str) -> Path:
    """Trains a short run and returns its folder."""
    assert cli.main(["train", word, str(data), "--run-dir", str(folder / word), *tiny(word, **settings), *more]) == 0
    return folder / word


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graphs and runs on them."""
    folder = tmp_path_factory.mktemp("graphs")
    trained(folder, "graphs", rings(folder / "rings"), "--task.num-folds", "4", "--task.fold", "1", **NARROW)
    trained(folder, "nodes", two_groups(folder / "groups"))
    trained(folder, "links", folder / "groups", **NARROW)
    (folder / "pairs.csv").write_text("source,target\nn0,n9\nn1,n20\n")
    return folder


@pytest.mark.parametrize(
    ("word", "metric", "counts"),
    [("graphs", "accuracy", [3, 6]), ("nodes", "accuracy", [3, 6]), ("links", "auroc", [9, 19])],
)
def test_evaluate_on_both_splits(
    word: str, metric: str, counts: list[int], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split, count in zip(("valid", "test"), counts, strict=True):
        code, out, err = call(capsys, "evaluate", folder / word, "--json", "--split", split)
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert found["examples"] == count
        assert 0 <= found[metric] <= 1
    code, out, _ = call(capsys, "evaluate", folder / word)
    assert out.startswith(f"test {metric}: ")


@pytest.mark.parametrize(
    ("word", "file", "columns", "count"),
    [
        ("graphs", "rings", ["file", "graph", "class", "probability"], 24),
        ("nodes", "groups", ["file", "node", "class", "probability"], 30),
        ("links", "pairs.csv", ["file", "source", "target", "probability"], 2),
    ],
)
def test_predict(
    word: str, file: str, columns: list[str], count: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "predict", folder / word, folder / file, "--format", "json")
    rows = json.loads(out)
    assert (code, err, len(rows)) == (0, "", count)
    assert all(list(row) == columns for row in rows)


def test_links_are_predicted_on_a_graph_at_another_path(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = call(capsys, "predict", folder / "links", folder / "pairs.csv")
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "push", folder / "links", "saved")[0] == 0
    command = ["predict", "saved", str(folder / "pairs.csv")]
    code, _, err = call(capsys, *command)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: predicting links needs the graph of the run: no graphs at 'groups'")
    assert "say where it lies by --task data=PATH" in err
    assert call(capsys, *command, "--task", f"data={folder / 'groups'}") == printed


def test_a_folder_of_a_collection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels of nodes and edges in a graph collection are features, in predictions too."""
    indicator = "".join(f"{i // 2 + 1}\n" for i in range(40))
    edges = "".join(f"{i + 1}, {i + 2}\n{i + 2}, {i + 1}\n" for i in range(0, 40, 2))
    tables = {"graph_indicator": indicator, "A": edges, "node_labels": "".join(f"{i % 3}\n" for i in range(40))}
    tables |= {"graph_labels": "".join(f"{i % 2}\n" for i in range(20)), "edge_labels": "0\n0\n1\n1\n" * 10}
    data = write_tu(tmp_path / "toy", node_attributes="", **tables)
    run = trained(tmp_path, "graphs", data)
    capsys.readouterr()
    code, out, err = call(capsys, "evaluate", run, "--json")
    assert (code, err, json.loads(out)["examples"]) == (0, "", 4)
    shutil.rmtree(data)
    few = write_tu(tmp_path / "few", node_attributes="", node_labels="0\n1\n0\n1\n1\n", graph_labels="")
    code, out, err = call(capsys, "predict", run, few, "--format", "json")
    rows = json.loads(out)
    assert (code, err, [row["graph"] for row in rows]) == (0, "", ["1", "2"])
    assert {row["class"] for row in rows} <= {"0", "1"}


def test_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, "graphs", rings(tmp_path / "sizes", targets=True))
    assert "mean_absolute_error" in capsys.readouterr().out
    code, out, _ = call(capsys, "predict", run, tmp_path / "sizes")
    assert code == 0
    assert len(out.splitlines()[0].split("\t")) == 3


@pytest.mark.parametrize("kernel", ["constant", "additive-attention"])
def test_another_kernel_needs_no_other_heads(
    kernel: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ("--init", folder / "graphs", "--run-dir", tmp_path / "run", *SHORT)
    chosen = (f"{STACKS['graphs']}.kernel", "on-edges", f"{STACKS['graphs']}.kernel.kernel", kernel)
    code, _, err = call(capsys, "train", "graphs", folder / "rings", *start, *chosen)
    assert (code, err) == (0, "")
    stack = Run(tmp_path / "run").config.task.stack
    assert (stack.num_heads, stack.has_heads) == ((2, True) if kernel == "additive-attention" else (None, False))


def test_networks_without_heads_are_sized_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word, data in (("graphs", "rings"), ("nodes", "groups")):
        network = ["--task.model", "graph-stack"] if word == "graphs" else ["--task.node-machine", "0"]
        command = ("train", word, folder / data, *network, STACKS[word], "message-passing", "--dry-run")
        code, out, err = call(capsys, *command)
        assert (code, err) == (0, "")
        assert "MessagePassing with" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "graphs", *tiny("graphs")], "no graphs are given"),
        (["train", "graphs", "none", *tiny("graphs")], "no graphs at 'none'"),
        (
            ["train", "nodes", "rings", *tiny("nodes")],
            "rings has no labels of nodes and no targets; fredholm train graphs predicts those of graphs",
        ),
        (
            ["train", "graphs", "groups", *tiny("graphs")],
            "groups has no labels and no targets of graphs; fredholm train nodes",
        ),
        (
            ["train", "graphs", "bad", *tiny("graphs")],
            "bad/edges.csv, line 3: weight -1; expected a finite number of at least 0",
        ),
        (["train", "graphs", "rings", *tiny("graphs"), "--task.fold", "1"], "--task.fold 1 has no effect with"),
        (
            ["train", "nodes", "groups", *tiny("nodes", **HEADS)],
            "--task.model.num-heads 2 has no effect with the default --task.model.kernel on-edges (constant); leave",
        ),
        (
            ["predict", "graphs", "groups"],
            "groups/nodes.csv, line 1: no column 'heat'; the columns are id, label, x, y",
        ),
        (["predict", "links", "rings/graphs.csv"], "rings/graphs.csv, line 1: no column 'source'"),
        (["evaluate", "graphs", "--task", "num-folds=5"], "--task num-folds=5 chooses other training data"),
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
    write_several(tmp_path / "bad", edges="graph,source,target,weight\ntri,1,2,1\ntri,2,3,-1\n")
    for name in ("graphs", "links", "rings", "groups"):
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    check_refused(capsys, tmp_path, message, *arguments)
