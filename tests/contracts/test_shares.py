"""Each process builds only its rows of a training batch; in every task they equal those of the whole batch."""

import pytest
import torch

from fredholm.distributed.processes import Processes
from fredholm.tasks import TASKS, Task
from tests.contracts.task_settings import small_tasks

pytest.importorskip("kornia")
pytest.importorskip("tokenizers")
pytest.importorskip("trimesh")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[type[Task], Task]:
    built = [config.build() for config in small_tasks(tmp_path_factory.mktemp("data"))]
    return {type(task): task for task in built}


def drawn() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.filterwarnings("ignore:.*one way. taken both ways")
@pytest.mark.parametrize("kind", TASKS)
def test_rows_are_those_of_the_whole_batch(kind: type[Task], tasks: dict[type[Task], Task]) -> None:
    task = tasks[kind]
    indices = torch.arange(min(task.num_train, 7)).flip(0)
    whole = task.train_batch(indices, drawn())
    count = len(next(iter(whole.values())))
    assert count == len(indices)
    targets = 0
    for rank in range(3):
        rows = Processes(rank, 3).rows(count)
        if rows.start == rows.stop:
            continue
        found = task.train_batch_rows(indices, rows, drawn())
        assert found.keys() == whole.keys()
        for name, tensor in whole.items():
            torch.testing.assert_close(found[name], tensor[rows], rtol=0, atol=0, equal_nan=True, msg=name)
        targets += task.num_targets(found)
    assert targets == task.num_targets(whole) > 0
