"""Who of 4,000 intensive-care patients dies in hospital, learnt from 4,000 others: PhysioNet challenge 2012, a to b.

Command:   fredholm train physionet_2012
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      6 minutes
Score:     area under the ROC curve 0.845, accuracy 87.23 %, seed 0; the numbers have not been tuned. With pool="mean",
           input_dropout=0.2 and 6 epochs 0.834
Paper:     none on this challenge; CKConv's is that of 2019
Data:      ../shared/data/physionet2012, or another folder with set-a.npz and set-b.npz by --task.data

37 variables, measured at times of their own, are averaged by the hour; 8 more channels hold what was known at
admission, and further ones say what was observed. Gross errors are cut at 5 deviations. `--task.bin None` takes the
measurements at their own times, which costs more.
"""

from fredholm.models import CKCNN
from fredholm.tasks import SeriesClassification
from fredholm.training import Run, TrainingConfig


def physionet_2012() -> Run.Config:
    """A CKCNN on hourly means of 37 clinical variables, deaths in hospital to tell."""
    return Run.Config(
        task=SeriesClassification.Config(
            data="../shared/data/physionet2012",
            bin=1.0,
            limit=5.0,
            model=CKCNN.Config(embed_dim=30, depth=2, omega_0=4.38, dropout=0.2),
        ),
        training=TrainingConfig(
            epochs=4,
            batch_size=64,
            learning_rate=1e-3,
            weight_decay=0.0,
            ema_decay=0.98,
            test_batch_size=250,
        ),
    )
