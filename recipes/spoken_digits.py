"""Spoken digits, told from raw waveforms at 8,000 samples a second: 3,000 clips of 0.14 to 2.3 s, six speakers.

Command:   fredholm train spoken_digits
           fredholm evaluate runs/spoken_digits/seed-0 --task test-every=2
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      60 s of processor time an epoch at every 4th sample; at all samples some minutes
Score:     at every 4th sample (--task.train-every 4 --task.test-every 4) 23.67 % after 4 of 20 epochs, seed 0: a
           shortened run
Paper:     none on these clips; CKConv (arXiv 2102.02611) on Speech Commands, one second at 16,000 samples: 71.66 %
Data:      ../shared/data/fsdd, or any series by --task.data

Settings are those of the paper for raw waveforms (table 8), with fewer epochs. Deviation: the head reads the mean over
the clip, whose last sample is silence as a rule.
"""

from fredholm.models.ckcnn import CKCNN
from fredholm.tasks import SeriesClassification
from fredholm.training import Run, TrainingConfig


def spoken_digits() -> Run.Config:
    """A CKCNN on raw waveforms of spoken digits."""
    return Run.Config(
        task=SeriesClassification.Config(
            valid_fraction=0.0,
            data="../shared/data/fsdd",
            model=CKCNN.Config(embed_dim=30, depth=2, omega_0=39.45, dropout=0.0, pool="mean", smoothing=True),
        ),
        training=TrainingConfig(
            epochs=20,
            batch_size=32,
            learning_rate=1e-3,
            final_learning_rate=0.0,
            warmup_fraction=0.0,
            weight_decay=1e-4,
            ema_decay=0.99,
            evaluation_batch_size=32,
        ),
    )
