"""Train an ITNet on MNIST, 60,000 + 10,000 handwritten digits of 28 x 28 pixels in idx files.

Command:   fredholm train mnist --task.data FOLDER
Modality:  images
Data:      MNIST in ../shared/data/mnist
Get:       the four idx files, gzipped or not, from https://ossci-datasets.s3.amazonaws.com/mnist; then --task.data
           FOLDER
Hardware:  one core of an AMD EPYC, float32
Time:      30 minutes of processor time
Score:     99.32 % test accuracy, seed 0, with the weights that were best on the validation split; the learning rate
           was chosen before there was a validation split
"""

from fredholm.models import ITNet, MLPConfig
from fredholm.tasks import ImageLearning
from fredholm.tasks.images.augmentation import Augmentation
from fredholm.training import Run, TrainingConfig


def mnist() -> Run.Config:
    """Train a three-layer ITNet on MNIST in patches of 7 x 7 pixels."""
    return Run.Config(
        task=ImageLearning.Config(
            valid_fraction=0.1,
            data="../shared/data/mnist",
            patch_size=7,
            position_frequencies=0,
            model=ITNet.Config(
                embed_dim=64,
                depth=3,
                num_heads=2,
                kernel=MLPConfig(width=16, num_frequencies=32, sigma=2.0, epsilon=1.0),
                dropout=0.0,
                drop_path=0.0,
                pool="mean",
            ),
            augmentation=Augmentation.Config(shift=0.07, rotation=8.0, scale=(0.9, 1.1), label_smoothing=0.05),
        ),
        training=TrainingConfig(
            epochs=24,
            batch_size=128,
            learning_rate=4e-3,
            warmup_fraction=0.05,
            weight_decay=0.05,
            ema_decay=0.999,
            evaluate_every=4,
            evaluation_batch_size=500,
        ),
    )
