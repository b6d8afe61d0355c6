"""Communication between processes, against the model on paper."""

import dataclasses

import pytest

from benchmarks.shared_signals import CHANNELS, HEADS, KERNELS
from benchmarks.shared_signals_model import WAYS, Config, Sizes, efficiency
from tests.distributed import shared
from tests.processes import on_processes


def test_bytes_match_the_model() -> None:
    sizes = Sizes(points=16, processes=2, channels=CHANNELS, heads=HEADS, width=128, number=4)
    for found in on_processes(2, shared.bytes_by_kernel, 4):
        assert found.keys() == KERNELS.keys()
        for name, way in WAYS.items():
            assert found[name] == [way.ring(sizes), way.sums(sizes)], name


@pytest.mark.parametrize("name", WAYS)
def test_efficiency_falls_with_the_number_of_gpus_and_rises_with_bandwidth(name: str) -> None:
    slow = Config(gigabytes=1.0)
    shares = [efficiency(name, gpus, slow) for gpus in (1, 8, 64, 1024)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert efficiency(name, 64, dataclasses.replace(slow, gigabytes=100.0)) >= shares[2]
