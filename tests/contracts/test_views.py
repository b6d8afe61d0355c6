"""Every task shows its held-out examples with views that fit the data, and shown predictions depend on the model."""

import pytest
import torch

from fredholm.tasks import TASKS, Task
from fredholm.tasks.views import (
    FieldView,
    GraphView,
    ImageView,
    MaskView,
    PointsView,
    SeriesView,
    ShownExample,
    TextView,
    View,
    around,
    function_view,
)
from tests.contracts.task_settings import small_tasks

pytest.importorskip("kornia")
pytest.importorskip("tokenizers")
pytest.importorskip("trimesh")

VIEWS: dict[str, set[type]] = {
    "images": {ImageView},
    "text": {TextView},
    "masked": {TextView},
    "sentences": {TextView},
    "words": {TextView},
    "table": {ImageView, SeriesView, TextView},
    "series": {SeriesView},
    "forecast": {SeriesView},
    "segmentation": {ImageView, MaskView},
    "field": {SeriesView, PointsView, FieldView},
    "operator": {SeriesView, PointsView, FieldView},
    "points": {PointsView},
    "graphs": {GraphView},
    "nodes": {GraphView},
    "links": {GraphView},
    "image-text": {ImageView, TextView},
}
"""The kinds of views that each task may show."""
ANSWERS = {"text", "masked", "forecast", "segmentation", "field", "operator", "links"}
"""Tasks whose predictions appear in views."""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    return {config.build.__qualname__: config.build() for config in small_tasks(tmp_path_factory.mktemp("data"))}


def values_of(view: View) -> list[torch.Tensor]:
    """All values that a view draws."""
    match view:
        case ImageView(pixels=pixels):
            return [pixels]
        case MaskView(labels=labels):
            return [labels]
        case TextView(parts=parts):
            return [torch.tensor([part.weight or 0.0 for part in parts])]
        case SeriesView(lines=lines):
            return [line.y for line in lines]
        case GraphView(edges=edges):
            return [edges]
        case PointsView(pos=pos, values=values, kinds=kinds):
            return [pos, *(each for each in (values, kinds) if each is not None)]
        case FieldView(values=values):
            return [values]


def check_view(view: View) -> None:
    match view:
        case ImageView(pixels=pixels):
            assert pixels.dtype == torch.uint8
            assert pixels.ndim == 3
        case MaskView(labels=labels, classes=classes):
            assert labels.ndim == 2
            assert int(labels.max()) < len(classes)
        case TextView(parts=parts):
            assert "".join(part.text for part in parts).strip()
        case SeriesView(lines=lines):
            assert lines
            for line in lines:
                assert line.x.shape == line.y.shape
                assert bool((line.x.diff() >= 0).all())
        case GraphView() as graph:
            assert graph.edges.numel() == 0 or int(graph.edges.max()) < graph.num_nodes
            assert graph.kinds is None or graph.kinds.shape == (graph.num_nodes,)
            assert all(0 <= node < graph.num_nodes for node in graph.marked)
        case PointsView(pos=pos):
            assert pos.ndim == 2
            assert pos.shape[1] in (2, 3)
        case FieldView(values=values):
            assert values.ndim == 2


def test_every_task_has_a_row() -> None:
    assert VIEWS.keys() == {task.command for task in TASKS}


@pytest.mark.filterwarnings("ignore:.*taken both ways")
def test_every_task_shows_its_examples(tasks: dict[str, Task]) -> None:
    seen = set()
    for task in tasks.values():
        seen.add(task.command)
        split = "test" if task.num_held_out("test") else "valid"
        torch.manual_seed(0)
        models = [task.model().eval() for _ in range(2)]
        last = task.num_held_out(split) - 1
        known = task.shown_example(split, last)
        assert known.name
        shown = [task.shown_example(split, last, model) for model in models]
        for example in (known, *shown):
            assert example.views, task.command
            assert {type(view) for view in example.views} <= VIEWS[task.command], task.command
            for view in example.views:
                check_view(view)
        answers = [numbers(example) for example in shown]
        titles = [[view.title for view in example.views] for example in shown]
        differ = titles[0] != titles[1] or not all(map(torch.equal, *answers))
        assert differ == (task.command in ANSWERS), task.command
        if task.num_held_out(split) > 1 and task.command not in ("masked",):
            first = task.shown_example(split, 0)
            assert first.name != known.name or repr(first.views) != repr(known.views)
    assert seen == VIEWS.keys()


def numbers(example: ShownExample) -> list[torch.Tensor]:
    return [each.nan_to_num() for view in example.views for each in values_of(view)]


def test_the_shown_image_has_the_requested_index(tasks: dict[str, Task]) -> None:
    task = next(task for task in tasks.values() if task.command == "images")
    batch = task.held_out_batch("test", torch.tensor([1]))["images"][0]
    (view,) = task.shown_example("test", 1).views
    assert isinstance(view, ImageView)
    pixels = view.pixels.float() / 255
    scaled = (pixels - pixels.mean()) / pixels.std()
    torch.testing.assert_close((batch - batch.mean()) / batch.std(), scaled, rtol=1e-4, atol=1e-4)


def test_the_shown_sentence_has_the_requested_index(tasks: dict[str, Task]) -> None:
    from fredholm.tasks import SentenceLearning

    task = next(task for task in tasks.values() if isinstance(task, SentenceLearning))
    split = "test" if task.num_held_out("test") else "valid"
    for index in range(task.num_held_out(split)):
        (view, *_) = task.shown_example(split, index).views
        assert isinstance(view, TextView)
        tokens = task.held_out_batch(split, torch.tensor([index]))["tokens"][0]
        laid = task.tokenizer.lay_out(view.parts[0].text, None, 64).tokens
        assert tokens[: len(laid) - 1].tolist() == laid[:-1].tolist()


def test_nodes_around_others_come_in_order_of_their_distance_in_hops() -> None:
    line = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    assert around(line, 6, (2,), most=4).tolist() == [2, 1, 3, 0]
    assert around(line, 6, (5, 5)).tolist() == [5, 4, 3, 2, 1, 0]
    assert around(line[:, :2], 6, (5,)).tolist() == [5]


def test_a_function_on_a_grid_is_laid_out_by_its_positions() -> None:
    pos = torch.cartesian_prod(torch.arange(3.0), torch.arange(2.0)).double()
    order = torch.tensor([4, 1, 0, 5, 3, 2])
    view = function_view(pos[order], torch.arange(6.0)[order], "truth", "u", "truth")
    assert isinstance(view, FieldView)
    assert view.values.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert isinstance(function_view(pos[:5], torch.arange(5.0), "truth", "u", "truth"), PointsView)
    curve = function_view(pos[order][:, :1], torch.arange(6.0)[order], "truth", "u", "truth")
    assert isinstance(curve, SeriesView)
    assert curve.lines[0].x.tolist() == [0, 0, 1, 1, 2, 2]
