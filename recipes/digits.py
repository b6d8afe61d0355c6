"""Train an ITNet on handwritten digits of 8 x 8 pixels, scikit-learn's 1,797 real scans: the demo.

Command:   fredholm train digits --seeds 0 1 2
Modality:  images
Data:      scikit-learn's digits, which come with it
Hardware:  one thread of a two-core AMD EPYC, shared with other work; float32
Time:      189 seconds of processor time for the three seeds, 7 minutes on the clock
Score:     98.33 +- 0.28 % test accuracy (98.33, 98.06, 98.61)

Learning rate (of 0.003, 0.005, 0.01 and 0.02, seeds 0 and 1) and checkpoints were chosen on the validation split, 144
scans; the test split is read once, at the end of a run. All other settings are older than the validation split.
"""

from fredholm.models import ITNet, MLPConfig
from fredholm.tasks import ImageLearning
from fredholm.tasks.images.augmentation import Augmentation
from fredholm.training import Run, TrainingConfig


def digits() -> Run.Config:
    """Train a two-layer ITNet on scans of digits of 8 x 8 pixels."""
    return Run.Config(
        task=ImageLearning.Config(
            valid_fraction=0.1,
            data="digits",
            patch_size=2,
            position_frequencies=0,
            model=ITNet.Config(
                embed_dim=32,
                depth=2,
                num_heads=2,
                kernel=MLPConfig(width=16, num_frequencies=32, sigma=2.0, epsilon=1.0),
                dropout=0.0,
                drop_path=0.0,
                pool="mean",
            ),
            augmentation=Augmentation.Config(shift=0.1, rotation=10.0, scale=(0.9, 1.1), label_smoothing=0.1),
        ),
        training=TrainingConfig(
            epochs=50,
            batch_size=64,
            learning_rate=1e-2,
            warmup_fraction=0.1,
            weight_decay=0.05,
            ema_decay=0.998,
            evaluate_every=10,
            evaluation_batch_size=360,
        ),
    )
