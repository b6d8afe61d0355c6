import torch

from fredholm.encoders import SeriesBatch
from fredholm.models import SamplePyramid, SeriesSampling
from fredholm.models.series.sample_pyramid import MOST_READ
from tests.refusals import refused

SAMPLING = SeriesSampling(channels=2, spacing=1.0, extent=20.0)


def network() -> SamplePyramid:
    torch.manual_seed(0)
    return SamplePyramid.Config(embed_dim=8, strides=(2, 2)).build(SAMPLING, 3).eval().requires_grad_(False)


def test_outputs_are_0_at_samples_that_do_not_exist() -> None:
    values, mask = torch.randn(2, 9, 2), torch.arange(9) < torch.tensor([[9], [4]])
    outputs = network()(SeriesBatch(values, mask))
    assert outputs.shape == (2, 9, 3)
    assert bool((outputs[1, 4:] == 0).all())
    assert bool((outputs[mask] != 0).any(-1).all())


def test_a_graph_takes_no_times() -> None:
    model, values = network(), torch.randn(2, 7, 2)
    program = torch.export.export(model, (values,), strict=False)
    torch.testing.assert_close(program.module()(values), model(values))
    with refused(ValueError, "encoders.SeriesPyramid: samples at other times are put into cells"):
        torch.export.export(model, (SeriesBatch(values, None, torch.arange(7.0).expand(2, -1)),), strict=False)


def test_answers_are_read_in_long_parts() -> None:
    config = SamplePyramid.Config(strides=(2, 3))
    assert (config.coarsest, config.window_of_answers(12)) == (6, MOST_READ)
    assert config.window_of_answers(2 * MOST_READ) == 2 * MOST_READ


def test_a_series_has_no_single_class() -> None:
    with refused(ValueError, "model is SamplePyramid, which has an output for each sample"):
        SamplePyramid.Config().check()
    with refused(ValueError, "models.SamplePyramid: strides is (); expected at least one"):
        SamplePyramid.Config(strides=())
