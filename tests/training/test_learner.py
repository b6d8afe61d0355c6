import dataclasses

import pytest
import torch
from torch import Tensor, nn

from fredholm.tasks import Batch
from fredholm.training import Learner, NonFiniteError, TrainingConfig
from tests.training.toy_task import ToyTask

CONFIG = TrainingConfig(epochs=1, batch_size=10, learning_rate=1e-2, device="cpu", warmup_fraction=0.0)


def learner(config: TrainingConfig = CONFIG, *, poisoned: int | None = None) -> tuple[ToyTask, Learner]:
    torch.manual_seed(3)
    task = ToyTask.Config(dropout=0.0, poisoned=poisoned).build()
    return task, Learner(task, config, num_steps=20)


def batch_of(task: ToyTask, start: int, size: int = 10) -> Batch:
    return task.train_batch(torch.arange(start, start + size), torch.Generator().manual_seed(start))


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("parts", [2, 3, 10, 64])
def test_accumulation_equals_one_large_batch(parts: int) -> None:
    task, whole = learner()
    _, split = learner(dataclasses.replace(CONFIG, accumulation=parts))
    counts = [int(part.sum()) for part in batch_of(task, 0)["counted"].tensor_split(parts)]
    assert len(set(counts)) > 1  # so that a mean of the parts' means would be wrong
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
    batch["x"][4] = poison
    batch["counted"][4] = True
    before = [parameter.clone() for parameter in learning.model.parameters()]
    with pytest.raises(NonFiniteError, match=r"^the loss is nan$"):
        learning.update(batch, 1)
    assert all(torch.equal(old, new) for old, new in zip(before, learning.model.parameters(), strict=True))
    assert all(int(state["step"]) == 1 for state in learning.optimizer.state.values())


def test_a_non_finite_gradient_of_a_finite_loss_is_caught_too(monkeypatch: pytest.MonkeyPatch) -> None:
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
        ({"epochs": 0}, "epochs is 0; expected at least 1"),
        ({"accumulation": -1}, "accumulation is -1; expected at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected more than 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; expected more than 0"),
        ({"weight_decay": float("inf")}, "weight_decay is inf; expected a finite number of at least 0"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0; expected from 0 to below 1"),
        ({"betas": (0.9, 1.0)}, r"betas are \(0.9, 1.0\); expected both from 0 to below 1"),
        ({"precision": "float16"}, "precision is 'float16'; expected 'float32' or 'bfloat16'"),
    ],
)
def test_impossible_numbers_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        dataclasses.replace(CONFIG, **settings)


def test_an_absent_device_is_refused() -> None:
    for name in ("cuda:99", "nonsense"):
        with pytest.raises(ValueError, match=f"^device '{name}' is not available here; `auto` or `cpu` always is$"):
            learner(dataclasses.replace(CONFIG, device=name))
