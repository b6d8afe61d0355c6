"""Fit a filter bank to raw waveforms of spoken digits: 3,000 clips of 0.14 to 2.3 s at 8,000 samples a second.

Command:   fredholm train spoken_digits
           fredholm evaluate runs/spoken_digits/seed-0 --task test-every=2
Modality:  series
Data:      the Free Spoken Digit Dataset in ../shared/data/fsdd
Get:       https://github.com/Jakobovski/free-spoken-digit-dataset, packed into one .npz file with the arrays audio,
           offsets, label, is_test and sample_rate; then --task.data FILE
Hardware:  one core of an AMD EPYC, shared with other work; float32
Time:      149 s, on a core shared with other work
Score:     98.67 % on the 300 test clips, seed 0, by recipes/series_archives.py with the same settings
Paper:     none on these clips; CKConv (arXiv 2102.02611) on Speech Commands, one second at 16,000 samples: 71.66 %

The default model at its defaults; nothing was chosen for these clips alone. Test clips are of the same six speakers.
"""

from fredholm.models import FilterBank
from fredholm.tasks import SeriesLearning
from fredholm.training import Run, TrainingConfig


def spoken_digits() -> Run.Config:
    """Fit a filter bank to raw waveforms of spoken digits.

    Time:  149 s
    """
    return Run.Config(
        task=SeriesLearning.Config(data="../shared/data/fsdd", model=FilterBank.Config()),
        training=TrainingConfig(epochs=0, evaluation_batch_size=32),
    )
