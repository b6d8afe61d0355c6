"""Train an ITNet on graphs of molecules and proteins: MUTAG, PROTEINS, ENZYMES and AIDS of the TUDataset.

Command:   for fold in 0 1 2 3 4 5 6 7 8 9; do fredholm train mutag --task.fold $fold --run-dir runs/mutag/$fold; done
           fredholm evaluate runs/mutag/0
Modality:  graphs
Data:      the TUDataset collection in ../shared/data/tudataset
Get:       the set's zip file from https://chrsmrrs.github.io/datasets, unpacked; then --task.data FOLDER
Hardware:  one core of an AMD EPYC, shared with other work; float32
Time:      22 s of processor time per fold of MUTAG, about one minute of PROTEINS, two of ENZYMES, on a busy machine
Score:     means of ten folds at the checkpoint that was best on the validation split: MUTAG 83.6 % +- 9.2, ENZYMES
           62.3 % +- 7.3, PROTEINS 72.7 % +- 5.6; AIDS was not run; see docs/studies/points_and_graphs.md
Paper:     none; the collection's (Morris et al., 2020) protocol is the mean over ten folds

One of ten folds is the test split, a tenth of all graphs the validation split; nothing is chosen by the test split. The
folds are those of `--task.split-seed 0`, not the ones of other libraries.
"""

from fredholm.models import GraphStackConfig
from fredholm.tasks import GraphLearning
from fredholm.training import Run, TrainingConfig


def mutag() -> Run.Config:
    """Train an ITNet to classify 188 molecules, two classes.

    Time:  22 s of processor time a fold
    """
    return _fold("MUTAG", epochs=40, learning_rate=3e-3)


def proteins() -> Run.Config:
    """Train an ITNet to find which of 1,113 proteins are enzymes.

    Time:  about 1 minute of processor time a fold
    """
    return _fold("PROTEINS", epochs=8, learning_rate=1e-3)


def enzymes() -> Run.Config:
    """Train an ITNet to classify 600 enzymes, six classes.

    Time:  about 2 minutes of processor time a fold
    """
    return _fold("ENZYMES", epochs=30, learning_rate=3e-3)


def aids() -> Run.Config:
    """Train an ITNet to find which of 2,000 molecules are active against HIV.

    Time:  not run
    """
    return _fold("AIDS", epochs=15, learning_rate=3e-3)


def _fold(name: str, *, epochs: int, learning_rate: float) -> Run.Config:
    return Run.Config(
        task=GraphLearning.Config(data=f"../shared/data/tudataset/{name}.npz", num_folds=10, model=GraphStackConfig()),
        training=TrainingConfig(
            epochs=epochs,
            batch_size=32,
            learning_rate=learning_rate,
            weight_decay=0.05,
            ema_decay=0.95,
            evaluation_batch_size=128,
        ),
    )
