"""Numbers far from 0 relative to their deviation reach a network like those near 0, in every file format."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.tasks import FieldLearning, Forecasting, GraphLearning, OperatorLearning, PointLearning, SeriesLearning
from fredholm.tasks.task import Batch, Task

FAR = 1e9  # float32 represents every 64th integer there
DRAWN = np.random.default_rng(0)
WAVES = np.round(DRAWN.normal(size=(24, 12)) * 64) / 64
KINDS = np.arange(24) % 2


def saved(folder: Path, **arrays: object) -> str:
    np.savez(folder / "data.npz", **arrays)  # pyright: ignore[reportArgumentType]
    return str(folder / "data.npz")


def series(folder: Path, offset: float) -> Task:
    return SeriesLearning.Config(data=saved(folder, values=WAVES + offset, labels=KINDS)).build()


def series_in_rows(folder: Path, offset: float) -> Task:
    """Large arrays are read from their file; here all count as large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fredholm.tasks.series.npz_file.LARGE", 0)
        return series(folder, offset)


def series_of_a_table(folder: Path, offset: float) -> Task:
    rows = [
        f"{i},{t},{'ab'[i % 2]},{value + offset!r}"
        for i, row in enumerate(WAVES.tolist())
        for t, value in enumerate(row)
    ]
    (folder / "table.csv").write_text("\n".join(["series,time,label,v", *rows]))
    return SeriesLearning.Config(data=str(folder / "table.csv")).build()


def forecasts(folder: Path, offset: float) -> Task:
    rows = [f"{t},{value + offset!r}" for t, value in enumerate(WAVES.ravel().tolist())]
    (folder / "table.csv").write_text("\n".join(["time,v", *rows]))
    return Forecasting.Config(data=str(folder / "table.csv"), horizon=2, context=4).build()


def nodes(folder: Path, offset: float) -> Task:
    return _graphs(folder, features=WAVES.reshape(-1, 1) + offset)


def edges(folder: Path, offset: float) -> Task:
    return _graphs(folder, num_nodes=288, edge_features=WAVES[:, :11].reshape(-1, 1) + offset)


def _graphs(folder: Path, **features: object) -> Task:
    index = np.stack([np.arange(287), np.arange(1, 288)])
    index = index[:, index[1] % 12 != 0]
    data = saved(folder, edge_index=index, directed=True, graph=np.arange(288) // 12, labels=KINDS, **features)
    return GraphLearning.Config(data=data).build()


def clouds(folder: Path, offset: float) -> Task:
    x = np.concatenate([np.random.default_rng(1).normal(size=(24, 12, 3)), WAVES[..., None] + offset], axis=2)
    return PointLearning.Config(data=saved(folder, x=x, y=KINDS)).build()


def fields(folder: Path, offset: float) -> Task:
    return FieldLearning.Config(data=saved(folder, pos=np.linspace(0, 1, 12)[:, None], values=WAVES + offset)).build()


def fields_of_a_table(folder: Path, offset: float) -> Task:
    rows = [f"{i},{k / 11},{value + offset!r}" for i, row in enumerate(WAVES.tolist()) for k, value in enumerate(row)]
    (folder / "table.csv").write_text("\n".join(["field,x,v", *rows]))
    return FieldLearning.Config(data=str(folder / "table.csv")).build()


def operators(folder: Path, offset: float) -> Task:
    arrays = {"values": WAVES + offset, "target_values": WAVES[:, ::-1] - offset}
    places = {f"{prefix}pos": np.linspace(0, 1, 12)[:, None] for prefix in ("", "target_")}
    return OperatorLearning.Config(data=saved(folder, **arrays, **places)).build()


@pytest.mark.parametrize(
    "task",
    [
        series,
        series_in_rows,
        series_of_a_table,
        forecasts,
        nodes,
        edges,
        clouds,
        fields,
        fields_of_a_table,
        operators,
    ],
)
def test_numbers_far_from_0_are_standardised_exactly(task: Callable[[Path, float], Task], tmp_path: Path) -> None:
    batches: list[Batch] = []
    for offset in (0.0, FAR):
        (folder := tmp_path / str(offset)).mkdir()
        built = task(folder, offset)
        batches.append(built.train_batch(torch.arange(4), torch.Generator().manual_seed(0)))
    read = {"values", "target_values", "features", "edge_features", "targets"} & set(batches[0])
    assert read
    for name in read:
        near, far = (batch[name] for batch in batches)
        assert near.dtype == far.dtype
        torch.testing.assert_close(far, near, atol=1e-4, rtol=0.0)
