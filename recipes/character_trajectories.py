"""Train a CKCNN to name letters from the movement of a pen: 20 letters, 3 channels, 109 to 205 samples.

Command:   fredholm train character_trajectories --seeds 0 1 2
           fredholm evaluate runs/character_trajectories/seed-0 --task test-every=2
           fredholm train character_trajectories --task.train-every 2 --task.test-every 2
           fredholm train character_trajectories_30 --seeds 0 1 2
Modality:  series
Data:      CharacterTrajectories, 1,429 labelled series, in ../shared/data/character_trajectories
Get:       the .ts files of the UEA archive, in another split, from https://www.timeseriesclassification.com; then
           --task.data FOLDER
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      5 to 12 minutes a seed
Score:     99.61 +- 0.27 % (3 seeds); the same models at 1/2, 1/4, 1/8, 1/16 of the rate 99.77, 99.77, 99.30, 77.18 %;
           with 30, 50, 70 % of the samples missing 99.22 +- 0.27, 99.38 +- 0.13, 99.07 +- 0.00 %; see
           docs/studies/continuous_series.md
Paper:     CKConv (arXiv 2102.02611), tables 4 and 5: 99.53 %; 99.30, 98.83, 98.14 % with 30, 50, 70 % of the samples
           dropped; 99.30 % tested at half the rate. Its archive has twice as many labelled series in another split

Deviations from the paper's tables 8 and 9: the learning rate falls along a cosine, where the paper divides it by 5
after 20 epochs without progress; gradients are clipped at norm 1; and averaged weights after the last epoch are
measured, so that nothing is chosen, and the test split is read once. Layer norms see one sample each.
"""

from fredholm.models.series.ckcnn import CKCNN
from fredholm.tasks import SeriesLearning
from fredholm.training import Run, TrainingConfig


def character_trajectories() -> Run.Config:
    """Train a CKCNN of 100,568 parameters to name letters from the movement of a pen."""
    return _letters()


def character_trajectories_30() -> Run.Config:
    """Train on the letters with 30 % of the samples dropped, in training and test."""
    return _letters(drop=0.3, omega_0=17.24, dropout=0.2)


def character_trajectories_50() -> Run.Config:
    """Train on the letters with half of the samples dropped, in training and test."""
    return _letters(drop=0.5, omega_0=12.0, dropout=0.2)


def character_trajectories_70() -> Run.Config:
    """Train on the letters with 70 % of the samples dropped, in training and test."""
    return _letters(drop=0.7, omega_0=4.24, dropout=0.0)


def _letters(*, drop: float = 0.0, omega_0: float = 21.45, dropout: float = 0.1) -> Run.Config:
    return Run.Config(
        task=SeriesLearning.Config(
            valid_fraction=0.0,
            data="../shared/data/character_trajectories",
            train_drop=drop,
            test_drop=drop,
            model=CKCNN.Config(embed_dim=30, depth=2, omega_0=omega_0, dropout=dropout, smoothing=True),
        ),
        training=TrainingConfig(
            epochs=200,
            batch_size=32,
            learning_rate=1e-3,
            final_learning_rate=0.0,
            warmup_fraction=0.0,
            weight_decay=0.0,
            ema_decay=0.99,
            evaluate_every=10,
            evaluation_batch_size=128,
        ),
    )
