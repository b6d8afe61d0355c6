"""Whole models with shared points, as run by each of several processes; see `test_shared_models`."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fredholm import models
from fredholm.distributed import counted_traffic, reduce_gradients
from fredholm.domains import Domain, Grid
from fredholm.encoders import ConvolutionalImage, Function, FunctionBatch, Image, ImagePyramid, PointBatch, PointCloud
from fredholm.models.signal_model import Pool, SignalModel

IMAGE = Image.Config(image_size=(12, 8), patch_size=4, channels=3)
KERNELS: dict[str, Any] = {
    "attention": models.AttentionConfig(),
    "low rank": models.LowRankConfig(rank=3, width=4, num_frequencies=2),
    "mlp": models.MLPConfig(width=4, num_frequencies=2),
}


CLOUD = PointCloud.Config(num_frequencies=0, num_neighbours=0)


def itnet(kernel: str, pool: Pool) -> models.ITNet.Config:
    return models.ITNet.Config(
        embed_dim=8, depth=2, num_heads=2, kernel=KERNELS[kernel], pool=pool, dropout=0.0, drop_path=0.0
    )


class Case(NamedTuple):
    """A model and its inputs."""

    build: Callable[[], SignalModel]
    inputs: Callable[[], Any]
    at: Domain | None = None


def images() -> Tensor:
    return torch.randn(2, 3, 12, 8, dtype=torch.float64)


def function() -> FunctionBatch:
    return FunctionBatch(torch.randn(2, 10, 1, dtype=torch.float64), Grid(10))


def pooled(kernel: str, pool: Pool) -> Case:
    return Case(lambda: itnet(kernel, pool).build(Image(IMAGE, 8), 3), images)


def infvit() -> SignalModel:
    config = models.InfViT.Config(embed_dim=8, depth=2, num_heads=2, dropout=0.0, drop_path=0.0)
    return config.build(Image(IMAGE, 8), 3)


def cloud() -> PointBatch:
    return PointBatch(torch.randn(2, 9, 3, dtype=torch.float64))


def cloud_with_holes() -> PointBatch:
    """The first process of two has no point of the first cloud."""
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :5], mask[1, 7] = False, False
    return cloud()._replace(mask=mask)


def points(pool: Literal["max", "none"], inputs: Callable[[], PointBatch] = cloud) -> Case:
    config = models.PointPooling.Config(embed_dim=8, widths=(6, 10), head_width=5, dropout=0.0, pool=pool)
    return Case(lambda: config.build(PointCloud(CLOUD, 8), 3), inputs)


def operator() -> SignalModel:
    config = models.NeuralOperator.Config(embed_dim=8, depth=2, kernel=KERNELS["low rank"])
    return config.build(Function(Function.Config(num_channels=1, pos_dim=1), 8), 2)


CASES: dict[str, Case] = {
    "attention, class token": pooled("attention", "cls"),
    "attention, largest": pooled("attention", "max"),
    "low rank, mean": pooled("low rank", "mean"),
    "mlp, every point": pooled("mlp", "none"),
    "convolutions before it": Case(
        lambda: itnet("attention", "mean").build(ConvolutionalImage(IMAGE, 8, depth=1), 3), images
    ),
    "a pyramid before it, elsewhere": Case(
        lambda: itnet("attention", "none").build(ImagePyramid(IMAGE, 8, depth=1), 3), images, Grid(3, 2)
    ),
    "InfViT": Case(infvit, images),
    "point pooling": points("max"),
    "point pooling, every point": points("none"),
    "point pooling, some absent": points("max", cloud_with_holes),
    "attention, some absent": Case(lambda: itnet("attention", "mean").build(PointCloud(CLOUD, 8), 3), cloud_with_holes),
    "neural operator": Case(operator, function),
    "neural operator, elsewhere": Case(operator, function, Grid(7)),
}


def answered(name: str) -> dict[str, Tensor]:
    """Outputs and gradients of a model; on one process without sharing."""
    case, count = CASES[name], dist.get_world_size()
    torch.manual_seed(0)
    model, inputs = case.build().double().train(), case.inputs()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    if count > 1:
        model.share_points()
    with counted_traffic() as traffic:
        out = model(inputs) if case.at is None else model(inputs, at=case.at)
    assert (traffic != dataclasses.replace(traffic, sums=0, gathered=0, ring=0, relay=0)) == (count > 1)
    (out.square().sum() / count).backward()
    if count > 1:
        reduce_gradients(model)
    grads = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    return {"outputs": out.detach(), **grads}


def refused() -> list[str]:
    """Error messages for a model without points to share, and for fewer points than processes."""
    found = []
    small = Image.Config(image_size=(4, 4), patch_size=4, channels=3)
    for call in (
        lambda: itnet("attention", "mean").build(Image(small, 8), 3).share_points()(torch.randn(1, 3, 4, 4)),
        lambda: (
            models.EdgeConvolution.Config(embed_dim=8, widths=(6, 8), num_neighbours=2)
            .build(PointCloud(CLOUD, 8), 3)
            .share_points()
        ),
    ):
        try:
            call()
        except ValueError as error:
            found.append(str(error))
    return found
