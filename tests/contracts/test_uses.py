"""Every kernel in every use of `uses.py`: it works, or fails with the error in `REASONS`; docs/export.md agrees.

Uses that trace or compile run for a few kernels each, and for all kernels in the long tests.
"""

from pathlib import Path

import pytest
import torch

from fredholm import IntegralOperator, kernels
from fredholm.domains import Points, Sequence
from fredholm.evaluation import AUTO, Auto, Integral
from tests.contracts import instances
from tests.contracts.uses import CASES, EXPENSIVE, REASONS, USES, check_export_of_a_length, table

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # warnings of exporters, and of PyTorch's own operators under vmap
    pytest.mark.usefixtures("fresh_compiler"),
]
CHEAP = [use for use in USES if use not in EXPENSIVE]
REPRESENTATIVES = {
    "compile": ["Attention, points"],
    "export": [
        "MLP, causal, sequence",
        "LowRankMLP, points",
        "YatAttention, points",
        "SelectiveStateSpace, sequence",
        "Convolution, grid",
    ],
    "ONNX": ["Attention, points"],
    "AOTInductor": [],
}
"""Rows of expensive uses that always run."""
EXTRA = {"ONNX": ("onnx", "onnxscript", "onnxruntime")}


def check_use(use: str, label: str) -> None:
    for needed in EXTRA.get(use, ()):
        pytest.importorskip(needed, reason="the extra `export` is not installed")
    reason = REASONS.get((use, label))
    if reason is None:
        USES[use](label)
        return
    with pytest.raises(reason.error, match=reason.message):
        USES[use](label)


@pytest.mark.sampled
@pytest.mark.parametrize("use", CHEAP)
@pytest.mark.parametrize("label", CASES)
def test_cheap_uses(label: str, use: str) -> None:
    check_use(use, label)


@pytest.mark.slow
@pytest.mark.parametrize(("use", "label"), [(use, label) for use in EXPENSIVE for label in REPRESENTATIVES[use]])
def test_expensive_uses(use: str, label: str) -> None:
    check_use(use, label)


@pytest.mark.long
@pytest.mark.parametrize("use", EXPENSIVE)
@pytest.mark.parametrize("label", CASES)
def test_all_expensive_uses(label: str, use: str) -> None:
    check_use(use, label)


ONE_LENGTH = [label for use, label in REASONS if use == "export"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "label",
    [
        *ONE_LENGTH[::3],
        *(pytest.param(label, marks=pytest.mark.long) for label in ONE_LENGTH if label not in ONE_LENGTH[::3]),
    ],
)
def test_recurrences_of_one_length(label: str) -> None:
    """A third of the recurrences that are exported for one length only; all in the long tests."""
    check_export_of_a_length(label)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MLP", "YatAttention", "InfiniteAttention"])
def test_the_plain_form_in_exported_graphs_agrees_with_the_definition(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Exported graphs hold tiled operators in a plain form; cells cover domains, masks, measures and queries."""
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    wrong = [w for cell in instances.quick_cells(name)[::9] for w in instances.disagreements(cell)]
    assert "\n".join(map(str, wrong)) == ""


def test_a_choice_that_is_differentiable_twice_is_so_for_terms_of_a_sum() -> None:
    kernel = kernels.Sum([kernels.Attention(4, 2), kernels.MLP(4, 2, 1, width=4, num_frequencies=2)])
    integral = Integral(kernel, torch.randn(1, 5, 4), Points(torch.rand(5, 1)))
    part = Integral(kernel.kernels[0], integral.u, integral.domain)
    assert AUTO.choose(part).route.name == "FusedAttention"
    choice = Auto(differentiable_twice=True).choose(part)
    assert choice.route.name != "FusedAttention"
    assert choice.refusals["FusedAttention"] == ["its gradient has no gradient"]
    u = integral.u.requires_grad_()

    def second(route: Auto) -> None:
        (slope,) = torch.autograd.grad(route.integrate(integral).square().sum(), u, create_graph=True)
        slope.square().sum().backward()

    second(Auto(differentiable_twice=True))
    assert u.grad is not None
    with pytest.raises(RuntimeError, match="derivative for aten::_scaled_dot_product"):
        second(AUTO)


def test_scans_use_a_route_that_is_differentiable_twice_on_request() -> None:
    operator = IntegralOperator(kernels.LSTM(3, 4), evaluation=Auto(differentiable_twice=True), residual=False)
    u = torch.randn(2, 5, 3)
    assert "NativeRecurrence: its gradient has no gradient" in operator.explain(u, Sequence(5))
    torch.testing.assert_close(operator.scan(u)[0], operator(u))


def test_the_docs_have_the_table() -> None:
    page = Path("docs/export.md").read_text(encoding="utf-8")
    assert table() in page, "run python -m tests.contracts.uses and put the table into docs/export.md"
