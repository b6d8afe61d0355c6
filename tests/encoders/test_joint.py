import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fredholm import encoders
from fredholm.domains import Domain, Grid, Points, Union
from fredholm.encoders import Joint, JointBatch, PointBatch, SeriesBatch, TableRowBatch
from fredholm.models import AttentionConfig, ITNet, LowRankConfig, MLPConfig
from tests.refusals import refused

MASS = {"photo": 1.0, "notes": 2.0, "row": 0.5, "track": 1.5}
PAD = 9


def encoder(*, mass: dict[str, float] | None = None, without: tuple[str, ...] = (), width: int = 4) -> Joint:
    images = encoders.Image.Config(image_size=(4, 6), patch_size=2, channels=1, num_frequencies=2, sigma=1.0)
    parts = {
        "photo": encoders.Image(images, width),
        "notes": encoders.Text(10, width, context=8, num_frequencies=2, sigma=1.0, pad=PAD),
        "row": encoders.TableRow(2, (3,), width),
        "track": encoders.Series(2, width, extent=4.0),
    }
    built = Joint({name: part for name, part in parts.items() if name not in without}, mass=mass).double()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            # seeded by name, so that an encoder of fewer parts has the same parameters
            seed = torch.Generator().manual_seed(sum(map(ord, name)))
            parameter.copy_(torch.randn(parameter.shape, generator=seed, dtype=torch.float64))
        if "row" not in without:
            row: Any = built.parts["row"]
            row.frequencies.copy_(torch.linspace(-0.5, 0.5, 8)[:, None])
        for name in ("photo", "notes"):
            if name not in without:
                part: Any = built.parts[name]
                part.frequencies.copy_(torch.linspace(-1, 1, part.frequencies.numel()).view_as(part.frequencies))
    return built


def batch(size: int = 3) -> dict[str, Any]:
    torch.manual_seed(1)
    tokens = torch.tensor([[1, 2, 3, 4, 5], [1, 6, 7, PAD, PAD], [1, 3, 3, 2, PAD]])
    times = torch.tensor([[0.0, 0.5, 1.0, 3.0], [0.0, 1.0, 1.5, 2.0], [0.0, 0.25, 0.5, 9.0]], dtype=torch.float64)
    exists = torch.tensor([[True] * 4, [True] * 4, [True] * 3 + [False]])
    numbers = torch.tensor([[0.1, -0.2], [math.nan, 1.0], [0.3, 0.4]], dtype=torch.float64)
    return {
        "photo": torch.randn(3, 1, 4, 6, dtype=torch.float64)[:size],
        "notes": tokens[:size],
        "row": TableRowBatch(numbers[:size], torch.tensor([[0], [2], [-1]])[:size]),
        "track": SeriesBatch(torch.randn(3, 4, 2, dtype=torch.float64)[:size], exists[:size], times[:size]),
    }


def entry(inputs: dict[str, Any], index: int) -> dict[str, Any]:
    """One example of a batch."""

    def of(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part[index : index + 1]
        return type(part)(*(None if each is None else each[index : index + 1] for each in part))

    return {name: of(part) for name, part in inputs.items()}


SIZES = {"photo": 6, "notes": 5, "row": 3, "track": 4}
STARTS = {"photo": 0, "notes": 6, "row": 11, "track": 14}


def test_the_signal_is_each_encoders_signal_plus_its_part_weight() -> None:
    built, inputs = encoder(), batch()
    u, domain = built(inputs)
    assert (u.shape, built.pos_dim, domain.pos_dim) == ((3, 18, 4), 3, 3)
    for number, (name, part) in enumerate(built.parts.items()):
        part_signal, where = part(inputs[name])
        at = slice(STARTS[name], STARTS[name] + SIZES[name])
        exists = torch.ones(3, SIZES[name], dtype=torch.bool) if where.mask is None else where.mask.expand(3, -1)
        assert domain.mask is not None
        assert torch.equal(domain.mask[:, at], exists)
        torch.testing.assert_close(u[:, at], (part_signal + built.part_weight[number]) * exists[..., None])


def test_points_keep_their_coordinates_and_parts_are_separated() -> None:
    built, inputs = encoder(), batch()
    pos = built(inputs)[1].pos
    pos = pos if pos.ndim == 3 else pos.expand(3, -1, -1)
    for number, (name, part) in enumerate(built.parts.items()):
        where = part(inputs[name])[1]
        part_pos = where.pos if where.pos.ndim == 3 else where.pos.expand(3, -1, -1)
        expected = torch.zeros(3, SIZES[name], 3, dtype=torch.float64)
        expected[..., : part_pos.shape[-1]] = part_pos
        expected[..., 2] = 1.5 * number
        exists = torch.ones(3, SIZES[name], 1) if where.mask is None else where.mask.expand(3, -1)[..., None]
        at = pos[:, STARTS[name] : STARTS[name] + SIZES[name]]
        torch.testing.assert_close(at * exists, expected * exists)


@pytest.mark.parametrize("mass", [None, MASS])
def test_each_part_has_its_mass_and_keeps_its_measure(mass: dict[str, float] | None) -> None:
    built, inputs = encoder(mass=mass), batch()
    weights = built(inputs)[1].weights
    masses = dict.fromkeys(MASS, 1.0) if mass is None else mass
    for name, part in built.parts.items():
        part_weights = part(inputs[name])[1].weights
        part_weights = (part_weights / part_weights.sum(-1, keepdim=True)).expand(3, -1)
        at = slice(STARTS[name], STARTS[name] + SIZES[name])
        torch.testing.assert_close(weights[:, at], part_weights * masses[name] / sum(masses.values()))


def test_grids_and_regular_series_stay_grids() -> None:
    images = encoders.Image.Config(image_size=(4, 6), patch_size=2, channels=1, num_frequencies=2)
    parts = {"photo": encoders.Image(images, 4), "series": encoders.Series(2, 4)}
    domain = Joint(parts)({"photo": torch.randn(2, 1, 4, 6), "series": torch.randn(2, 5, 2)})[1]
    assert [(block.start, block.shape) for block in domain.grid_blocks] == [(0, (2, 3, 1)), (6, (5, 1, 1))]
    assert domain.is_generated
    assert not domain.is_ordered
    expected = Union(Grid(2, 3, 1, spacing=(0.5, 1 / 3, 1.0), origin=(0.25, 1 / 6, 0.0)), Grid(1, 1, 1))
    torch.testing.assert_close(domain.pos[:6], expected.pos[:6])


def network(kernel: Any, pool: Any, **more: Any) -> ITNet:
    config = ITNet.Config(embed_dim=4, depth=2, num_heads=2, kernel=kernel, dropout=0.0, drop_path=0.0, pool=pool)
    torch.manual_seed(2)
    return ITNet(encoder(**more), 3, config).double().eval()


KERNELS = {
    "exact": MLPConfig(width=5, num_frequencies=2, sigma=1.0, epsilon=1.0),
    "low rank": LowRankConfig(width=5, num_frequencies=2, sigma=1.0, rank=2, epsilon=1.0),
    "attention": AttentionConfig(),
}


@pytest.mark.parametrize("pool", ["cls", "mean", "max"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_padding_and_other_batch_entries_change_nothing(kernel: str, pool: str) -> None:
    model, inputs = network(KERNELS[kernel], pool, mass=MASS), batch()
    present = {"track": torch.tensor([True, False, True]), "photo": torch.tensor([True, True, False])}
    together = model(JointBatch(inputs, present))
    for i in range(3):
        entry_present = {name: has[i : i + 1] for name, has in present.items()}
        torch.testing.assert_close(together[i : i + 1], model(JointBatch(entry(inputs, i), entry_present)))
    longer = inputs | {"notes": torch.nn.functional.pad(inputs["notes"], (0, 3), value=PAD)}
    torch.testing.assert_close(model(JointBatch(longer, present)), together)


@pytest.mark.parametrize("pool", ["cls", "mean", "max"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_missing_part_is_the_same_as_a_model_of_the_other_parts(kernel: str, pool: str) -> None:
    inputs = batch()
    whole = network(KERNELS[kernel], pool, mass=MASS)
    rest = {name: mass for name, mass in MASS.items() if name != "track"}
    fewer = network(KERNELS[kernel], pool, mass=rest, without=("track",))
    state = whole.state_dict()
    state["encoder.part_weight"] = state["encoder.part_weight"][:3]
    fewer.load_state_dict({name: state[name] for name in fewer.state_dict()})
    found = whole(JointBatch(inputs, {"track": torch.tensor([False, True, False])}))
    alone = fewer({name: part for name, part in inputs.items() if name != "track"})
    torch.testing.assert_close(found[[0, 2]], alone[[0, 2]])
    assert (found[1] - alone[1]).abs().max() > 1e-6


def test_values_of_a_missing_part_change_nothing() -> None:
    model, inputs = network(KERNELS["exact"], "mean"), batch()
    present = {"photo": torch.tensor([True, False, True]), "notes": torch.tensor([True, True, False])}
    predicted = model(JointBatch(inputs, present))
    photo, notes = inputs["photo"].clone(), inputs["notes"].clone()
    photo[1], notes[2] = 1e6, PAD - 1
    torch.testing.assert_close(model(JointBatch(inputs | {"photo": photo, "notes": notes}, present)), predicted)
    photo = inputs["photo"].requires_grad_()
    model(JointBatch(inputs, present)).sum().backward()
    assert photo.grad is not None
    assert photo.grad.flatten(1).any(1).tolist() == [True, False, True]


def test_parts_present_everywhere_have_the_same_measure() -> None:
    rest = {name: mass for name, mass in MASS.items() if name != "track"}
    built, inputs = encoder(mass=rest, without=("track",)), batch()
    inputs.pop("track")
    plain, found = (built(each)[1] for each in (inputs, JointBatch(inputs, {"row": torch.ones(3, dtype=torch.bool)})))
    torch.testing.assert_close(found.weights, plain.weights)
    torch.testing.assert_close(found.counts, plain.counts)
    torch.testing.assert_close(found.counts.sum(-1), torch.tensor([14.0, 11.0, 12.0], dtype=torch.float64))


def test_an_example_without_parts_is_finite() -> None:
    inputs, nothing = batch(), torch.zeros(3, dtype=torch.bool)
    for pool in ("cls", "mean"):
        model = network(KERNELS["exact"], pool)
        assert model(JointBatch(inputs, dict.fromkeys(MASS, nothing))).isfinite().all()


def test_a_part_may_be_joint_itself_and_keeps_its_masses() -> None:
    inner = Joint({"a": encoders.TableRow(3, (), 4), "b": encoders.TableRow(1, (), 4)}).double()
    whole = Joint({"ab": inner, "d": encoders.TableRow(5, (), 4)}).double()
    a, b, d = (torch.zeros(2, n, dtype=torch.float64) for n in (3, 1, 5))
    a[1, 0] = math.nan
    domain = whole({"ab": {"a": TableRowBatch(a), "b": TableRowBatch(b)}, "d": TableRowBatch(d)})[1]
    expected = torch.tensor([[1 / 12] * 3 + [0.25] + [0.1] * 5, [0, 0.125, 0.125, 0.25] + [0.1] * 5])
    torch.testing.assert_close(domain.weights, expected.double())
    torch.testing.assert_close(domain.counts.sum(-1), torch.tensor([9.0, 8.0], dtype=torch.float64))


def test_clouds_and_functions_together() -> None:
    cloud = encoders.PointCloud(encoders.PointCloud.Config(num_frequencies=2, num_neighbours=0), 4)
    built = Joint({"cloud": cloud, "row": encoders.TableRow(1, (), 4)}).double()
    pos = torch.randn(2, 5, 3, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    numbers = torch.zeros(2, 1, dtype=torch.float64)
    u, domain = built({"cloud": PointBatch(pos, mask=mask), "row": TableRowBatch(numbers)})
    assert (u.shape, domain.pos.shape) == ((2, 6, 4), (2, 6, 4))
    torch.testing.assert_close(domain.weights[1], torch.tensor([1 / 6] * 3 + [0, 0, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("kernel", KERNELS)
def test_bfloat16_and_autocast_are_close_to_float64(kernel: str) -> None:
    inputs = batch()
    present = {"photo": torch.tensor([True, False, True])}
    expected = network(KERNELS[kernel], "mean")(JointBatch(inputs, present)).float()
    model = network(KERNELS[kernel], "mean")

    def rounded(part: Any, dtype: torch.dtype) -> Any:
        return tree_map(lambda t: t.to(dtype) if t is not None and t.is_floating_point() else t, part)

    times = inputs["track"].times
    for dtype in (torch.float32, torch.bfloat16):
        converted = rounded(inputs, dtype) | {"track": rounded(inputs["track"], dtype)._replace(times=times)}
        predicted = model.to(dtype)(JointBatch(converted, present))
        assert predicted.dtype == dtype
        torch.testing.assert_close(predicted.float(), expected, rtol=0.2, atol=0.1 if dtype == torch.bfloat16 else 1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        converted = rounded(inputs, torch.float32) | {
            "track": rounded(inputs["track"], torch.float32)._replace(times=times)
        }
        predicted = network(KERNELS[kernel], "mean").float()(JointBatch(converted, present))
    torch.testing.assert_close(predicted.float(), expected, rtol=0.2, atol=0.1)


def test_an_empty_batch() -> None:
    inputs = {
        name: part[:0] if isinstance(part, Tensor) else type(part)(*(t[:0] for t in part if t is not None))
        for name, part in batch().items()
    }
    assert network(KERNELS["attention"], "cls")(inputs).shape == (0, 3)


def test_gradients_reach_every_parameter() -> None:
    model = network(KERNELS["exact"], "cls")
    model(JointBatch(batch(), {"photo": torch.tensor([True, False, True])})).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.slow
def test_a_joint_model_is_exported_for_any_batch_size() -> None:
    model = network(KERNELS["attention"], "cls", without=("track",)).float()
    inputs = {
        "photo": torch.randn(2, 1, 4, 6),
        "notes": torch.randint(1, 9, (2, 5)),
        "row": TableRowBatch(torch.randn(2, 2), torch.zeros(2, 1, dtype=torch.int64)),
    }
    present = {"photo": torch.tensor([True, False])}
    arguments = (JointBatch(inputs, present),)
    shapes = tree_map(lambda _: {0: torch.export.Dim.DYNAMIC}, arguments)
    graph = torch.export.export(model, arguments, dynamic_shapes=shapes).module()
    more = {
        "photo": torch.randn(5, 1, 4, 6),
        "notes": torch.randint(1, 9, (5, 5)),
        "row": TableRowBatch(torch.randn(5, 2), torch.zeros(5, 1, dtype=torch.int64)),
    }
    larger_batch = JointBatch(more, {"photo": torch.tensor([True, False, False, True, True])})
    torch.testing.assert_close(graph(larger_batch), model(larger_batch))


class WithDomain(encoders.Encoder):
    """An encoder whose signal is on a fixed domain."""

    def __init__(self, domain: Domain) -> None:
        super().__init__()
        self.domain, self.embed_dim, self.pos_dim = domain, 4, domain.pos_dim

    def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        return inputs, self.domain


def test_bad_inputs_are_refused() -> None:
    row = encoders.TableRow(1, (), 4)
    with refused(TypeError, "a dictionary of encoders by name"):
        Joint([row, row])  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "two encoders or more; got 1"):
        Joint({"row": row})
    with refused(ValueError, "a text without dots; got 'a.b'"):
        Joint({"row": row, "a.b": encoders.TableRow(1, (), 4)})
    with refused(ValueError, "give row 4, other 3 channels; make them equal"):
        Joint({"row": row, "other": encoders.TableRow(1, (), 3)})
    with refused(TypeError, "mass is a dictionary of numbers by part"):
        encoder(mass=(1, 2))  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "mass is of photo; the parts are photo, notes, row, track"):
        encoder(mass={"photo": 1.0})
    with refused(ValueError, "finite numbers above 0"):
        encoder(mass=MASS | {"photo": 0.0})
    built, inputs = encoder(), batch()
    with refused(TypeError, "expected a JointBatch or a dictionary; got Tensor"):
        built(torch.zeros(3, 4))
    with refused(ValueError, "inputs are of 'photo'; the parts are 'photo', 'notes', 'row', 'track'"):
        built({"photo": inputs["photo"]})
    with refused(ValueError, "present are of 'sound'"):
        built(JointBatch(inputs, {"sound": torch.ones(3, dtype=torch.bool)}))
    with refused(TypeError, "present['photo'] must be a bool tensor", "torch.float32"):
        built(JointBatch(inputs, {"photo": torch.ones(3)}))
    with refused(ValueError, "present['photo'] must be (3,); got (2,)"):
        built(JointBatch(inputs, {"photo": torch.ones(2, dtype=torch.bool)}))
    with refused(ValueError, "batches of different sizes", "photo 3, notes 2"):
        built(inputs | {"notes": inputs["notes"][:2]})
    for domain, reason in (
        (Points(torch.rand(3, 2), periodic=True), "is periodic"),
        (_with_weighted_pairs(), "weighs or lists"),
    ):
        joint = Joint({"row": row, "else": WithDomain(domain)})
        with refused(ValueError, f"the domain of 'else' {reason}"):
            joint({"row": TableRowBatch(torch.zeros(2, 1)), "else": torch.zeros(2, 3, 4)})


def _with_weighted_pairs() -> Domain:
    return Points(torch.rand(3, 2)).weigh_pairs(torch.zeros(3, 3))
