"""Relevance maps over patches: their definition, degradation curves, detection, localisation and overlays."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fredholm import analysis
from tests.refusals import refused


def test_relevance_of_one_query_of_all_and_of_a_rollout() -> None:
    weights = torch.rand(2, 3, 7, 7)
    weights[:, 2] -= 0.5
    mean = weights.mean(1)[..., 1:].clamp_min(0)
    torch.testing.assert_close(
        analysis.patch_relevance(weights, (2, 3)).flatten(1), mean[:, 0] / mean[:, 0].sum(1, keepdim=True)
    )
    pooled = weights.mean((1, 2))[:, 1:].clamp_min(0)
    torch.testing.assert_close(
        analysis.patch_relevance(weights, (2, 3), query=None).flatten(1), pooled / pooled.sum(1, keepdim=True)
    )
    torch.testing.assert_close(
        analysis.patch_relevance(weights.mean(1), (2, 3), 4), analysis.patch_relevance(weights, (2, 3), 4)
    )
    assert not analysis.patch_relevance(torch.zeros(1, 1, 7, 7), (2, 3)).any()


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        (torch.rand(2, 3, 5, 5), {}, ["N >= 2 x 3", "(2, 3, 5, 5)"]),
        (torch.rand(7, 7), {}, ["(7, 7)"]),
        (torch.rand(1, 7, 7), {"query": 7}, ["one of 7 queries", "got 7"]),
        (torch.full((1, 7, 7), float("nan")), {}, ["NaN"]),
    ],
)
def test_weights_of_the_wrong_shape_are_refused(weights: Tensor, options: dict[str, Any], message: list[str]) -> None:
    with refused(ValueError, *message):
        analysis.patch_relevance(weights, (2, 3), **options)


def brightness(images: Tensor) -> Tensor:
    return images.sum((1, 2, 3))


@pytest.mark.parametrize("order", ["morf", "lerf"])
def test_a_curve_equals_a_loop_over_patches(order: Any) -> None:
    """Confidence is a sum over patches, so removing a patch subtracts its share."""
    images, relevance = torch.rand(2, 1, 4, 6), torch.tensor([[[3.0, 1, 2], [0, 5, 4]], [[1.0, 1, 1], [7, 0, 0]]])
    curve = analysis.degradation_curve(brightness, images, relevance, order=order, fill="zero")
    goes = [[4, 5, 0, 2, 1, 3], [3, 0, 1, 2, 4, 5]] if order == "morf" else [[3, 1, 2, 0, 5, 4], [4, 5, 0, 1, 2, 3]]
    for entry in range(2):
        image, left = images[entry].clone(), [brightness(images)[entry].item()]
        for patch in goes[entry]:
            row, column = divmod(patch, 3)
            image[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 0
            left.append(image.sum().item())
        assert curve.confidence[entry].tolist() == pytest.approx(left, abs=1e-5)
        area = sum((a + b) / 2 / 6 for a, b in itertools.pairwise(left))
        assert curve.auc[entry].item() == pytest.approx(area, rel=1e-5)
        assert curve.aoc[entry].item() == pytest.approx(1 - area, rel=1e-5)
    assert curve.removed.tolist() == pytest.approx([k / 6 for k in range(7)])


def test_fewer_steps_remove_more_patches_each() -> None:
    images, relevance = torch.rand(1, 3, 4, 6), torch.rand(1, 2, 3)
    every = analysis.degradation_curve(brightness, images, relevance)
    four = analysis.degradation_curve(brightness, images, relevance, steps=4)
    assert four.removed.tolist() == pytest.approx([0, 2 / 6, 3 / 6, 4 / 6, 1])
    torch.testing.assert_close(four.confidence, every.confidence[:, [0, 2, 3, 4, 6]])


def test_equally_relevant_patches_are_removed_in_reading_order() -> None:
    lit = torch.arange(400.0).view(1, 1, 20, 20)
    for order in ("morf", "lerf"):
        curve = analysis.degradation_curve(brightness, lit, torch.ones(1, 20, 20), order=order, fill="zero")
        torch.testing.assert_close(-curve.confidence[0].diff(), torch.arange(400.0))


def test_removed_patches_are_filled_as_configured() -> None:
    images, relevance = torch.rand(2, 3, 8, 8), torch.rand(2, 2, 2)
    filled: dict[str, Tensor] = {}
    for fill in ("mean", "zero", "blur"):

        def keep(images: Tensor, fill: str = fill) -> Tensor:
            filled[fill] = images
            return images[:, 0, 0, 0]

        analysis.degradation_curve(keep, images, relevance, fill=fill)  # the last step has every patch removed
    assert not filled["zero"].any()
    torch.testing.assert_close(filled["mean"], images.mean((2, 3), keepdim=True).expand_as(images))
    place = torch.arange(8.0)
    gauss = torch.exp(-((place[:, None] - place) ** 2) / (2 * 2.0**2))  # half of 4 pixels
    gauss = gauss / gauss.sum(1, keepdim=True)
    torch.testing.assert_close(filled["blur"], torch.einsum("yi,xj,bcij->bcyx", gauss, gauss, images))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "first"}, ["order is one of ('morf', 'lerf')", "got 'first'"]),
        ({"fill": "noise"}, ["fill is one of", "got 'noise'"]),
        ({"steps": 7}, ["from 1 to 6", "got 7"]),
        ({"relevance": torch.rand(2, 3, 3)}, ["rows and columns that divide", "(2, 3, 3)"]),
        ({"relevance": torch.full((2, 2, 3), float("inf"))}, ["NaN or infinite"]),
        ({"confidence": lambda images: images}, ["2 finite values", "(2, 1, 4, 6)"]),
        ({"confidence": lambda images: images.sum((1, 2, 3)) / 0}, ["2 finite values"]),
    ],
)
def test_bad_inputs_of_a_curve_are_refused(options: dict[str, Any], message: list[str]) -> None:
    arguments = {"confidence": brightness, "images": torch.rand(2, 1, 4, 6), "relevance": torch.rand(2, 2, 3)} | options
    with refused(ValueError, *message):
        analysis.degradation_curve(**arguments)


def counted_auc(scores: Tensor, labels: Tensor) -> float:
    """The probability that foreground scores above background, ties counting half: ROC-AUC by counting pairs."""
    pairs = [(p, n) for p in scores[labels].tolist() for n in scores[~labels].tolist()]
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)


@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_detection_equals_scikit_learn_and_a_count(levels: int) -> None:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.rand(23, generator=generator) < 0.4
        scores = ((torch.rand(23, generator=generator) + 0.3 * labels) * levels).floor() / levels  # with ties
        found = analysis.detection_curves(scores, labels)
        assert found.roc_auc.item() == pytest.approx(counted_auc(scores, labels))
        for k, threshold in enumerate(found.thresholds, start=1):
            flagged = scores >= threshold
            true = int((flagged & labels).sum())
            assert found.precision[k].item() == pytest.approx(true / int(flagged.sum()))
            assert found.true_positive_rate[k].item() == pytest.approx(true / int(labels.sum()))
            assert found.false_positive_rate[k].item() == pytest.approx(
                int((flagged & ~labels).sum()) / int((~labels).sum())
            )
        metrics = pytest.importorskip("sklearn.metrics")
        assert found.average_precision.item() == pytest.approx(metrics.average_precision_score(labels, scores))
        precision, recall, _ = metrics.precision_recall_curve(labels, scores)
        assert found.pr_auc.item() == pytest.approx(metrics.auc(recall, precision))
        false, true, _ = metrics.roc_curve(labels, scores, drop_intermediate=False)
        np.testing.assert_allclose(found.false_positive_rate, false)
        np.testing.assert_allclose(found.true_positive_rate, true)


def test_localisation_is_computed_per_image() -> None:
    labels = torch.tensor([[[True, False], [False, False]], [[True, True], [True, False]]])
    relevance = torch.tensor([[[0.9, 0.1], [0.0, 0.0]], [[0.1, 0.1], [0.1, 0.7]]])
    found = analysis.localisation(relevance, labels)
    assert found.roc_auc.tolist() == [1.0, 0.0]
    assert found.average_precision.tolist() == pytest.approx([1.0, 0.75])
    with refused(ValueError, "foreground and background", "4 of 4 labels"):
        analysis.localisation(relevance[:1], labels[:1] | True)
    with refused(ValueError, "both be (B, rows, columns)"):
        analysis.localisation(relevance, labels[:1])
    with refused(TypeError, "must be bool", "int64"):
        analysis.detection_curves(relevance, labels.long())
    with refused(ValueError, "one shape", "(2, 2, 2) and (1, 2, 2)"):
        analysis.detection_curves(relevance, labels[:1])
    with refused(ValueError, "NaN"):
        analysis.detection_curves(relevance / 0, labels)


def test_a_patch_is_foreground_by_its_fraction() -> None:
    mask = torch.zeros(1, 4, 6, dtype=torch.bool)
    mask[0, :2, :3] = True  # one and a half patches
    assert analysis.patch_labels(mask, (2, 3))[0].tolist() == [[True, True, False], [False] * 3]
    assert analysis.patch_labels(mask, (2, 3), fraction=0.51)[0].tolist() == [[True, False, False], [False] * 3]
    with refused(ValueError, "fraction must be in (0, 1]", "got 0"):
        analysis.patch_labels(mask, (2, 3), fraction=0)
    with refused(ValueError, "3 x 3 patches divide", "(1, 4, 6)"):
        analysis.patch_labels(mask, (3, 3))
    with refused(ValueError, "shares in [0, 1]"):
        analysis.patch_labels(3.0 * mask, (2, 3))


def test_boxes_cover_pixels_in_proportion_to_area() -> None:
    boxes = torch.tensor([[0.5, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 9.0]])
    expected = [[0, 0, 0, 0], [0.5, 1, 0, 0], [0.5, 1, 1, 0], [0, 1, 1, 0]]
    assert analysis.box_mask(boxes, (4, 4)).tolist() == expected
    assert not analysis.box_mask(torch.zeros(0, 4), (2, 3)).any()
    assert analysis.patch_labels(analysis.box_mask(boxes, (4, 4))[None], (2, 2))[0].tolist() == [
        [False, False],
        [True, True],
    ]
    with refused(ValueError, "left < right"):
        analysis.box_mask(torch.tensor([[2.0, 0.0, 1.0, 1.0]]), (4, 4))
    with refused(ValueError, "(n, 4)", "(4,)"):
        analysis.box_mask(boxes[0], (4, 4))


def test_an_overlay_blends_image_and_map_and_can_be_saved(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    image, relevance = torch.rand(1, 4, 6), torch.tensor([[0.0, 2.0], [4.0, 1.0]])
    heat = torch.nn.functional.interpolate(relevance[None, None] / 4, size=(4, 6), mode="bilinear")[0, 0]
    coloured = torch.from_numpy(matplotlib.colormaps["viridis"](heat.numpy())[..., :3]).float().movedim(-1, 0)
    mixed = analysis.overlay(image, relevance, opacity=0.3, colours="viridis")
    torch.testing.assert_close(mixed, 0.7 * image.expand(3, -1, -1) + 0.3 * coloured)
    torch.testing.assert_close(analysis.overlay(image, relevance, opacity=0.0), image.expand(3, -1, -1))
    none = torch.tensor(matplotlib.colormaps["viridis"](0.0)[:3])[:, None, None].expand(3, 4, 6)
    torch.testing.assert_close(
        analysis.overlay(image, torch.zeros(2, 2), opacity=1.0, colours="viridis"), none, check_dtype=False
    )
    path = tmp_path / "maps.png"
    analysis.save_overlays(path, image[None], {"one": relevance[None], "other": torch.rand(1, 2, 3)})
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert np.asarray(picture).std() > 0


def test_bad_inputs_of_overlays_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, relevance = torch.rand(3, 4, 4), torch.rand(2, 2)
    with refused(ValueError, "(1 or 3, H, W)", "(2, 4, 4)"):
        analysis.overlay(image[:2], relevance)
    with refused(ValueError, ">= 0"):
        analysis.overlay(image, -relevance)
    with refused(ValueError, "opacity must be in [0, 1]", "1.5"):
        analysis.overlay(image, relevance, opacity=1.5)
    with refused(ValueError, "no colour map 'sepia'"):
        analysis.overlay(image, relevance, colours="sepia")
    with refused(ValueError, "'map' (2, 2)"):
        analysis.save_overlays(tmp_path / "x.png", image[None], {"map": relevance})
    with refused(ValueError, "an image and a map"):
        analysis.save_overlays(tmp_path / "x.png", image[None], {})
    with refused(TypeError, "relevance must be maps by name, {name: (B, rows, columns)}; got Tensor"):
        analysis.save_overlays(tmp_path / "x.png", image[None], relevance[None])  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with refused(ImportError, 'pip install "fredholm[viz]"'):
        analysis.overlay(image, relevance)
