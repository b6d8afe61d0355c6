"""Shapes of ModelNet10 as clouds of points: the surface of 24-voxel grids, ten classes, 3,984 to train, 907 to test.

Command:   fredholm train modelnet10
           fredholm train modelnet10_pooling
           fredholm evaluate runs/modelnet10/seed-0 --task evaluated=test votes=5
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      75 s of processor time for all 3,984 shapes, a tenth more than an epoch; with pooling 55 s
Score:     none of a whole run; after 2 of 60 epochs, with a schedule and an average of that length
           (--training.epochs 2 --training.ema-decay 0.98), seed 0: test accuracy 62.84 %, with pooling 66.48 %; both
           were trained on all 3,984 shapes, without a validation split
Paper:     none on these grids; ITNet-PC (arXiv 2606.19538) is trained on 1,024 points of the meshes of ModelNet40
Data:      ../shared/data/modelnet10_voxel, or any clouds by --task.data

A tenth of the training shapes of each class is the validation split, on which training measures; the test split is left
alone until `evaluated=test` asks for it.

Augmentation is that of the point-cloud literature (scaling of each axis, jitter, rotation about the vertical axis), as
the paper's K.3 names it without numbers; label smoothing is that of PointNet++ in later work.
"""

from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import LowRankConfig
from fredholm.models.pointnet import PointPooling
from fredholm.models.signal_model import SignalModel
from fredholm.tasks import PointLearning
from fredholm.tasks.points.augmentation import CloudAugmentation
from fredholm.training import Run, TrainingConfig


def modelnet10() -> Run.Config:
    """A small ITNet of low-rank kernels on clouds of ModelNet10."""
    kernel = LowRankConfig(rank=8, width=32, num_frequencies=16, sigma=1.0)
    return _run(ITNet.Config(embed_dim=64, depth=3, num_heads=4, kernel=kernel, dropout=0.0))


def modelnet10_pooling() -> Run.Config:
    """Its baseline: points each for itself and their neighbours, then the largest value of each channel."""
    return _run(PointPooling.Config())


def _run(model: SignalModel.Config) -> Run.Config:
    return Run.Config(
        task=PointLearning.Config(
            data="../shared/data/modelnet10_voxel",
            num_points=256,
            augmentation=CloudAugmentation.Config(scale=(2 / 3, 3 / 2), rotation="axis", axis="z", jitter=0.01),
            label_smoothing=0.2,
            model=model,
        ),
        training=TrainingConfig(
            epochs=60,
            batch_size=32,
            learning_rate=2e-3,
            warmup_fraction=0.05,
            weight_decay=0.05,
            ema_decay=0.998,
            evaluate_every=5,
        ),
    )
