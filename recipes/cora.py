"""Topics of 2,708 papers of machine learning, told from their words and citations: Cora, with 20 papers a topic known.

Command:   fredholm train cora --seeds 0 1 2
           fredholm evaluate runs/cora/seed-0
Hardware:  one core of an AMD EPYC, shared with other work; float32
Time:      about 10 s of processor time a seed
Score:     test accuracy 80.4 % +- 0.3, validation accuracy 80.8 % +- 0.4, at the checkpoint that was best on the
           validation split; settings were chosen by validation, see docs/studies/points_and_graphs.md
Data:      ../shared/data/planetoid/cora.npz, whose split is Planetoid's (140, 500 and 1,000 papers), or any graph by
           --task.data
Paper:     none; the split is that of Yang et al. (2016), and Kipf and Welling (2017)

Words of a paper sum to 1, as is usual there, and half of them are left out in every step; outputs spread along the
citations (`kernels.Diffusion`). What is measured in training is the validation split.
"""

from fredholm.tasks import NodeLearning
from fredholm.tasks.graphs import GraphInputs
from fredholm.training import Run, TrainingConfig


def cora() -> Run.Config:
    """An ITNet of two layers along the citations."""
    return Run.Config(
        task=NodeLearning.Config(
            data="../shared/data/planetoid/cora.npz",
            inputs=GraphInputs(scale="rows", num_walks=0, degrees=False, positions="none", feature_dropout=0.5),
        ),
        training=TrainingConfig(
            epochs=40,
            batch_size=140,
            learning_rate=3e-3,
            weight_decay=4.0,
            ema_decay=0.9,
            evaluation_batch_size=1000,
        ),
    )
