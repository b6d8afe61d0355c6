"""Train a CKCNN on handwritten digits pixel by pixel, 784 samples each, in order (sMNIST) or permuted (pMNIST).

Command:   fredholm train sequential_mnist
           fredholm train permuted_mnist
Modality:  series
Data:      MNIST in ../shared/data/mnist
Get:       the four idx files, gzipped or not, from https://ossci-datasets.s3.amazonaws.com/mnist; then --task.data
           FOLDER
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      400 s of processor time per epoch, of 200
Score:     sequential_mnist --training.epochs 1: 85.38 %; permuted_mnist --training.epochs 2: 92.62 %; seed 0, after
           one and two of 200 epochs: shortened runs
Paper:     CKConv (arXiv 2102.02611), table 1: 99.31 and 98.00 %, 98K parameters, 200 epochs

Deviations from the paper's table 8: the learning rate falls along a cosine, where the paper divides it by 5 after 20
epochs without progress; gradients are clipped at norm 1; and averaged weights after the last epoch are measured. The
recipe is meant for a GPU: an epoch takes some minutes on one core (--training.epochs N shortens the run).
"""

from fredholm.models.series.ckcnn import CKCNN
from fredholm.tasks import SeriesLearning
from fredholm.training import Run, TrainingConfig


def sequential_mnist() -> Run.Config:
    """Train a CKCNN of 98,000 parameters on digits as sequences of pixels."""
    return _pixels(omega_0=31.09, dropout=0.1)


def permuted_mnist() -> Run.Config:
    """Train on the digits with their pixels in a random order, the same for all."""
    return _pixels(omega_0=43.46, dropout=0.0, permute_seed=0)


def _pixels(*, omega_0: float, dropout: float, permute_seed: int | None = None) -> Run.Config:
    return Run.Config(
        task=SeriesLearning.Config(
            valid_fraction=0.0,
            data="../shared/data/mnist",
            permute_seed=permute_seed,
            model=CKCNN.Config(embed_dim=30, depth=2, omega_0=omega_0, dropout=dropout, input_dropout=0.1),
        ),
        training=TrainingConfig(
            epochs=200,
            batch_size=64,
            learning_rate=1e-3,
            final_learning_rate=0.0,
            warmup_fraction=0.0,
            weight_decay=0.0,
            ema_decay=0.99,
            evaluation_batch_size=250,
        ),
    )
