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

37 variables, measured at times of their own, are averaged by the hour; where none was measured the last value stays,
and further channels say what was observed. 8 more channels hold what was known at admission. Gross errors are cut at 5
deviations. `--task.bin None` takes the measurements at their own times, which costs more. Depth, width, epochs and what
stands for missing values were chosen by cross-validation on set a: with the mean in their place, and two blocks of 30
channels, the area was 0.845 (seed 0). Gradient boosting on summary statistics reaches 0.858, as the notes of the data
say.
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
