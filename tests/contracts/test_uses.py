"""Every kernel in every use of `uses.py`: it works, or is refused as `REASONS` says; and the page tells the same.

Uses that trace run for one kernel each, and for all in the long tests.
"""

from pathlib import Path

import pytest
import torch

from fredholm import IntegralOperator, kernels
from fredholm.domains import Points, Sequence
from fredholm.evaluation import AUTO, Auto, Integral
from tests.contracts import instances
from tests.contracts.uses import CASES, DEAR, REASONS, USES, check_export_of_a_length, table

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of exporters, and of PyTorch's own operators under vmap
    pytest.mark.usefixtures("fresh_compiler"),
]
CHEAP = [use for use in USES if use not in DEAR]
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
"""Rows of dear uses that run every time."""
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


@pytest.mark.parametrize(("use", "label"), [(use, label) for use in DEAR for label in REPRESENTATIVES[use]])
def test_dear_uses(use: str, label: str) -> None:
    check_use(use, label)


@pytest.mark.long
@pytest.mark.parametrize("use", DEAR)
@pytest.mark.parametrize("label", CASES)
def test_all_dear_uses(label: str, use: str) -> None:
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
    """A third of those that are exported for one length alone; all in the long suite."""
    check_export_of_a_length(label)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MLP", "YatAttention", "InfiniteAttention"])
def test_what_a_graph_holds_is_the_literal_integral(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On all domains, with masks, measures, pair weights and queries: the plain forms of operators in tiles."""
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    wrong = [w for cell in instances.quick_cells(name)[::9] for w in instances.disagreements(cell)]
    assert "\n".join(map(str, wrong)) == ""


def test_a_choice_that_is_differentiable_twice_is_so_for_parts_too() -> None:
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


def test_the_same_kernel_steps_on_by_a_route_that_is_differentiable_twice() -> None:
    operator = IntegralOperator(kernels.LSTM(3, 4), evaluation=Auto(differentiable_twice=True), residual=False)
    u = torch.randn(2, 5, 3)
    assert "NativeRecurrence: its gradient has no gradient" in operator.explain(u, Sequence(5))
    torch.testing.assert_close(operator.scan(u)[0], operator(u))


def test_the_page_has_the_table() -> None:
    page = Path("docs/export.md").read_text(encoding="utf-8")
    assert table() in page, "run python -m tests.contracts.uses and put the table into docs/export.md"
