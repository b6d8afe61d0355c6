"""Train an ITNet to find the topics of 2,708 papers from words and citations: Cora, with 20 known papers per topic.

Command:   fredholm train cora --seeds 0 1 2
           fredholm evaluate runs/cora/seed-0
Modality:  graphs
Data:      Cora with Planetoid's split (140, 500, 1,000 papers) in ../shared/data/planetoid/cora.npz
Get:       fredholm.tasks.graphs.from_pyg(Planetoid(".", "Cora")[0]).save("cora.npz"), with Planetoid of
           torch_geometric.datasets; then --task.data cora.npz
Hardware:  one core of an AMD EPYC, shared with other work; float32
Time:      about 10 s of processor time a seed
Score:     test accuracy 80.4 % +- 0.3, validation accuracy 80.8 % +- 0.4, at the checkpoint that was best on the
           validation split; settings were chosen by validation, see docs/studies/points_and_graphs.md
Paper:     none; the split is that of Yang et al. (2016), and Kipf and Welling (2017)

Words of a paper sum to 1, as is usual on Cora, and half of them are dropped in every step; outputs spread along the
citations (`kernels.Diffusion`). Training measures on the validation split.
"""

from fredholm.tasks import NodeLearning
from fredholm.tasks.graphs import GraphInputs
from fredholm.training import Run, TrainingConfig


def cora() -> Run.Config:
    """Train a two-layer ITNet along the citations of 2,708 papers to find their topics."""
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
