"""Train a CKCNN to predict which intensive-care patients die in hospital: PhysioNet 2012, set a to set b.

Command:   fredholm train physionet_2012 --seeds 0 1 2
           fredholm evaluate runs/physionet_2012/seed-0
Modality:  series
Data:      PhysioNet challenge 2012, sets a and b, in ../shared/data/physionet2012
Get:       https://physionet.org/content/challenge-2012/1.0.0, packed into set-a.npz and set-b.npz with the arrays that
           fredholm.tasks.series.physionet_2012 lists; then --task.data FOLDER
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      25 seconds of processor time a seed
Score:     area under the ROC curve 0.8645 +- 0.0010, accuracy 88.19 +- 0.10 %, 3 seeds
Paper:     none on this challenge; CKConv's is that of 2019

37 variables, each measured at irregular times, are averaged by the hour; missing hours repeat the last value, and
further channels mark the observed ones. 8 more channels hold the data known at admission. Gross errors are clipped at 5
deviations. `--task.bin None` reads the measurements at their original times, which costs more. Depth, width, epochs and
the fill of missing values were chosen by cross-validation on set a: with the mean as fill, and two blocks of 30
channels, the area was 0.845 (seed 0). Gradient boosting on summary statistics reaches 0.858, according to the notes of
the data.
"""

from fredholm.models.series.ckcnn import CKCNN
from fredholm.tasks import SeriesLearning
from fredholm.training import Run, TrainingConfig


def physionet_2012() -> Run.Config:
    """Train a CKCNN to predict deaths in hospital from hourly means of 37 clinical variables."""
    return Run.Config(
        task=SeriesLearning.Config(
            valid_fraction=0.0,
            data="../shared/data/physionet2012",
            bin=1.0,
            limit=5.0,
            fill="last",
            model=CKCNN.Config(embed_dim=60, depth=1, omega_0=4.38, dropout=0.2),
        ),
        training=TrainingConfig(
            epochs=4,
            batch_size=64,
            learning_rate=1e-3,
            weight_decay=0.0,
            ema_decay=0.98,
            evaluation_batch_size=250,
        ),
    )
