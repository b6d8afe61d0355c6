import math
from typing import Any

import pytest
import torch

from fredholm.encoders import TableRow, TableRowBatch
from tests.refusals import refused

NAN = math.nan


def encoder(numbers: int = 2, categories: tuple[int, ...] = (3, 2), **more: Any) -> TableRow:
    torch.manual_seed(0)
    return TableRow(numbers, categories, 5, **{"num_frequencies": 4, **more}).double()


def batch() -> TableRowBatch:
    numbers = torch.tensor([[0.5, -1.0], [NAN, 2.0], [NAN, NAN]], dtype=torch.float64)
    return TableRowBatch(numbers, torch.tensor([[2, 1], [0, -1], [-1, -1]]))


def test_each_column_is_a_point_with_its_map() -> None:
    built, inputs = encoder(), batch()
    u, domain = built(inputs)
    assert (u.shape, domain.pos.tolist()) == ((3, 4, 5), [[0.0]] * 4)
    assert built.frequencies is not None
    assert built.number_weight is not None
    assert built.number_bias is not None
    assert built.category_weight is not None
    for column, v in enumerate((0.5, -1.0)):
        phases = [2 * math.pi * v * float(f) for f in built.frequencies]
        features = [v, *map(math.sin, phases), *map(math.cos, phases)]
        found = sum(f * row for f, row in zip(features, built.number_weight[column], strict=True))
        torch.testing.assert_close(u[0, column], found + built.number_bias[column])
    assert torch.equal(u[0, 2], built.category_weight[2])
    assert torch.equal(u[0, 3], built.category_weight[3 + 1])


def test_missing_values_are_masked_and_have_no_effect() -> None:
    built, inputs = encoder(), batch()
    assert inputs.numbers is not None
    numbers = inputs.numbers.requires_grad_()
    u, domain = built(inputs)
    assert domain.mask is not None
    assert domain.mask.tolist() == [[True] * 4, [False, True, True, False], [False] * 4]
    torch.testing.assert_close(domain.weights[1], torch.tensor([0, 0.5, 0.5, 0], dtype=torch.float64))
    assert not u[~domain.mask].any()
    u.square().sum().backward()
    assert numbers.grad is not None
    assert numbers.grad.isfinite().all()
    assert numbers.grad.bool().tolist() == [[True, True], [False, True], [False, False]]


@pytest.mark.parametrize(("numbers", "categories"), [(2, ()), (0, (3, 2))])
def test_columns_of_only_one_kind(numbers: int, categories: tuple[int, ...]) -> None:
    more = {} if numbers else {"num_frequencies": 8}
    built, inputs = encoder(numbers, categories, **more), batch()
    alone = TableRowBatch(inputs.numbers, None) if numbers else TableRowBatch(None, inputs.categories)
    assert built(alone)[0].shape == (3, 2, 5)
    with refused(ValueError, "expected no categories" if numbers else "expected no numbers"):
        built(inputs)


def test_without_frequencies_maps_of_numbers_are_linear() -> None:
    built = encoder(1, (), num_frequencies=0)
    values = torch.linspace(-2, 2, 5, dtype=torch.float64)[:, None]
    u = built(TableRowBatch(values))[0][:, 0]
    torch.testing.assert_close(u.diff(dim=0), u.diff(dim=0)[:1].expand(4, -1))


def test_the_initial_signal_is_of_order_one() -> None:
    built = TableRow(40, (7,) * 40, 64, num_frequencies=16)
    u = built(TableRowBatch(torch.randn(50, 40), torch.randint(7, (50, 40))))[0]
    assert u[:, :40].std().item() == pytest.approx(2**0.5, rel=0.1)
    assert u[:, 40:].std().item() == pytest.approx(1.0, rel=0.1)


def test_bad_inputs_are_refused() -> None:
    with refused(ValueError, "num_numbers is 0 and num_categories is empty"):
        TableRow(0, (), 4)
    with refused(ValueError, "num_categories[1] must be at least 1; got 0"):
        TableRow(1, (2, 0), 4)
    with refused(ValueError, "sigma=1.0 has no effect with num_numbers=0"):
        TableRow(0, (2,), 4, sigma=1.0)
    with refused(ValueError, "sigma=1.0 has no effect with num_frequencies=0"):
        TableRow(2, (2,), 4, num_frequencies=0, sigma=1.0)
    built, inputs = encoder(), batch()
    with refused(TypeError, "expected a TableRowBatch; got Tensor"):
        built(inputs.numbers)
    with refused(ValueError, "expected numbers of shape (rows, 2); got none"):
        built(inputs._replace(numbers=None))
    with refused(ValueError, "numbers of shape (rows, 2)", "(3, 3)"):
        built(inputs._replace(numbers=torch.zeros(3, 3)))
    with refused(ValueError, "numbers must be floats; got torch.int64"):
        built(inputs._replace(numbers=torch.zeros(3, 2, dtype=torch.int64)))
    with refused(ValueError, "infinite", "put NaN"):
        built(inputs._replace(numbers=torch.full((3, 2), math.inf)))
    with refused(ValueError, "categories must be int64"):
        built(inputs._replace(categories=torch.zeros(3, 2)))
    with refused(ValueError, "3, 2 categories", "got 0 to 2"):
        built(inputs._replace(categories=torch.tensor([[0, 2]] * 3)))
    with refused(ValueError, "got -2 to 0"):
        built(inputs._replace(categories=torch.tensor([[0, -2]] * 3)))
    with refused(ValueError, "of 3 and 2 rows"):
        built(inputs._replace(categories=torch.zeros(2, 2, dtype=torch.int64)))
