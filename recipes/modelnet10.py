"""Train an ITNet on the shapes of ModelNet10 as clouds of points: surfaces of 24-voxel grids, ten classes.

Command:   fredholm train modelnet10 --seeds 0 1 2
           fredholm evaluate runs/modelnet10/seed-0 --task votes=5
Modality:  points
Data:      ModelNet10 as voxels in ../shared/data/modelnet10_voxel
Get:       the meshes, which need no conversion, from https://modelnet.cs.princeton.edu; then --task.data FOLDER
Hardware:  one core of an AMD EPYC, shared with other work; float32
Time:      12 minutes a seed
Score:     test accuracy 90.8 % +- 0.6 (91.0, 90.2 and 91.3 %), five votes, at the checkpoint that was best on the
           validation split (94.0 % +- 0.5); modelnet10_pooling was not run
Paper:     none on these grids; ITNet-PC (arXiv 2606.19538) is trained on 1,024 points of the meshes of ModelNet40

A tenth of the training shapes of each class is the validation split, on which training measures; the test split is not
read until the run is done. 64 of the test grids are training grids too.

The shapes stand upright and face one way, so that no rotation is among the augmentations; scaling of each axis and
jitter are those of the point-cloud literature, label smoothing is that of PointNet++ in later work.
"""

from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import LowRankConfig
from fredholm.models.pointnet import PointPooling
from fredholm.models.signal_model import SignalModel
from fredholm.tasks import PointLearning
from fredholm.tasks.points.augmentation import CloudAugmentation
from fredholm.training import Run, TrainingConfig


def modelnet10() -> Run.Config:
    """Train a small ITNet of low-rank kernels on clouds of ModelNet10."""
    kernel = LowRankConfig(rank=8, width=32, num_frequencies=16, sigma=1.0)
    return _run(ITNet.Config(embed_dim=64, depth=3, num_heads=4, kernel=kernel, dropout=0.0, pool="max"))


def modelnet10_pooling() -> Run.Config:
    """Train its baseline: an MLP on each point with its neighbours, then max pooling.

    Time:  not run
    """
    return _run(PointPooling.Config())


def _run(model: SignalModel.Config) -> Run.Config:
    return Run.Config(
        task=PointLearning.Config(
            data="../shared/data/modelnet10_voxel",
            num_points=512,
            num_centres=64,
            augmentation=CloudAugmentation.Config(scale=(2 / 3, 3 / 2), jitter=0.01),
            label_smoothing=0.2,
            model=model,
        ),
        training=TrainingConfig(
            epochs=30,
            batch_size=32,
            learning_rate=3e-3,
            warmup_fraction=0.05,
            weight_decay=0.05,
            ema_decay=0.99,
            evaluate_every=2,
        ),
    )
