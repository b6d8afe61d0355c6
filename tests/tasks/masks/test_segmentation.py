import dataclasses
import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from fredholm.domains import Points
from fredholm.encoders import MultiScaleImage
from fredholm.models import AttentionConfig, ITNet, LowRankConfig, MLPConfig, RecurrenceConfig
from fredholm.operators import collect_auxiliary_losses
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import Segmentation, Task
from fredholm.tasks.masks import read_mask, segmentation
from fredholm.tasks.masks.augmentation import MaskAugmentation
from fredholm.tasks.masks.mask_set import MaskedImages
from fredholm.tasks.masks.tiles import tiles
from fredholm.tasks.outputs import Outputs
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.targets import ElementTarget
from fredholm.training import Run, TrainingConfig, seed_everything, train
from fredholm.training.scoring import score_split
from tests.refusals import refused
from tests.tasks.masks.build import squares, write_npz, write_pairs

CPU = torch.device("cpu")
SMALL = ITNet.Config(
    embed_dim=8, depth=2, num_heads=2, kernel=LowRankConfig(rank=2, width=4, num_frequencies=2, sigma=1.0), dropout=0.0
)
SPLIT = [0] * 6 + [1] * 3 + [2] * 3


def config(folder: Path, *, size: tuple[int, int] = (8, 12), **settings: Any) -> Segmentation.Config:
    data = str(write_npz(folder / "squares.npz", 12, size=size, split=SPLIT))
    return Segmentation.Config(**{"data": data, "patch_sizes": (4,), "model": SMALL, **settings})


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noisy_model(task: Segmentation) -> ITNet:
    """A model whose outputs vary over the image."""
    seed_everything(0)
    model = task.model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def logits_everywhere(task: Segmentation, model: ITNet, images: Tensor) -> Tensor:
    """Logits at all pixels of standardised images, `(B, H, W, K)`, from one call."""
    height, width = images.shape[2:]
    rows, columns = (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width
    pos = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1).flatten(0, 1)
    return model(images, at=Points(pos)).unflatten(1, (height, width))


def test_facts_are_the_training_splits(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    pixels = squares(12, (8, 12))[0][:6].astype(np.float64) / 255
    assert (task.num_train, task.num_held_out("valid"), task.objective.metric) == (6, 3, "mean_iou")
    facts = task.facts
    assert (facts.target.names, facts.channels, facts.image_size) == (("ground", "red", "blue"), 3, (8, 12))
    assert facts.mean == pytest.approx(pixels.mean((0, 1, 2)).tolist())
    assert facts.deviation == pytest.approx(pixels.std((0, 1, 2)).tolist())


@pytest.mark.parametrize(("split", "rows"), [("valid", [6, 7, 8]), ("test", [9, 10, 11])])
def test_held_out_splits_are_found_by_name(tmp_path: Path, split: HeldOut, rows: list[int]) -> None:
    masks = torch.from_numpy(squares(12, (8, 12))[1]).long()
    assert torch.equal(config(tmp_path).build().held_out_batch(split, torch.arange(3))["targets"], masks[rows])


def test_data_without_a_split_are_divided_by_their_names(tmp_path: Path) -> None:
    found = []
    for place in ("here", "there/over"):
        write_pairs(tmp_path / place, *squares(10, (8, 8)))
        given = Segmentation.Config(data=str(tmp_path / place), patch_sizes=(4,), model=SMALL)
        task = given.build()
        parts = [part.names for part in (task.splits.train, task.held_out("valid"), task.held_out("test"))]
        assert [len(part) for part in parts] == [7, 1, 2]
        found.append([[Path(name).name for name in part] for part in parts])
    assert found[0] == found[1]


def test_training_samples_pixels_with_their_labels(tmp_path: Path) -> None:
    task = config(tmp_path, num_pixels=20).build()
    batch = task.train_batch(torch.tensor([4, 0, 1]), drawn())
    masks = torch.from_numpy(squares(12, (8, 12))[1]).long()[[4, 0, 1]]
    assert (batch["images"].shape, batch["pos"].shape, batch["targets"].shape) == ((3, 3, 8, 12), (3, 20, 2), (3, 20))
    for pos, labels, mask in zip(batch["pos"], batch["targets"], masks, strict=True):
        row, column = pos[:, 0] * 8 - 0.5, pos[:, 1] * 12 - 0.5
        torch.testing.assert_close(row, row.round(), atol=1e-5, rtol=0)
        torch.testing.assert_close(column, column.round(), atol=1e-5, rtol=0)
        assert torch.equal(mask[row.round().long(), column.round().long()], labels)
        assert len(pos.unique(dim=0)) == 20
    assert task.num_targets(batch) == 60
    again, other = (task.train_batch(torch.tensor([4, 0, 1]), drawn(seed)) for seed in (0, 1))
    assert torch.equal(batch["pos"], again["pos"])
    assert not torch.equal(batch["pos"], other["pos"])
    every = config(tmp_path, num_pixels=None).build().train_batch(torch.tensor([4, 0, 1]), drawn())
    assert torch.equal(every["targets"], masks.flatten(1))


def test_a_process_reads_only_its_own_images_and_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = config(tmp_path, num_pixels=20).build()
    indices, read = torch.tensor([4, 0, 1, 3]), list[list[int]]()
    for name in ("images", "masks"):
        plain = getattr(MaskedImages, name)

        def noted(part: MaskedImages, indices: Tensor, plain: Any = plain) -> Tensor:
            read.append(indices.tolist())
            return plain(part, indices)

        monkeypatch.setattr(MaskedImages, name, noted)
    whole = task.train_batch(indices, drawn())
    read.clear()
    own = task.train_batch_rows(indices, slice(1, 3), drawn())
    assert read == [[0, 1], [0, 1]]
    assert all(torch.equal(own[name], whole[name][1:3]) for name in whole)


def test_unlabelled_pixels_are_sampled_last_and_never_count(tmp_path: Path) -> None:
    images, masks = squares(12, (8, 8))
    masks[:6, :4], masks[0] = 255, 255
    masks[6:, :, :5] = 255
    np.savez(tmp_path / "a.npz", images=images, masks=masks, split=SPLIT)
    task = Segmentation.Config(data=str(tmp_path / "a.npz"), patch_sizes=(4,), model=SMALL, num_pixels=32).build()
    batch = task.train_batch(torch.tensor([1, 2]), drawn())
    assert bool((batch["targets"] >= 0).all())
    assert bool((batch["pos"][..., 0] > 0.5).all())
    model = noisy_model(task)
    none = task.train_batch(torch.tensor([0]), drawn())
    assert bool((none["targets"] == -100).all())
    assert (task.num_targets(none), float(task.loss(model, none).detach())) == (0, 0.0)
    found = score_split(task, "valid", model, batch_size=2, device=CPU, dtype=torch.float32)
    test = task.held_out_batch("valid", torch.arange(3))
    known = test["targets"][:, :, 5:]
    assert bool((test["targets"][:, :, :5] == -100).all())
    logits = logits_everywhere(task, model, test["images"])[:, :, 5:].detach()
    assert found["accuracy"] == pytest.approx(float((logits.argmax(-1) == known).float().mean()))
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits.flatten(0, 2), known.flatten())), rel=1e-4)


def test_loss_is_smoothed_cross_entropy_at_the_sampled_pixels(tmp_path: Path) -> None:
    task = config(tmp_path, label_smoothing=0.3, num_pixels=7).build()
    model, batch = noisy_model(task), task.train_batch(torch.arange(4), drawn())
    rows, columns = ((batch["pos"][..., i] * n - 0.5).round().long() for i, n in ((0, 8), (1, 12)))
    logits = logits_everywhere(task, model, batch["images"])[torch.arange(4)[:, None], rows, columns]
    soft = F.one_hot(batch["targets"], 3) * 0.7 + 0.1
    torch.testing.assert_close(task.loss(model, batch), -(logits.log_softmax(-1) * soft).sum(), rtol=1e-4, atol=1e-4)


def test_rare_classes_weigh_as_much_as_frequent_ones(tmp_path: Path) -> None:
    plain, built = (config(tmp_path, class_weights=weights).build() for weights in ("none", "balanced"))
    counts = torch.from_numpy(squares(12, (8, 12))[1][:6]).flatten().long().bincount(minlength=3)
    assert isinstance(built.target, ElementTarget)
    assert built.target.weights == pytest.approx((counts.sum() / (3 * counts)).tolist())
    assert (plain.advice, built.advice, built.objective.metric) == ((), (), "mean_iou")
    model, batch = noisy_model(built), built.train_batch(torch.arange(4), drawn())
    logits = model(batch["images"], at=Points(batch["pos"])).flatten(0, 1)
    own = F.cross_entropy(logits, batch["targets"].flatten(), reduction="none")
    weights = torch.tensor(built.target.weights)[batch["targets"].flatten()]
    torch.testing.assert_close(built.loss(model, batch), (own * weights).sum())
    torch.testing.assert_close(plain.loss(model, batch), own.sum())


@pytest.mark.parametrize("queries", [1, 30, 10_000])
def test_metrics_are_over_all_pixels_for_any_number_of_queries_per_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queries: int
) -> None:
    monkeypatch.setattr(segmentation, "QUERIES", queries)
    task = config(tmp_path).build()
    model = noisy_model(task)
    found = score_split(task, "valid", model, batch_size=2, device=CPU, dtype=torch.float32)
    batch = task.held_out_batch("valid", torch.arange(3))
    logits, labels = logits_everywhere(task, model, batch["images"]).detach(), batch["targets"]
    predicted = logits.argmax(-1)
    assert len(predicted.unique()) > 1
    assert found["accuracy"] == pytest.approx(float((predicted == labels).float().mean()))
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits.flatten(0, 2), labels.flatten())), rel=1e-4)
    shares = [
        float(((predicted == k) & (labels == k)).sum()) / float(((predicted == k) | (labels == k)).sum())
        for k in range(3)
        if bool(((predicted == k) | (labels == k)).any())
    ]
    assert found["mean_iou"] == pytest.approx(sum(shares) / len(shares))


def test_a_class_that_occurs_nowhere_is_left_out_of_the_mean(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    metric = task.metrics()["mean_iou"]
    metric.update(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]))
    assert float(metric.compute()) == pytest.approx((1 / 2 + 2 / 3) / 2)


@pytest.mark.parametrize("stride", [3, 4, 20])
def test_with_a_stride_each_square_has_the_logits_of_its_centre(tmp_path: Path, stride: int) -> None:
    task = config(tmp_path, stride=stride).build()
    model, images = noisy_model(task), task.held_out_batch("valid", torch.arange(1))["images"]
    found = torch.cat([logits[0] for _, logits in task.logits(model, images, (8, 12))])
    assert found.shape == (8, 12, 3)
    for row in range(8):
        for column in range(12):
            low = [n // stride * stride for n in (row, column)]
            high = [min(n + stride, end) for n, end in zip(low, (8, 12), strict=True)]
            centre = [(a + b) / 2 / end for a, b, end in zip(low, high, (8, 12), strict=True)]
            expected = model(images, at=Points(torch.tensor([centre])))[0, 0]
            torch.testing.assert_close(found[row, column], expected, rtol=1e-4, atol=1e-5)


def test_the_signal_is_encoded_once_for_all_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentation, "QUERIES", 12)
    task = config(tmp_path).build()
    model, calls = noisy_model(task), []
    model.encoder.register_forward_hook(lambda *_: calls.append(1))
    metrics = task.metrics()
    task.score(model, task.held_out_batch("valid", torch.arange(3)), metrics)
    assert len(calls) == 3


def test_scales(tmp_path: Path) -> None:
    task = config(tmp_path, patch_sizes=(2, 4)).build()
    model = task.model()
    assert isinstance(model.encoder, MultiScaleImage)
    signal, domain = model.encoder(task.held_out_batch("valid", torch.arange(2))["images"])
    assert signal.shape == (2, 24 + 6, 8)
    assert float(domain.weights[24:].sum()) == pytest.approx(6 / 30)
    encoder = config(tmp_path, patch_sizes=(2, 4), balance_scales=True).build().model().encoder
    assert float(encoder(torch.zeros(1, 3, 8, 12))[1].weights[24:].sum()) == pytest.approx(0.5)
    task.loss(model, task.train_batch(torch.arange(4), drawn())).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.slow
def test_a_run_learns_and_is_reopened(tmp_path: Path) -> None:
    task = config(
        tmp_path,
        size=(8, 8),
        augmentation=MaskAugmentation.Config(crop_scale=(0.8, 1.0), horizontal_flip=0.5),
        label_smoothing=0.05,
        num_pixels=32,
    )
    training = TrainingConfig(
        epochs=30,
        batch_size=3,
        learning_rate=2e-2,
        ema_decay=0.5,
        device="cpu",
        tensorboard=False,
        accumulation=2,
        evaluate_every=30,
    )
    result = train(Run.Config(task=task, training=training), tmp_path / "run")
    assert result.metrics["accuracy"] > 0.9
    assert result.metrics["mean_iou"] > 0.6
    rest = Run(tmp_path / "run", device="cpu")
    assert rest.evaluate() == pytest.approx(result.metrics, rel=1e-4)
    rest.task = dataclasses.replace(task, image_size=(16, 16)).build(rest.task.facts)
    other = rest.evaluate()
    assert other["loss"] != pytest.approx(result.metrics["loss"])
    assert other["accuracy"] > 0.7  # at twice the size, which was never trained on


def test_held_out_images_without_a_known_class_leave_metrics_undefined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = config(tmp_path, size=(8, 8))
    arrays = dict(np.load(given.data))
    del arrays["split"]
    np.savez(tmp_path / "all.npz", **arrays)
    given = dataclasses.replace(given, data=str(tmp_path / "all.npz"))
    drawn_split = given.build()._split
    for part in (drawn_split.valid, drawn_split.test):
        arrays["masks"][part.numpy()] = 255
    np.savez(tmp_path / "all.npz", **arrays)
    training = TrainingConfig(epochs=3, batch_size=4, patience=1, device="cpu", tensorboard=False)
    result = train(Run.Config(task=given, training=training), tmp_path / "run")
    assert {name for name, value in result.metrics.items() if np.isnan(value)} == result.metrics.keys()
    out = capsys.readouterr().out
    assert (
        out.count("valid mean iou undefined (it needs elements whose class is known): the last weights are taken") == 1
    )
    assert "epoch 3/3" in out  # evaluations with undefined metrics do not count towards patience


def write_image(path: Path, image: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


def test_predictions_report_the_share_of_each_class_and_save_masks(tmp_path: Path) -> None:
    facts = config(tmp_path).build().facts
    task, outputs = config(tmp_path).build(facts), Outputs(save=tmp_path / "masks")
    model = noisy_model(task)
    image = squares(1, (8, 12), seed=5)[0][0]
    file = write_image(tmp_path / "new" / "one.png", image)
    (row,) = task.predict(model, [file], CPU, outputs=outputs)
    assert list(row) == ["file", "saved", "share ground", "share red", "share blue"]
    given = (torch.from_numpy(image).permute(2, 0, 1)[None] / 255 - task._mean) / task._deviation
    expected = logits_everywhere(task, model, given)[0].argmax(-1)
    saved = Path(str(row["saved"]))
    assert saved == tmp_path / "masks" / "one.png"
    assert torch.equal(read_mask(saved).long(), expected)
    for k, name in enumerate(("ground", "red", "blue")):
        assert row[f"share {name}"] == pytest.approx(float((expected == k).double().mean()))
    with refused(ValueError, f"--save: {saved} exists; name another file, or pass --overwrite"):
        task.predict(model, [file], CPU, outputs=Outputs(save=tmp_path / "masks"))
    saved.write_bytes(b"")
    task.predict(model, [file], CPU, outputs=Outputs(save=tmp_path / "masks", overwrite=True))
    assert torch.equal(read_mask(saved).long(), expected)
    with refused(ValueError, "one.png is one of the files to predict"):
        task.predict(model, [file], CPU, outputs=Outputs(save=file.parent, overwrite=True))
    assert np.array_equal(np.array(Image.open(file)), image)
    other = write_image(tmp_path / "other" / "two.png", image)
    twin = write_image(tmp_path / "new" / "two.png", image)
    for overwrite in (False, True):
        with refused(ValueError, "two.png would hold the predictions of"):
            twice = Outputs(save=tmp_path / "masks", overwrite=overwrite)
            task.predict(model, [other, twin], CPU, outputs=twice)
    assert not (tmp_path / "masks" / "two.png").exists()
    np.savez(tmp_path / "many.npz", images=np.stack([image, image]))
    rows = task.predict(model, [tmp_path / "many.npz"], CPU, outputs=Outputs(save=tmp_path / "masks"))
    assert [Path(str(row["saved"])).name for row in rows] == ["many-0.png", "many-1.png"]
    plain = config(tmp_path).build(facts).predict(model, [file], CPU)
    assert plain == [{name: value for name, value in row.items() if name != "saved"}]


@pytest.mark.parametrize(
    ("size", "seen"),
    [((16, 24), (8, 12)), ((9, 25), (8, 24)), ((20, 10), (24, 12)), ((1, 1), (12, 12)), ((8, 12), (8, 12))],
)
def test_images_of_any_size_are_seen_whole(tmp_path: Path, size: tuple[int, int], seen: tuple[int, int]) -> None:
    task = config(tmp_path).build()
    model, sizes = noisy_model(task), []
    model.encoder.register_forward_hook(lambda _, given, __: sizes.append(tuple(given[0].shape[2:])))
    drawn = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    outputs = Outputs(save=tmp_path / "masks")
    task.predict(model, [write_image(tmp_path / "a.png", drawn)], CPU, outputs=outputs)
    assert outputs.written == [tmp_path / "masks" / "a.png"]
    assert sizes == [seen]
    assert tuple(read_mask(tmp_path / "masks" / "a.png").shape) == size


@pytest.mark.parametrize(("extent", "side"), [(5, 5), (6, 5), (64, 5), (64, 1), (9, 8), (100, 64)])
def test_each_pixel_belongs_to_the_tile_whose_middle_is_nearest(extent: int, side: int) -> None:
    found = tiles(extent, side)
    middles = [tile.first + (side - 1) / 2 for tile in found]
    for pixel in range(extent):
        (owner,) = (tile for tile in found if tile.start <= pixel < tile.stop)
        distances = [abs(pixel - middle) for middle in middles]
        assert distances[found.index(owner)] <= min(distances) + 0.5
        assert 0 <= pixel - owner.first < side
    assert (found[0].first, found[-1].first) == (0, extent - side)
    assert all(side == 1 or 2 * (after.first - tile.first) <= side for tile, after in itertools.pairwise(found))


def test_a_large_image_is_predicted_in_tiles_of_the_size_of_training_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, sizes = config(tmp_path, tile=(8, 12)).build(), []

    def brighter(self: Segmentation, model: nn.Module, images: Tensor, size: tuple[int, int]) -> Any:
        sizes.append((tuple(images.shape[2:]), size))
        yield 0, torch.stack([-images[:, 0], images[:, 0]], dim=-1)

    monkeypatch.setattr(Segmentation, "logits", brighter)
    drawn = np.random.default_rng(0).integers(0, 256, (13, 30, 3), dtype=np.uint8)
    outputs = Outputs(save=tmp_path / "masks")
    task.predict(nn.Identity(), [write_image(tmp_path / "scan.png", drawn)], CPU, outputs=outputs)
    expected = torch.tensor(drawn[:, :, 0] > 255 * task.facts.mean[0])
    assert torch.equal(read_mask(outputs.written[0]), expected.to(torch.uint8))
    assert sizes == [((8, 12), (8, 12))] * 12  # 3 rows of 4


def test_scaling_a_large_image_down_warns_where_training_scaled_none(tmp_path: Path) -> None:
    file = write_image(tmp_path / "scan.png", np.zeros((24, 36, 3), np.uint8))
    for settings in ({}, {"tile": (8, 12)}, {"image_size": (8, 12)}):
        task = config(tmp_path, **settings).build()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            task.predict(noisy_model(task), [file], CPU)
        assert [str(each.message).partition(",")[0] for each in found] == (
            [] if settings else ["an image of 24 x 36 is scaled to 8 x 12"]
        )


def test_images_that_are_too_long_are_refused(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    file = write_image(tmp_path / "long.png", np.zeros((2, 400, 3), np.uint8))
    with refused(ValueError, f"{file}: is 2 x 400, too long for the model's 8 x 12"):
        task.predict(noisy_model(task), [file], CPU)


def test_a_picture_shows_the_true_mask_if_there_is_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_pairs(tmp_path / "known", *squares(2, (8, 12)))
    facts = config(tmp_path).build().facts
    sizes = {}
    for name, folder in (("with", "known/images"), ("without", "alone")):
        file = tmp_path / folder / "0.png"
        if name == "without":
            write_image(file, squares(1, (8, 12))[0][0])
        task = config(tmp_path).build(facts)
        task.predict(noisy_model(task), [file], CPU, outputs=Outputs(picture=tmp_path / name))
        with Image.open(tmp_path / f"{name}.png") as picture:
            sizes[name] = picture.size
        with refused(ValueError, f"--picture: {tmp_path / name}.png exists; name another file"):
            task.predict(noisy_model(task), [file], CPU, outputs=Outputs(picture=tmp_path / name))
    assert sizes["with"][0] > 1.4 * sizes["without"][0]  # one panel more
    write_image(tmp_path / "known" / "masks" / "1.png", np.zeros((8, 8), np.uint8))
    write_image(tmp_path / "known" / "masks" / "0.png", np.full((8, 12), 3, np.uint8))
    task, outputs = config(tmp_path).build(facts), Outputs(picture=tmp_path / "more.png")
    for number, message in ((1, "is 8 x 8; its image is 8 x 12"), (0, "has the class number 3; there are 3 classes")):
        with refused(ValueError, f"known/masks/{number}.png: {message}"):
            task.predict(noisy_model(task), [tmp_path / "known" / "images" / f"{number}.png"], CPU, outputs=outputs)
    assert not (tmp_path / "more.png").exists()


@pytest.mark.parametrize(
    "changes",
    [{"kernel": MLPConfig(width=3, num_frequencies=2, sigma=1.0)}, {"kernel": AttentionConfig()}, {"num_samples": 3}],
    ids=str,
)
def test_kernels_and_quadratures(tmp_path: Path, changes: dict[str, Any]) -> None:
    task = config(tmp_path, model=dataclasses.replace(SMALL, **changes)).build()
    model = task.model()
    with collect_auxiliary_losses() as beside:
        loss = task.loss(model, task.train_batch(torch.arange(4), drawn()))
    assert len(beside) == (3 if "num_samples" in changes else 0)  # two layers at pixels, and one at patches
    torch.stack([loss, *(extra.float() for extra in beside)]).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_a_kernel_that_cannot_be_queried_at_points_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = dataclasses.replace(SMALL, num_heads=None, kernel=RecurrenceConfig())
    with refused(ValueError, "which Grid(1, 1) does not order"):
        config(tmp_path, model=stack).build().model()
    task = config(tmp_path, model=dataclasses.replace(SMALL, num_samples=3)).build()
    found = []
    for _ in range(2):  # with and without the check
        seed_everything(0)
        model = task.model()
        assert model.training
        found.append([*model.parameters(), torch.rand(2)])
        monkeypatch.setattr(Segmentation, "_refuse_unanswering", lambda *_: None)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch_sizes": ()}, "patch_sizes is (); expected at least one"),
        ({"patch_sizes": (0,)}, "patch_sizes must be at least 1"),
        ({"image_size": (8, 10)}, "image_size is (8, 10); expected multiples of 4, the side of a patch"),
        ({"image_size": (0, 8)}, "image_size is (0, 8)"),
        ({"image_size": (8, 12), "patch_sizes": (2, 8)}, "expected multiples of 8, the side of a patch"),
        ({"patch_sizes": (2, 4), "stem_depth": 1}, "stem_depth is 1, but patch_sizes=(2, 4) are cut out"),
        ({"stem_depth": -1}, "stem_depth must be at least 0; got -1"),
        ({"balance_scales": True}, "balance_scales=True has no effect with patch_sizes=(4,)"),
        ({"num_pixels": 0}, "num_pixels must be at least 1"),
        ({"stride": 0}, "stride must be at least 1"),
        ({"label_smoothing": 1.0}, "label_smoothing must be in [0, 1)"),
        ({"position_frequencies": 0, "position_sigma": 2.0}, "position_sigma=2.0 has no effect"),
        ({"position_frequencies": -1}, "position_frequencies must be at least 0"),
        ({"model": dataclasses.replace(SMALL, pool="mean")}, "model.pool is 'mean', but each pixel needs an output"),
        ({"model": dataclasses.replace(SMALL, pool="none", diffusion=0.5)}, "model.diffusion is 0.5"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        config(tmp_path, **settings)


def test_misfits_are_refused(tmp_path: Path) -> None:
    with refused(ValueError, "no images are given; pass a folder"):
        Segmentation.Config().build()
    with refused(ValueError, "patches of 5 x 5 do not divide images of 8 x 12"):
        config(tmp_path, patch_sizes=(5,)).build().model()
    task = config(tmp_path).build()
    write_npz(tmp_path / "large.npz", 12, size=(16, 16), split=SPLIT)
    other = dataclasses.replace(task.config, data=str(tmp_path / "large.npz"))
    with refused(ValueError, "the image_size of", "are (16, 16); the run was made with (8, 12)"):
        _ = other.build(task.facts).splits
    assert len(dataclasses.replace(other, image_size=(8, 12)).build(task.facts).splits.held_out("valid")) == 3
    images, masks = squares(12, (8, 12))
    np.savez(tmp_path / "named.npz", images=images, masks=masks, split=SPLIT, classes=["earth", "red", "blue"])
    named = dataclasses.replace(task.config, data=str(tmp_path / "named.npz"))
    with refused(ValueError, "named.npz are earth, red, blue; the run was made with ground, red, blue"):
        _ = named.build(task.facts).splits
    with refused(ValueError, "the facts are of Task.Facts, not of segmentation"):
        task.config.build(Task.Facts())
    with refused(TypeError, "segmentation asks an ITNet; got a Linear"):
        task.score(nn.Linear(1, 1), task.held_out_batch("valid", torch.arange(1)), task.metrics())


def test_config_and_facts_survive_json(tmp_path: Path) -> None:
    given = config(tmp_path, patch_sizes=(2, 4), augmentation=MaskAugmentation.Config(crop_scale=(0.5, 1.0), hue=0.1))
    assert from_json(to_json(given), Task.Config, (*Segmentation.parts, Segmentation.Config)) == given
    facts = given.build().facts
    assert from_json(to_json(facts), Segmentation.Facts, Segmentation.parts) == facts


def test_training_pixels_must_have_two_classes(tmp_path: Path) -> None:
    images, masks = squares(12, (8, 12))
    masks = np.minimum(masks, 1)
    settings: dict[str, Any] = {"images": images, "split": np.array(SPLIT)}
    np.savez(tmp_path / "a.npz", masks=masks * 255, classes=["ground", "square"], **settings)
    message = "a.npz: labelled training pixels are of the class 'ground' alone; expected at least 2 classes; 255 is a"
    with refused(ValueError, message, "in masks of 0 and 255 write 1 for 255"):
        config(tmp_path, data=str(tmp_path / "a.npz")).build()
    np.savez(tmp_path / "b.npz", masks=masks * 0, classes=["ground", "square"], **settings)
    with refused(ValueError, "b.npz: labelled training pixels are of the class 'ground' alone; expected at least 2"):
        config(tmp_path, data=str(tmp_path / "b.npz")).build()
    np.savez(tmp_path / "c.npz", masks=masks, classes=["ground", "square", "ring"], **settings)
    with pytest.warns(UserWarning, match=r"c.npz: no training pixel is of the class 'ring'"):
        config(tmp_path, data=str(tmp_path / "c.npz")).build()
