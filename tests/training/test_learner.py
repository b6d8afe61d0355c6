import dataclasses
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from fredholm import IntegralOperator, encoders, kernels, models
from fredholm.quadrature.monte_carlo import MonteCarlo
from fredholm.quadrature.nodes import SharedNodes
from fredholm.quadrature.proposal import KeyProposal
from fredholm.training import (
    ExponentialMovingAverage,
    Learner,
    NonFiniteError,
    TrainingConfig,
    parameter_groups,
    warmed_decay,
)
from fredholm.training.batches import Share
from tests.refusals import refused
from tests.training.toy_task import ToyTask

CONFIG = TrainingConfig(epochs=1, batch_size=10, learning_rate=1e-2, device="cpu", warmup_fraction=0.0)


def learner(config: TrainingConfig = CONFIG, *, poisoned: int | None = None) -> tuple[ToyTask, Learner]:
    torch.manual_seed(3)
    task = ToyTask.Config(dropout=0.0, poisoned=poisoned).build()
    return task, Learner(task, config, num_steps=20)


def batch_of(task: ToyTask, start: int, size: int = 10) -> Share:
    batch = task.train_batch(torch.arange(start, start + size), torch.Generator().manual_seed(start))
    return Share(batch, True, size)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("parts", [2, 3, 10])
def test_accumulation_equals_one_large_batch(parts: int) -> None:
    task, whole = learner()
    _, split = learner(dataclasses.replace(CONFIG, accumulation=parts))
    counts = [int(part.sum()) for part in batch_of(task, 0).rows["counted"].tensor_split(parts)]
    assert len(set(counts)) > 1  # so that the mean of the means of the parts would be wrong
    for step in range(4):
        batch = batch_of(task, 10 * step)
        reports = whole.update(batch, step), split.update(batch, step)
        assert reports[0].loss == pytest.approx(reports[1].loss, rel=1e-5)
        for one, other in zip(gradients(whole.model), gradients(split.model), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    for one, other in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_global_gradient_norm_is_clipped_and_reported_unclipped() -> None:
    task, tight = learner(dataclasses.replace(CONFIG, gradient_clip=1e-3))
    report = tight.update(batch_of(task, 0), 0)
    norm = torch.stack([gradient.square().sum() for gradient in gradients(tight.model)]).sum().sqrt()
    assert report.gradient_norm > 0.1
    assert float(norm) == pytest.approx(1e-3, rel=1e-2)


def test_a_step_uses_the_schedule_and_updates_the_average() -> None:
    task, learning = learner(dataclasses.replace(CONFIG, warmup_fraction=0.5))
    before = [parameter.clone() for parameter in learning.model.parameters()]
    report = learning.update(batch_of(task, 0), 0)
    assert report.learning_rate == pytest.approx(1e-2 / 10)
    after, averaged = list(learning.model.parameters()), list(learning.average.model.parameters())
    for old, new, mean in zip(before, after, averaged, strict=True):
        assert not torch.equal(old, new)
        torch.testing.assert_close(mean, old + 0.9 * (new - old))  # the first decay is 1 / 10


@pytest.mark.parametrize("poison", [torch.inf, torch.nan])
def test_a_non_finite_loss_changes_nothing(poison: float) -> None:
    task, learning = learner()
    learning.update(batch_of(task, 0), 0)
    batch = batch_of(task, 10)
    batch.rows["x"][4] = poison
    batch.rows["counted"][4] = True
    before = [parameter.clone() for parameter in learning.model.parameters()]
    with pytest.raises(NonFiniteError, match=r"^the loss is nan$"):
        learning.update(batch, 1)
    assert all(torch.equal(old, new) for old, new in zip(before, learning.model.parameters(), strict=True))
    assert all(int(state["step"]) == 1 for state in learning.optimizer.state.values())


def test_a_non_finite_gradient_of_a_finite_loss_is_noticed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    task, learning = learner()
    bias = next(iter(learning.model.parameters()))
    # sqrt has an infinite slope at 0, where its value is finite.
    monkeypatch.setattr(ToyTask, "loss", lambda self, model, batch: (bias - bias.detach()).sum().abs().sqrt())
    with pytest.raises(NonFiniteError, match=r"^the loss is 0 but its gradient's norm is (nan|inf)$"):
        learning.update(batch_of(task, 0), 0)


def test_bfloat16_computes_in_half_precision_with_float32_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    task, learning = learner(dataclasses.replace(CONFIG, precision="bfloat16"))
    seen: list[torch.dtype] = []
    learning.model.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    report = learning.update(batch_of(task, 0), 0)
    _, exact = learner()
    assert seen == [torch.bfloat16]
    assert report.loss == pytest.approx(exact.update(batch_of(task, 0), 0).loss, rel=2e-2)
    assert {parameter.dtype for parameter in learning.model.parameters()} == {torch.float32}
    moments = [state["exp_avg"].dtype for state in learning.optimizer.state.values()]
    assert set(moments) == {torch.float32}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs is -1; expected at least 0"),
        ({"accumulation": -1}, "accumulation is -1; expected at least 1"),
        ({"accumulation": 200}, "accumulation is 200; a batch of 10 has no more than 10 parts"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected a finite number of more than 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; expected a finite number of more than 0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf; expected a finite number of more than 0"),
        ({"weight_decay": float("inf")}, "weight_decay is inf; expected a finite number of at least 0"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0; expected from 0 to below 1"),
        ({"betas": (0.9, 1.0)}, r"betas are \(0.9, 1.0\); expected both from 0 to below 1"),
        ({"precision": "float16"}, "precision is 'float16'; expected 'float32' or 'bfloat16'"),
    ],
)
def test_impossible_numbers_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        dataclasses.replace(CONFIG, **settings)


def test_an_unavailable_device_is_refused() -> None:
    for name in ("cuda:99", "nonsense"):
        with pytest.raises(ValueError, match=f"^device '{name}' is not available here; `auto` or `cpu` always is$"):
            learner(dataclasses.replace(CONFIG, device=name))


class Sampled(nn.Module):
    """Class scores from an integral with a learned proposal, on signals made of the features of an example."""

    def __init__(self) -> None:
        super().__init__()
        kernel = kernels.MLP(1, width=4, num_frequencies=2, sigma=1.0, epsilon=1.0)
        quadrature = MonteCarlo(3, KeyProposal(1, 1, 1), draw="stratified", num_targets=2)
        self.operator = IntegralOperator(kernel, quadrature=quadrature)

    def forward(self, x: Tensor) -> Tensor:
        return self.operator(x[..., None])[:, :3, 0]


@dataclasses.dataclass
class SampledTask:
    """The toy task with `Sampled` as its model."""

    toy: ToyTask

    def __getattr__(self, name: str) -> Any:
        return getattr(self.toy, name)

    def model(self) -> nn.Module:
        return Sampled()


def sampled_learner(config: TrainingConfig = CONFIG) -> tuple[ToyTask, Learner]:
    torch.manual_seed(3)
    task = cast("ToyTask", SampledTask(ToyTask.Config(dropout=0.0).build()))
    return task, Learner(task, config, num_steps=20)


def of_proposal(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if "proposal" in name}


def test_a_proposal_is_trained_without_any_code_in_the_model() -> None:
    task, learning = sampled_learner()
    before = {name: p.clone() for name, p in of_proposal(learning.model).items()}
    assert before
    for step in range(2):  # the readout starts at 0, so that nothing else changes in the first step
        learning.update(batch_of(task, 0), step)
    assert all(not torch.equal(p, before[name]) for name, p in of_proposal(learning.model).items())


def test_a_proposal_changes_neither_gradients_nor_steps_of_other_parameters() -> None:
    found = []
    for weight in (0.0, 1e6):
        task, learning = sampled_learner(dataclasses.replace(CONFIG, gradient_clip=1e-2))
        operator = learning.model.get_submodule("operator")
        assert isinstance(operator, IntegralOperator)
        assert isinstance(operator.quadrature, MonteCarlo)
        operator.quadrature.learning = operator.quadrature.learning._replace(loss_weight=weight)
        report = learning.update(batch_of(task, 0), 0)
        others = {n: p for n, p in learning.model.named_parameters() if "proposal" not in n}
        found.append((report, others))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(p, found[1][1][name]) for name, p in found[0][1].items())


def test_accumulation_weights_parts_by_their_size_for_a_proposal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedNodes, "proposal_loss", lambda self, integral, given: self.log_probability().mean())
    found = []
    for parts in (1, 3):
        task, learning = sampled_learner(dataclasses.replace(CONFIG, accumulation=parts, gradient_clip=1e9))
        operator = learning.model.get_submodule("operator")
        assert isinstance(operator, IntegralOperator)
        assert isinstance(operator.quadrature, MonteCarlo)
        assert isinstance(operator.quadrature.proposal, KeyProposal)
        nn.init.normal_(operator.quadrature.proposal.readout.weight, generator=torch.Generator().manual_seed(1))
        monkeypatch.setattr("fredholm.quadrature.monte_carlo.levels", even_levels)
        learning.update(batch_of(task, 0), 0)
        found.append({name: p.grad for name, p in of_proposal(learning.model).items()})
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=1e-4, atol=1e-7)


def even_levels(*rows: int, num_samples: int, draw: str, device: torch.device) -> Tensor:
    """Makes every part of a batch draw the same nodes."""
    return ((torch.arange(num_samples, dtype=torch.float64) + 0.5) / num_samples).expand(*rows, num_samples)


def test_parameters_of_proposals_are_in_the_order_of_the_model() -> None:
    _, learning = sampled_learner()
    names = {id(p): name for name, p in learning.model.named_parameters()}
    assert [names[id(p)] for p in learning._sampling] == list(of_proposal(learning.model))


def test_the_averaging_decay_warms_up_to_its_limit() -> None:
    assert [warmed_decay(t, 0.9999) for t in (0, 8, 90)] == pytest.approx([1 / 10, 1 / 2, 91 / 100])
    assert warmed_decay(10**7, 0.9999) == 0.9999
    assert warmed_decay(5, 0.0) == 0.0


def test_the_average_follows_its_recurrence() -> None:
    model = nn.Linear(2, 1)
    average = ExponentialMovingAverage(model, 0.7)
    expected = model.weight.detach().clone().double()
    for t in range(40):
        with torch.no_grad():
            model.weight.normal_()
        average.update(model, t)
        decay = min(0.7, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * model.weight.detach().double()
    assert isinstance(average.model, nn.Linear)
    torch.testing.assert_close(average.model.weight.double(), expected, rtol=1e-5, atol=1e-6)


def test_buffers_are_copied_and_the_trained_model_is_left_alone() -> None:
    model = nn.BatchNorm1d(2)
    average = ExponentialMovingAverage(model, 0.99)
    model(torch.randn(5, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    average.update(model, 0)
    assert isinstance(average.model, nn.BatchNorm1d)
    assert isinstance(average.model.running_mean, torch.Tensor)
    assert torch.equal(average.model.running_mean, before["running_mean"])
    assert int(average.model.state_dict()["num_batches_tracked"]) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not average.model.training
    assert model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_bad_averaging_decays_are_refused(decay: float) -> None:
    with refused(ValueError, f"ExponentialMovingAverage: decay must be in [0, 1); got {decay}"):
        ExponentialMovingAverage(nn.Linear(2, 2), decay)


def names(model: nn.Module) -> tuple[set[str], set[str]]:
    decayed, exempt = parameter_groups(model, 0.3)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.3, 0.0)
    return {name for name, _ in decayed["params"]}, {name for name, _ in exempt["params"]}


KERNEL = models.MLPConfig(width=4, num_frequencies=2)


def itnet(**settings: Any) -> models.ITNet:
    config = models.ITNet.Config(embed_dim=8, depth=2, num_heads=2, kernel=KERNEL, **settings)
    image = encoders.Image.Config(image_size=(4, 4), patch_size=2, channels=1, num_frequencies=2)
    return models.ITNet(encoders.Image(image, 8), 3, config)


def test_itnet_exempts_biases_norms_tokens_and_output_biases_of_kernels_from_weight_decay() -> None:
    model = itnet()
    decayed, exempt = names(model)
    parameters = dict(model.named_parameters())
    assert decayed | exempt == parameters.keys()
    assert not decayed & exempt
    output_biases = {name for name in parameters if name.endswith("output_bias")}
    assert len(output_biases) == 2
    assert all(parameters[name].ndim > 1 for name in output_biases)  # so that their rank does not exempt them
    assert output_biases <= exempt
    assert {name for name, parameter in parameters.items() if parameter.ndim <= 1} <= exempt
    assert "cls_token" in exempt
    assert "head.weight" in decayed
    assert exempt - output_biases == {name for name, parameter in parameters.items() if parameter.ndim <= 1}


def test_frozen_frequencies_are_in_no_parameter_group() -> None:
    model = itnet()
    frozen = {name for name, _ in model.named_buffers() if "frequencies" in name}
    decayed, exempt = names(model)
    assert frozen
    assert not frozen & (decayed | exempt)


def test_norms_of_any_rank_are_exempt() -> None:
    decayed, exempt = names(nn.Sequential(nn.LayerNorm([3, 4]), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)))
    assert exempt == {"0.weight", "0.bias", "1.bias", "2.weight", "2.bias"}
    assert decayed == {"1.weight"}


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert names(model) == ({"1.weight"}, {"1.bias"})


def test_a_shared_parameter_exempted_by_one_owner_is_exempt_and_listed_once() -> None:
    class Exempting(nn.Module):
        no_weight_decay = frozenset({"table"})

        def __init__(self, table: Tensor) -> None:
            super().__init__()
            self.table = table

    plain = nn.Linear(3, 3, bias=False)
    assert names(nn.Sequential(plain, Exempting(plain.weight))) == (set(), {"0.weight"})


def test_an_unknown_name_in_no_weight_decay_is_an_error() -> None:
    class Wrong(nn.Module):
        no_weight_decay = frozenset({"wieght"})

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 2))

    with pytest.raises(ValueError, match=r"^0\.no_weight_decay lists wieght, not among its parameters$"):
        parameter_groups(nn.Sequential(Wrong()), 0.1)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.LinearRNN(3, 4),
        kernels.LinearRNN(3, 4, bias=True),
        kernels.DiagonalStateSpace(3, 4, feedthrough=False),
        kernels.SelectiveStateSpace(3, 4, feedthrough=False),
        kernels.LSTM(3, 4, bias=False),
        kernels.Attention(4, bias=False) + 0.0 * kernels.LinearAttention(4),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_every_kernel_has_parameter_groups_for_any_options(kernel):
    decayed, exempt = parameter_groups(kernel, 0.1)
    assert len(decayed["params"]) + len(exempt["params"]) == len(list(kernel.parameters()))
    assert all(parameter.ndim > 1 for _, parameter in decayed["params"])


@pytest.mark.parametrize("decay", [-0.1, float("inf"), float("nan")])
def test_bad_weight_decays_are_refused(decay: float) -> None:
    with refused(ValueError, f"weight_decay must be >= 0 and finite; got {decay}"):
        parameter_groups(nn.Linear(2, 2), decay)
