"""Forecasts with channels known ahead."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.models import CKCNN, FilterBank
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import Forecasting, Task
from fredholm.tasks.forecasts import open_long
from fredholm.training.scoring import score_split
from tests.refusals import refused

Row = tuple[float, ...]
CPU = torch.device("cpu")
LINEAR = FilterBank.Config(num_thresholds=0, num_groups=0, num_lags=20)
SMALL = CKCNN.Config(embed_dim=4, depth=1, kernel_width=4, dropout=0.0)


def table(count: int = 120, ahead: int = 4, effect: float = 5.0, seed: int = 0) -> list[Row]:
    """Sales, promotions and a price of noise; sales are missing in the last samples."""
    drawn = np.random.default_rng(seed)
    promo = (drawn.random(count + ahead) < 0.25).astype(float)
    price, noise = drawn.normal(size=(2, count + ahead))
    sales = 20 + np.sin(np.arange(count + ahead) * np.pi / 3) + effect * promo + 0.2 * noise
    sales[count:] = np.nan
    return list(zip(sales.tolist(), promo.tolist(), price.tolist(), strict=True))


def written(folder: Path, rows: list[Row] | None = None, name: str = "sales.csv") -> Path:
    cells = [",".join("" if math.isnan(v) else repr(v) for v in row) for row in (table() if rows is None else rows)]
    path = folder / name
    path.write_text("\n".join(["time,sales,promo,price", *(f"{t},{each}" for t, each in enumerate(cells))]))
    return path


def config(folder: Path, **settings: Any) -> Forecasting.Config:
    if "data" not in settings:
        written(folder)
    given = {"data": str(folder / "sales.csv"), "horizon": 4, "context": 12, "known": ("promo", "price"), "season": 6}
    return Forecasting.Config(**given | settings)


def fitted(built: Forecasting) -> torch.nn.Module:
    torch.manual_seed(0)
    model = built.model()
    built.initialise(model, CPU)
    return model.eval()


def test_known_promotions_improve_the_forecast(tmp_path: Path) -> None:
    built = config(tmp_path).build()
    assert (built.facts.predicted, built.facts.known) == (("sales",), ("promo", "price"))
    assert built.splits.train.places[:, 1].max() == 96 - 4  # 120 observed samples, not 124
    model = fitted(built)
    alone = config(
        tmp_path, known=(), channels=("sales",), data=str(written(tmp_path, table(ahead=0), "past.csv"))
    ).build()
    found = [
        score_split(each, "test", net, batch_size=9, device=CPU, dtype=torch.float32)["mase"]
        for each, net in ((built, model), (alone, fitted(alone)))
    ]
    assert found[0] < 0.4 * found[1]
    rows = built.predict(model, [tmp_path / "sales.csv"], CPU)
    assert [row["time"] for row in rows] == [120.0, 121.0, 122.0, 123.0]
    for row, (_, promo, _) in zip(rows, table()[120:], strict=True):
        t = float(row["time"])
        assert float(row["sales"]) == pytest.approx(20 + math.sin(t * math.pi / 3) + 5 * promo, abs=0.6)
    other = [(sales, 1 - promo if t >= 120 else promo, price) for t, (sales, promo, price) in enumerate(table())]
    again = built.predict(model, [written(tmp_path, other, "other.csv")], CPU)
    for one, two, (_, promo, _) in zip(rows, again, table()[120:], strict=True):
        assert float(two["sales"]) - float(one["sales"]) == pytest.approx(5 * (1 - 2 * promo), abs=0.3)


@pytest.mark.slow
def test_noise_known_ahead_changes_nothing(tmp_path: Path) -> None:
    rows = table(effect=0.0)
    past = [(sales, 0.0, 0.0) for sales, _, _ in rows[:120]]
    given = config(tmp_path, data=str(written(tmp_path, rows)))
    built = given.build()
    assert built.facts.effect is None
    assert given.recommended("small").notes == ("promo, price: no help with stretches that are left out; not read",)
    assert not config(tmp_path).recommended("small").notes
    assert not config(tmp_path, model=SMALL, data=str(written(tmp_path, rows))).recommended("small").notes
    written(tmp_path, rows)
    alone = config(tmp_path, data=str(written(tmp_path, past, "past.csv")), known=(), channels=("sales",)).build()
    one, other = (
        score_split(each, "test", fitted(each), batch_size=9, device=CPU, dtype=torch.float32)["mase"]
        for each in (built, alone)
    )
    assert one == pytest.approx(other, rel=1e-4)


def test_windows_are_scaled_after_the_effect_is_removed(tmp_path: Path) -> None:
    built = config(tmp_path, base=0.5).build()
    facts = built.facts
    effect, base = facts.effect, facts.base
    assert effect is not None
    assert base is not None
    raw = open_long(tmp_path / "sales.csv")[0][0].values
    windows = built.held_out("test")
    batch = built.held_out_batch("test", torch.tensor([3]))
    at = int(windows.places[3, 1])
    assert effect.parts[0].unit == "one"
    moved = torch.tensor(effect.parts[0].weights).double() @ (raw[:, 1:] / torch.tensor(effect.deviation)).T
    assert effect.parts[0].lags == 0
    left = raw[:, 0] - moved
    weights = base.structures[0].weights(base.most, 4, 6)
    expected = moved[at : at + 4] + 0.5 * left[at - 1] + 0.5 * weights @ left[at - base.most : at]
    torch.testing.assert_close(batch["base"][0, :, 0], expected)
    scale = left[at - 12 : at].std(correction=0)
    torch.testing.assert_close(batch["scale"][0, 0, 0], scale)
    seen = (left[at - 12 : at] - left[at - 1]) / scale
    torch.testing.assert_close(batch["values"][0, :, 0], seen.float())
    assert batch["values"].shape == (1, 12, 1)
    z = (raw[at : at + 4, 0] - expected) / scale
    mean, deviation = torch.tensor(facts.target.mean), torch.tensor(facts.target.deviation)
    torch.testing.assert_close(batch["targets"][0], ((z - mean) / deviation).float(), rtol=1e-4, atol=1e-5)


def test_multiplicative_effects_are_divided_out_and_multiplied_back(tmp_path: Path) -> None:
    def sales_at(t: int) -> float:
        return (20 + 15 * math.sin(t * math.pi / 3)) * 2 ** rows[t][1]

    rows = table()
    made = [
        (sales_at(t) * 1.01**sales if t < 120 else sales, *rest) for t, (sales, *rest) in enumerate(table(effect=0))
    ]
    built = config(tmp_path, data=str(written(tmp_path, made)), base=1.0, model=LINEAR).build()
    effect, base = built.facts.effect, built.facts.base
    assert effect is not None
    assert base is not None
    assert effect.parts[0].unit == "factor"
    raw = open_long(tmp_path / "sales.csv")[0][0].values
    factor = effect.of(raw[None, :120, :1], raw[None, :, 1:])[1][0, :, 0]
    windows, batch = built.held_out("test"), built.held_out_batch("test", torch.tensor([3]))
    at = int(windows.places[3, 1])
    left = raw[:120, 0] / factor[:120]
    weights = base.structures[0].weights(base.most, 4, 6)
    before = left[at - base.most : at]
    of_left = (weights @ before.log()).exp() if base.in_logarithms[0] else weights @ before
    torch.testing.assert_close(batch["base"][0, :, 0], factor[at : at + 4] * of_left)
    scale = left[at - 12 : at].std(correction=0)
    torch.testing.assert_close(batch["scale"][0, :, 0], factor[at : at + 4] * scale)
    model = fitted(built)
    predicted = [float(row["sales"]) for row in built.predict(model, [tmp_path / "sales.csv"], CPU)]
    assert predicted == pytest.approx([sales_at(t) * 1.01**20 for t in range(120, 124)], rel=0.1)
    form = built.tensor_form(model)
    same = form.module()(raw[None, 120 - built.facts.num_read : 120], raw[None, 120:, 1:])
    torch.testing.assert_close(same[0, :, 0].tolist(), predicted, rtol=1e-5, atol=1e-5)


def test_networks_see_known_channels_over_the_horizon(tmp_path: Path) -> None:
    built = config(tmp_path, model=SMALL).build()
    batch = built.held_out_batch("test", torch.tensor([3]))
    at = int(built.held_out("test").places[3, 1])
    raw, deviation = open_long(tmp_path / "sales.csv")[0][0].values, torch.tensor(built.facts.deviation).double()
    assert batch["values"].shape == (1, 16, 3)
    assert batch["values"][0, 12:, 0].tolist() == [0.0] * 4
    known = (raw[at - 12 : at + 4, 1:] - raw[at - 1, 1:]) / deviation[1:]
    torch.testing.assert_close(batch["values"][0, :, 1:], known.float())
    model = built.model()
    assert model(batch["values"]).shape == (1, 4)
    assert len(built.predict(model.eval(), [tmp_path / "sales.csv"], CPU)) == 4


@pytest.mark.parametrize("model", [LINEAR, SMALL])
@pytest.mark.parametrize("quantiles", [(), (0.1, 0.9)])
def test_a_graph_takes_known_channels(tmp_path: Path, model: Any, quantiles: tuple[float, ...]) -> None:
    built = config(tmp_path, model=model, quantiles=quantiles, base=1.0).build()
    net = fitted(built)
    form = built.tensor_form(net)
    assert [slot.name for slot in form.inputs] == ["values", "ahead"]
    assert all(each.is_contiguous() for each in form.example({"batch": 2}))  # else a graph fixes the batch size
    series = open_long(tmp_path / "sales.csv")[0]
    values = series[0].values[None]
    count = built.facts.num_read
    found = form.module()(values[:, 120 - count : 120], values[:, 120:, 1:])
    levels, number = built.forecasts(net, series, CPU)
    expected = torch.cat([number[..., None], levels], -1) if quantiles else number
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_facts_survive_json(tmp_path: Path) -> None:
    built = config(tmp_path).build()
    facts = from_json(json.loads(json.dumps(to_json(built.facts))), Task.Facts, [Forecasting.Facts, *Forecasting.parts])
    assert facts == built.facts
    assert built.config.build(facts).num_train == built.num_train
    with refused(ValueError, "the channels that are known of ", "are ('price', 'promo'); the run was made with"):
        dataclasses.replace(built.config, known=("price", "promo")).build(facts).num_train  # noqa: B018 - reads


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"known": ("cost",)}, "has no channel 'cost'; the channels are sales, promo, price"),
        ({"known": ("promo", "promo")}, "known names 'promo' twice; name it once"),
        ({"channels": ("sales", "promo")}, "'promo' is predicted and known ahead; take it out of channels or of known"),
        ({"known": ("sales", "promo", "price")}, "are known ahead: sales, promo, price; leave one to be predicted"),
    ],
)
def test_unknown_names_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        config(tmp_path, **settings).build()


def changed(rows: list[Row], at: int, column: int) -> list[Row]:
    return [tuple(math.nan if (t, c) == (at, column) else v for c, v in enumerate(row)) for t, row in enumerate(rows)]


def test_known_channels_without_a_value_are_refused(tmp_path: Path) -> None:
    with refused(ValueError, "sales.csv: sales.csv has no price at 40.0; price is known ahead, and must have a value"):
        config(tmp_path, data=str(written(tmp_path, changed(table(), 40, 2)))).build()
    gap = changed(changed(table(), 40, 2), 40, 0)  # nothing is predicted there
    built = config(tmp_path, data=str(written(tmp_path, gap))).build()
    model = fitted(built)

    def predict(rows: list[Row]) -> list[Any]:
        return built.predict(model, [written(tmp_path, rows, "asked.csv")], CPU)

    assert len(predict(changed(table(), 2, 1))) == 4  # before all samples that are read
    with refused(ValueError, "asked.csv has no promo at 118.0; promo is known ahead"):
        predict(changed(table(), 118, 1))
    with refused(ValueError, "asked.csv has no promo at 122.0; promo is known ahead"):
        predict(changed(table(), 122, 1))
    with refused(
        ValueError,
        "asked.csv has 3 samples after the last one with sales; the model predicts 4, and must know promo, "
        "price there: give rows from 120.0 to 123.0, with promo, price filled and sales empty",
    ):
        predict(table()[:-1])
    with pytest.warns(
        UserWarning, match="asked.csv has 6 samples after the last one with sales; the first 4 are predicted"
    ):
        assert [row["time"] for row in predict(table(ahead=6))] == [120.0, 121.0, 122.0, 123.0]
    with refused(ValueError, "asked.csv has 1 sample; the model reads the last 12 of a series"):
        predict([(math.nan if t >= 1 else s, p, c) for t, (s, p, c) in enumerate(table())])


def test_the_error_for_a_series_without_any_value_names_it(tmp_path: Path) -> None:
    rows = [f"{name},{t},{'' if name == 'b' else t % 5},{t % 3}" for name in "ab" for t in range(60)]
    (tmp_path / "shops.csv").write_text("\n".join(["unique_id,ds,sales,promo", *rows]))
    with refused(ValueError, "shops.csv: b has no value of sales; take it out, or fill some"):
        config(tmp_path, data=str(tmp_path / "shops.csv"), known=("promo",)).build()


def test_a_channel_that_never_changed_has_no_effect_and_hides_none(tmp_path: Path) -> None:
    rows = [(sales, promo, 1e6) for sales, promo, _ in table()]
    built = config(tmp_path, data=str(written(tmp_path, rows))).build()
    effect = built.facts.effect
    assert effect is not None
    assert effect.parts[0].weights[1] == 0
    model = fitted(built)
    predicted = [float(row["sales"]) for row in built.predict(model, [tmp_path / "sales.csv"], CPU)]
    assert predicted == pytest.approx(
        [20 + math.sin(t * math.pi / 3) + 5 * rows[t][1] for t in range(120, 124)], abs=0.8
    )
    later = [(*row[:2], 1e6 + 1) if t >= 120 else row for t, row in enumerate(rows)]
    rows_later = built.predict(model, [written(tmp_path, later, "asked.csv")], CPU)
    assert [float(row["sales"]) for row in rows_later] == predicted


def test_several_series_and_arrays(tmp_path: Path) -> None:
    rows = [table(count, 4, effect, seed) for count, effect, seed in ((90, 5.0, 0), (70, 5.0, 1))]
    lengths, values = np.array([94, 74]), np.full((2, 94, 3), np.nan)
    for i, each in enumerate(rows):
        values[i, : len(each)] = each
    np.savez(tmp_path / "two.npz", values=values, lengths=lengths, channels=np.array(["sales", "promo", "price"]))
    built = config(tmp_path, data=str(tmp_path / "two.npz")).build()
    predicted = built.predict(fitted(built), [tmp_path / "two.npz"], CPU)
    assert [row["time"] for row in predicted] == [*range(90, 94), *range(70, 74)]
    for row, (_, promo, _) in zip(predicted, [*rows[0][90:], *rows[1][70:]], strict=True):
        t = float(row["time"])
        assert float(row["sales"]) == pytest.approx(20 + math.sin(t * math.pi / 3) + 5 * promo, abs=0.8)
