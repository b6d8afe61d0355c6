"""What is measured where graphs, nodes or images with text are classified."""

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torchmetrics import Metric


def class_metrics(num_classes: int) -> "dict[str, Metric]":
    """`accuracy`, `class_accuracy`, the mean of each class's, the mean `loss`, and with two classes `auroc`.

    Raises:
        ImportError: torchmetrics is not installed.
    """
    try:
        from torchmetrics import MeanMetric
        from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy
    except ImportError as error:
        raise ImportError('metrics need torchmetrics; get it with: pip install "fredholm[train]"') from error
    found: dict[str, Metric] = {
        "accuracy": MulticlassAccuracy(num_classes, average="micro"),
        "class_accuracy": MulticlassAccuracy(num_classes, average="macro"),
        "loss": MeanMetric(),
    }
    return found | ({"auroc": BinaryAUROC()} if num_classes == 2 else {})


def score_classes(logits: Tensor, labels: Tensor, losses: Tensor, metrics: "dict[str, Metric]") -> None:
    """Adds logits `(B, classes)`, labels `(B,)` and losses `(B,)` to `class_metrics`."""
    metrics["accuracy"].update(logits, labels)
    metrics["class_accuracy"].update(logits, labels)
    metrics["loss"].update(losses)
    if "auroc" in metrics:
        metrics["auroc"].update(logits.softmax(-1)[:, 1], labels)
