"""`fredholm verify`: all checks hold, and violations are found."""

import json
import math

import pytest
import torch

from fredholm import cli, kernels
from fredholm.kernels import SemiSeparable
from fredholm.verification.check import Check, relative_error
from fredholm.verification.verify import table, verify

LAYERS = {
    *(f"Conv{transpose}{axes}d" for transpose in ("", "Transpose") for axes in (1, 2, 3)),
    "MultiheadAttention", "scaled_dot_product_attention", "linear attention", "Linear", "RNN", "LSTM", "GRU",
    "linear RNN", "linear system", "S4D", "Mamba", "TransformerEncoder", "Sequential", "witness",
    "GCNConv", "SAGEConv", "GINConv", "GATConv", "NNConv",
}  # fmt: skip
ROUTES = {
    "quadrature", "NativeConvolution", "FFT", "FusedAttention", "FeatureMapSum", "NativeRecurrence", "Scan", "StepLoop",
    "LongConvolution", "PointwiseProduct", "EdgeSum",
}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[Check]:
    return list(verify())


def test_every_check_holds_and_every_layer_is_checked(rows):
    assert [row for row in rows if not row.ok] == []
    assert {row.layer for row in rows} == LAYERS
    assert {row.check for row in rows} >= ROUTES
    for row in rows:
        if not row.at_least:
            assert row.bound <= 1e-10
            assert 0 <= row.max_error <= 1e-10


def test_every_quadrature_and_route_is_checked_with_its_gradient(rows):
    checks = {(row.layer, row.variant, row.check) for row in rows}
    for layer, variant, check in checks:
        if check in ROUTES:
            assert (layer, variant, f"{check}, gradient") in checks


@pytest.mark.slow
def test_another_seed_gives_other_instances_and_the_global_random_state_is_kept(rows):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    others = list(verify(seed=1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(row.ok for row in others)
    assert [row.max_error for row in others] != [row.max_error for row in rows]


@pytest.mark.slow
def test_the_command_prints_a_table_and_exits_with_0(capsys):
    assert cli.main(["verify"]) == 0
    printed = capsys.readouterr().out
    assert "Conv2d" in printed
    assert "0 beyond their bounds" in printed
    assert "FAILED" not in printed


def test_json_has_one_object_per_check(capsys, rows):
    assert cli.main(["verify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len(rows)
    assert set(found[0]) == {"layer", "variant", "check", "max_error", "bound", "ok"}


def test_kernels_that_are_wrong_by_a_millionth_are_found(monkeypatch, capsys):
    for broken, method in (
        (kernels.Convolution, "matrix"),
        (kernels.Attention, "value_matrices"),
        (kernels.LinearAttention, "value_matrices"),
        (SemiSeparable, "matrix"),
        (kernels.OnEdges, "matrix"),
    ):
        right = getattr(broken, method)

        def wrong(*arguments, right=right, **options):
            return right(*arguments, **options) * (1 + 1e-6)

        monkeypatch.setattr(broken, method, wrong)
    assert cli.main(["verify"]) == 1
    failed = [line.strip() for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    for layer in ("Conv2d", "MultiheadAttention", "linear attention", "LSTM", "GCNConv"):
        assert any(line.startswith(layer) for line in failed), (layer, failed)


def test_lower_bounds_and_nan():
    assert not Check("witness", "", "", 0.01, 0.1, at_least=True).ok
    assert Check("witness", "", "", 0.2, 0.1, at_least=True).ok
    assert not Check("x", "", "quadrature", math.nan, 1e-12).ok
    assert relative_error(torch.zeros(2), torch.zeros(3)) == math.inf
    assert "FAILED" in table([Check("x", "y", "quadrature", math.nan, 1e-12)])


def test_bad_seeds_are_refused():
    with pytest.raises(ValueError, match="seed is 100000000000000000000; expected an integer from 0"):
        next(verify(seed=10**20))
