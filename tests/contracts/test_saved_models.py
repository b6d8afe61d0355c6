"""Every public model is saved and loaded with the same outputs."""

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from fredholm import encoders, from_pretrained, models
from fredholm.kernels import Kernel
from fredholm.models.closed_form_model import ClosedFormModel
from fredholm.models.saved_model import SavedModel, known_classes
from fredholm.storage.config_json import from_json, to_json
from tests.contracts.instances import ROWS as KERNELS
from tests.contracts.instances import table_kernel
from tests.contracts.settings import Subject, _add_noise, equal
from tests.contracts.test_settings import MODELS, TOKEN_STACK, noise
from tests.refusals import refused


def built(subject: Subject, start: dict[str, Any]) -> Any:
    """The model of a subject with random parameters; None where the subject builds no model."""
    settings = {name: value.make() if hasattr(value, "make") else value for name, value in start.items()}
    torch.manual_seed(0)
    model = (subject.make or subject.of)(**settings)
    if not isinstance(model, SavedModel):
        return None
    _add_noise(model)
    return model.eval()


def each_image() -> models.EachImage:
    images = encoders.Image.Config(image_size=(4, 6), patch_size=2, channels=1, num_frequencies=2)
    encoder = encoders.ImageText(encoders.Image(images, 4), None)
    return models.EachImage(models.ITNet(encoder, 4, TOKEN_STACK), num_images=2)


SETTINGS = {
    f"{subject.name}: {mode}": (subject, start) for subject in MODELS for mode, start in subject.starts().items()
}
KINDS = {row: type(built(*settings)) for row, settings in SETTINGS.items()}
ROWS = {row: settings for row, settings in SETTINGS.items() if issubclass(KINDS[row], SavedModel)}
NARROW = (torch.float32, torch.bfloat16)
CLOSED_FORM = [row for row in ROWS if issubclass(KINDS[row], ClosedFormModel)]
LIKE_INPUTS = [row for row in CLOSED_FORM if issubclass(KINDS[row], models.FunctionRegression)]
"""Models that answer in the dtype of their inputs, as networks from functions to functions do."""


def probed(subject: Subject, model: SavedModel) -> list[object]:
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(subject.probe(model))


@pytest.mark.parametrize("row", ROWS)
def test_a_loaded_model_equals_the_saved_one(row: str, tmp_path: Path) -> None:
    subject, start = ROWS[row]
    model = built(subject, start)
    probed(subject, model)  # a call may leave caches, which are not saved
    model.save_pretrained(tmp_path / "saved")
    again = from_pretrained(tmp_path / "saved")
    assert type(again) is type(model)
    assert isinstance(again, SavedModel)
    expected, found = model.state_dict(), again.state_dict()
    assert expected.keys() == found.keys()
    assert all(equal(expected[name], found[name]) for name in expected)
    for before, after in zip(probed(subject, model), probed(subject, again), strict=True):
        assert equal(before, after)


@pytest.mark.parametrize("row", CLOSED_FORM)
def test_numbers_computed_from_data_are_never_rounded(row: str) -> None:
    """Models in 16 bits, under autocast and with 16-bit inputs, are fitted and predict as in float32, in float32."""
    subject, start = ROWS[row]
    whole, half = built(subject, start), built(subject, start).bfloat16()
    assert half.state_dict().keys() == whole.state_dict().keys()
    assert all(equal(tensor, half.state_dict()[name]) for name, tensor in whole.state_dict().items())
    outputs, answers = list[list[Tensor]](), set[torch.dtype]()
    for model, dtypes in ((whole, (torch.bfloat16, torch.float32)), (half, (torch.bfloat16,))):
        model.register_forward_hook(lambda _, __, found: answers.update(each.dtype for each in tree_leaves(found)))
        for dtype in reversed(dtypes):  # the last hook runs first
            model.register_forward_pre_hook(partial(inputs_in, dtype), with_kwargs=True, prepend=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=model is half):
            found = tree_leaves(probed(subject, model))
        outputs.append([each for each in found if isinstance(each, Tensor)])
    assert outputs[0]
    for before, after in zip(*outputs, strict=True):
        torch.testing.assert_close(after, before.to(after.dtype), rtol=1e-6, atol=1e-6, equal_nan=True)
    assert answers <= {torch.float32} or row in LIKE_INPUTS


def test_numbers_computed_from_data_move_to_a_device_without_rounding() -> None:
    whole = built(*ROWS["RidgeHead: base"])
    before = {name: each.dtype for name, each in whole.state_dict().items()}
    found = whole.to("meta", torch.bfloat16).state_dict()
    assert {name: each.dtype for name, each in found.items()} == before
    assert {each.device.type for each in found.values()} == {"meta"}


def inputs_in(dtype: torch.dtype, _: Any, args: Any, kwargs: Any) -> Any:
    """Inputs cast to a dtype, except those in float64, such as times."""
    return tree_map_only(Tensor, lambda each: each.to(dtype) if each.dtype in NARROW else each, (args, kwargs))


def test_weights_are_read_in_16_bits_but_for_numbers_computed_from_data(tmp_path: Path) -> None:
    for number, (row, dtype) in enumerate(
        {"RidgeHead: base": torch.float32, "ViT.Config: base": torch.float16}.items()
    ):
        built(*ROWS[row]).save_pretrained(tmp_path / str(number))
        again = from_pretrained(tmp_path / str(number), dtype=torch.float16)
        assert {each.dtype for each in again.parameters()} == {dtype}


@pytest.mark.parametrize("row", ROWS)
def test_no_parameter_is_a_scalar(row: str) -> None:
    """`fully_shard` refuses scalar parameters."""
    assert [name for name, parameter in built(*ROWS[row]).named_parameters() if parameter.ndim == 0] == []


NO_GRAPH = {
    "MessagePassing.Config": "how its edges are grouped depends on which nodes they join",
    "GraphStackConfig": "how its edges are grouped depends on which nodes they join",
    "GraphMachine.Config": "how its edges are grouped depends on which nodes they join",
    "LinkMachine.Config": "the edges that are left out depend on the pairs",
    "BlendedNodes": "how its edges are grouped depends on which nodes they join",
    "NodeMachine.Config": "how its edges are grouped depends on which nodes they join",
    "NeighbourhoodBank.Config": "how its edges are grouped depends on which nodes they join",
    "FilterBank.Config": "samples at other times are resampled",
    "BlendedImageTexts": "the number of n-grams depends on the tokens",
    "TableMachine.Config": "the number of n-grams depends on the tokens",
    "TableReading": "the number of n-grams depends on the tokens",
    "ConditionalRandomField.Config": "the number of words depends on the values",
    "NGramBank.Config": "the number of n-grams depends on the tokens",
    "SampleMachine.Config": "each series is read by itself, which no graph holds",
    "BlendedSamples": "each series is read by itself, which no graph holds",
}
"""Reasons for which models refuse `torch.export`."""
TAKE_NO_TENSORS = {
    "BlendedOperator", "ContinuousStack", "FieldOperator.Config", "FunctionRegression.Config", "InContextRegressor",
    "RidgeHead",
}  # fmt: skip
"""Models whose probes call them with domains, or do not call them."""
QUICK = ("ViT.Config: base", "Mamba.Config: base")


@pytest.mark.parametrize("row", [row if row in QUICK else pytest.param(row, marks=pytest.mark.long) for row in ROWS])
def test_an_exported_graph_takes_any_batch_size(row: str) -> None:
    subject, start = ROWS[row]
    model, calls = built(subject, start), list[tuple[Any, ...]]()
    with model.register_forward_pre_hook(lambda _, inputs: calls.append(inputs)):
        probed(subject, model)
    found = [inputs for inputs in calls if all(isinstance(each, Tensor | None) for each in tree_leaves(inputs))]
    assert (not found) == (subject.name in TAKE_NO_TENSORS)
    if not found:
        return
    inputs = found[0]
    size = len(tree_leaves(inputs)[0])

    def is_batch(each: Tensor | None) -> bool:
        return each is not None and len(each) == size

    def inputs_of(batch: int) -> Any:
        rows = torch.arange(batch) % size
        return tree_map(lambda each: each.detach()[rows] if is_batch(each) else each, inputs)

    shapes = tree_map(lambda each: {0: torch.export.Dim.DYNAMIC} if is_batch(each) else None, inputs)
    if subject.name in NO_GRAPH:
        with refused(ValueError, NO_GRAPH[subject.name]):
            torch.export.export(model, inputs_of(2), dynamic_shapes=shapes)
        return
    with torch.no_grad():
        graph = torch.export.export(model, inputs_of(2), dynamic_shapes=shapes).module()
        torch.testing.assert_close(graph(*inputs_of(5)), model(*inputs_of(5)), rtol=1e-4, atol=1e-4)


def test_a_model_of_each_image_is_loaded(tmp_path: Path) -> None:
    model = each_image().eval()
    batch = encoders.ImageTextBatch(noise(3, 2, 1, 4, 6), torch.zeros(3, 0, dtype=torch.int64))
    model.save_pretrained(tmp_path / "saved")
    again = from_pretrained(tmp_path / "saved")
    found: list[Tensor] = [each(batch) for each in (model, again)]
    assert torch.equal(*found)


def test_a_model_of_joint_parts_is_loaded(tmp_path: Path) -> None:
    rows = encoders.TableRow(2, (3,), 4)
    parts = {"series": encoders.Series(2, 4, extent=4.0), "row": rows}
    encoder = encoders.Joint(parts, mass={"series": 2.0, "row": 1.0})
    model = models.ITNet(encoder, 4, TOKEN_STACK).eval()
    inputs = {"series": noise(3, 5, 2), "row": encoders.TableRowBatch(noise(3, 2), torch.tensor([[0], [2], [-1]]))}
    batch = encoders.JointBatch(inputs, {"series": torch.tensor([True, False, True])})
    model.save_pretrained(tmp_path / "saved")
    again = from_pretrained(tmp_path / "saved")
    found: list[Tensor] = [each(batch) for each in (model, again)]
    assert torch.equal(*found)


WITH_A_FUNCTION = {("LinearAttention", "softplus features"), ("FactorisedInfiniteAttention", "softplus features")}
"""Kernels with a function among their settings, which JSON cannot hold."""


@pytest.mark.parametrize(
    ("name", "variant"), [(name, variant) for name, row in KERNELS.items() for variant in row.variants]
)
def test_kernels_are_rebuilt_from_their_json(name: str, variant: str) -> None:
    kernel = table_kernel(name, variant, 1)
    if (name, variant) in WITH_A_FUNCTION:
        with refused(TypeError, "a config holds a function"):
            to_json(kernel)
        return
    found = json.loads(json.dumps(to_json(kernel)))
    again: Kernel = from_json(found, Kernel, known_classes()).double().eval()
    again.load_state_dict(kernel.state_dict())
    assert to_json(again) == found
    assert str(again) == str(kernel)


def test_every_model_has_a_row() -> None:
    walked = {type(built(*row)) for row in ROWS.values()} | {models.EachImage}
    saved = {kind for kind in known_classes() if issubclass(kind, SavedModel)}
    assert saved <= walked, saved - walked
