"""Reasons why fused routes refuse: no triton, no GPU, or unsupported kernels and domains; none raises an error."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.yat_attention import ConcatenatedQKV
from fredholm.domains import Domain, Grid, Points, Sequence
from fredholm.evaluation import (
    AUTO,
    FeatureSum,
    Integral,
    ScoreTiled,
    Toeplitz,
    TritonFeatureSum,
    TritonTiled,
    TritonYat,
)
from fredholm.evaluation.triton import machine
from fredholm.kernels import MLP, SeparableMLP, SoftSigmoid, Yat, YatAttention


def mlp(embed_dim: int = 4, num_frequencies: int = 2, **options: Any) -> MLP:
    return MLP(embed_dim, 2, 2, width=3, num_frequencies=num_frequencies, **options)


def reasons(kernel: MLP, dtype: torch.dtype = torch.float32, domain: Domain | None = None, **more) -> list[str]:
    domain = Grid(3, 3) if domain is None else domain
    u = torch.zeros(1, domain.num_points, kernel.in_dim, dtype=dtype)
    return TritonTiled(**more).unsupported_reasons(Integral(kernel, u, domain))


@pytest.fixture
def interpreting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the machine one on which fused routes can run."""
    monkeypatch.setattr(machine, "INSTALLED", True)
    monkeypatch.setattr(machine, "INTERPRETING", True)
    monkeypatch.setattr(machine.FusedRoute, "devices", ("cuda", "cpu"))


def test_a_refusal_stops_at_the_first_reason(monkeypatch):
    monkeypatch.setattr(MLP, "reads_displacement", lambda *_: pytest.fail("looked at the kernel"))
    assert len(reasons(mlp())) == 1


def test_on_a_cpu_another_route_is_chosen(monkeypatch):
    monkeypatch.setattr(machine, "INSTALLED", True)
    choice = AUTO.choose(Integral(mlp(), torch.zeros(1, 9, 4), Grid(3, 3)))
    assert isinstance(choice.route, Toeplitz)
    assert "not TritonTiled: the signal is on cpu, not on cuda" in str(choice)


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setattr(machine, "INSTALLED", False)
    monkeypatch.setattr(machine.FusedRoute, "devices", ("cpu",))
    assert reasons(mlp()) == ["triton is not installed (pip install 'fredholm[triton]')"]


@pytest.mark.parametrize(
    ("kernel", "domain", "more", "expected"),
    [
        (mlp(depth=3), Grid(3, 3), {}, "the kernel has 3 layers, and only 2 are fused"),
        (mlp(embed_dim=514), Grid(1, 1), {}, "a head has 257 channels, above 256"),
        (mlp(num_frequencies=257), Grid(1, 1), {}, "the kernel has 257 frequencies, above 256"),
        (
            mlp(),
            Grid(3, 3, periodic=True),
            {"table": False},
            "displacements on a periodic domain are read from a table, and there is none",
        ),
    ],
)
@pytest.mark.usefixtures("interpreting")
def test_unsupported_kernels_are_refused_with_a_reason(kernel, domain, more, expected):
    assert reasons(kernel, domain=domain, **more) == [expected]


@pytest.mark.usefixtures("interpreting")
def test_supported_kernels_are_accepted():
    assert reasons(mlp()) == []
    assert reasons(mlp(), domain=Grid(3, 3, periodic=True)) == []
    assert reasons(mlp(), domain=Points(torch.rand(4, 2))) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"is_causal": True}, "the kernel is causal, so that every query has a sum of its own"),
        ({"embed_dim": 514}, "a head has 257 channels, above 256"),
        ({"num_frequencies": 257}, "the kernel has 257 frequencies, above 256"),
    ],
)
@pytest.mark.usefixtures("interpreting")
def test_unsupported_features_are_refused_with_a_reason(options, expected):
    options = {"embed_dim": 4, "num_frequencies": 2} | options
    kernel = SeparableMLP(options.pop("embed_dim"), 2, 2, width=3, **options)
    u, domain = torch.zeros(1, 9, kernel.in_dim), Grid(3, 3)
    assert TritonFeatureSum().unsupported_reasons(Integral(kernel, u, domain)) == (
        [] if expected is None else [expected]
    )


def test_on_a_cpu_fused_features_are_refused():
    kernel, u = SeparableMLP(4, 2, 2, width=3, num_frequencies=2), torch.zeros(1, 9, 4)
    choice = AUTO.choose(Integral(kernel, u, Grid(3, 3)))
    assert isinstance(choice.route, FeatureSum)
    assert len(choice.refusals["TritonFeatureSum"]) == 1


@pytest.mark.usefixtures("interpreting")
def test_the_interpreter_refuses_bfloat16():
    for dtype in (torch.float64, torch.bfloat16):
        found = [f"computes in float32 and float16, not in {str(dtype).removeprefix('torch.')}"]
        assert reasons(mlp(), dtype) == found
    with torch.autocast("cpu", torch.bfloat16):
        assert reasons(mlp()) == found
    with torch.autocast("cpu", torch.float16):
        assert reasons(mlp()) == reasons(mlp(), torch.float16) == []


@pytest.mark.parametrize(
    ("capability", "cuda", "dtype", "expected"),
    [
        ((9, 0), "13.0", torch.bfloat16, []),
        ((8, 0), "12.8", torch.float32, []),
        ((7, 5), "12.8", torch.float32, ["the GPU has compute capability 7.5, below 8.0"]),
        ((9, 0), None, torch.float32, ["the kernels are made for NVIDIA GPUs"]),
        ((9, 0), "13.0", torch.float64, ["computes in float32, bfloat16 and float16, not in float64"]),
        ((9, 0), "13.0", torch.float16, []),
    ],
)
def test_gpus_and_dtypes_are_checked(monkeypatch, capability, cuda, dtype, expected):
    monkeypatch.setattr(machine, "INSTALLED", True)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    found = SimpleNamespace(major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    integral: Any = SimpleNamespace(u=SimpleNamespace(device=torch.device("cuda", 1)), working_dtype=dtype)
    assert machine.machine_refusals(integral) == expected


@pytest.mark.slow
def test_neither_importing_nor_refusing_imports_triton():
    program = (
        "import sys, torch; from fredholm import domains, evaluation, kernels; "
        "asked = evaluation.Integral(kernels.MLP(4, 2, 2), torch.zeros(1, 9, 4), domains.Grid(3, 3)); "
        "evaluation.AUTO.choose(asked); "
        "print([name for name in sys.modules if name.partition('.')[0] == 'triton'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (YatAttention(4, 2), None),
        (YatAttention(4, 2, normaliser=SoftSigmoid()), "softmax and softermax are fused, not SoftSigmoid"),
        (YatAttention(514, 2), "a head has 257 channels, above 256"),
        (Yat(3, 257), "a head has 257 channels, above 256"),
        (Yat(3, 2, reads_bias=True), "keys have constants, which are not fused"),
        (ConcatenatedQKV(384, 3), None),
        (ConcatenatedQKV(384, 1), "a head has 384 channels, above 256"),
    ],
    ids=["fused", "normaliser", "channels", "channels of values", "constants", "three signals in one", "likewise"],
)
@pytest.mark.usefixtures("interpreting")
def test_unsupported_yat_scores_are_refused_with_a_reason(kernel, expected):
    u, query = torch.zeros(1, 3, kernel.in_dim), torch.zeros(1, 3, kernel.query_dim)
    found = TritonYat().unsupported_reasons(Integral(kernel, u, Sequence(3), query))
    assert expected in found if expected else found == []


@pytest.mark.usefixtures("interpreting")
def test_pair_weights_of_yat_scores_are_computed_in_tiles():
    where = Sequence(3).weigh_pairs(torch.zeros(3, 3))
    choice = AUTO.choose(Integral(YatAttention(4, 2), torch.zeros(1, 3, 4), where))
    assert isinstance(choice.route, ScoreTiled)
    assert "the measure differs from query to query" in choice.refusals["TritonYat"]
