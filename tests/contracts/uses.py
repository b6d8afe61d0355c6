"""Uses of modules in PyTorch, for every kernel: compile, export, transform, differentiate twice, copy.

Rows are those of `instances.py`: the first variant of every kernel, and its causal one. Columns are `USES`: functions
of a row's name that raise an error if the use fails. `REASONS` lists the cells that fail, each with its error; all
others must pass.

    python -m tests.contracts.uses            prints the table of docs/export.md
    python -m tests.contracts.uses USE ...    prints the results of some uses for every kernel
"""

import copy
import dataclasses
import io
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch._dynamo.exc import UserError
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.export import Dim
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

from fredholm import IntegralOperator
from fredholm.domains import Domain, Graph, Grid, Points, Sequence
from fredholm.evaluation import AUTO, Auto, Evaluation
from fredholm.kernels import Kernel
from tests.contracts.instances import ROWS
from tests.contracts.routes import randomise
from tests.contracts.small_perceptron import small_perceptron

Tensors = tuple[Tensor, ...]
TWICE = Auto(differentiable_twice=True)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A domain that is built inside a graph from additional input tensors and the sizes of the signal.

    Attributes:
        pos_dim: number of coordinates of a position.
        inputs: function that draws the additional tensors, from a number of points.
        build: function that builds the domain from the signal and these tensors.
        axes: axes of the signal and of each additional tensor that vary with the number of points.
        is_image: whether the signal is `(B, H, W, C)`.
    """

    pos_dim: int
    inputs: Callable[[int], Tensors]
    build: Callable[..., Domain]
    axes: tuple[tuple[int, ...], ...]
    is_image: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether the number of points is fixed."""
        return not any(self.axes)


def _uniform(*shape: int) -> Tensor:
    return torch.rand(shape, generator=Generator().manual_seed(sum(shape)), dtype=torch.float64)


GRAPH = Graph(torch.randint(12, (2, 25), generator=Generator().manual_seed(12)), 12, pos=_uniform(12, 2).float())
KINDS: dict[str, Kind] = {
    "points": Kind(1, lambda n: (_uniform(n, 1),), lambda u, pos: Points(pos), ((1,), (0,))),
    "sequence": Kind(1, lambda n: (), lambda u: Sequence(u.shape[1]), ((1,),)),
    "grid": Kind(2, lambda n: (), lambda u: Grid(u.shape[1], u.shape[2]), ((1, 2),), is_image=True),
    "graph": Kind(2, lambda n: (), lambda u: GRAPH, ((),)),
}


class OnDomain(nn.Module):
    """An operator as part of a model: it takes and returns tensors, and builds the domain inside."""

    def __init__(self, operator: IntegralOperator, kind: Kind) -> None:
        super().__init__()
        self.operator, self.kind = operator, kind

    def forward(self, u: Tensor, *more: Tensor) -> Tensor:
        kernel, places = self.operator.kernel, len(self.kind.axes) - 1
        domain = self.kind.build(u, *more[:places])
        query = more[places] if kernel.query_dim != kernel.in_dim else None
        return self.operator(u.flatten(1, 2) if self.kind.is_image else u, domain, query=query)


class Case(NamedTuple):
    """A module on a kind of domain."""

    kind: Kind
    module: OnDomain

    def inputs(self, batch: int = 2, points: int = 12) -> Tensors:
        """A signal, the tensors of the domain, and a query signal if the kernel needs a separate one."""
        kernel, dtype = self.module.operator.kernel, next(self.module.parameters()).dtype
        generator = Generator().manual_seed(batch + 10 * points)
        points = 12 if self.kind.is_fixed else points
        shape = (3, points // 3) if self.kind.is_image else (points,)
        u = torch.randn(batch, *shape, kernel.in_dim, generator=generator)
        more = [*self.kind.inputs(points)]
        if self.has_query:
            more.append(torch.randn(batch, points, kernel.query_dim, generator=generator))
        return tuple(t.to(dtype) for t in (u, *more))

    @property
    def has_query(self) -> bool:
        kernel = self.module.operator.kernel
        return kernel.query_dim != kernel.in_dim

    def open_axes(self, batch: Any, *axes: Any) -> tuple[Any, ...]:
        """Dynamic axes of `inputs` in the format of exporters: the batch axis, and the axes of points."""
        signal, *more = (dict(zip(of, axes, strict=False)) for of in self.kind.axes)
        more = [*more, *([{0: batch, **dict(zip((1,), axes, strict=False))}] if self.has_query else [])]
        return ({0: batch, **signal}, *([tuple(more)] if more else []))

    def near(self, call: Callable[..., Tensor], sizes: tuple[tuple[int, int], ...], tolerance: float) -> None:
        """Asserts that `call` and the module agree on inputs of several sizes."""
        for size in sizes:
            near(call(*self.inputs(*size)), self.module(*self.inputs(*size)), tolerance)


def names() -> Iterator[tuple[str, str, str]]:
    """Kernel, variant and kind of domain of all rows."""
    for name, row in ROWS.items():
        first = next(iter(row.variants))
        on_graph = name in ("OnEdges", "Diffusion")
        needs = row.needs(kernel := row.kernel(2 if on_graph else 1, first))
        usual = ("graph",) if on_graph else ("grid",) if needs.lattice else ("points",)
        usual = ("sequence",) if needs.line or needs.order or kernel.is_causal else usual
        for kind in ON_SEVERAL.get(name, usual):
            yield name, first, kind
        if "causal" in row.variants:
            yield name, "causal", "sequence"


EVERYWHERE = ("points", "sequence", "grid")
ON_SEVERAL: dict[str, tuple[str, ...]] = {"MLP": EVERYWHERE, "ContinuousConvolution": EVERYWHERE}
"""Kernels whose route depends on the domain."""
CASES = {
    f"{name}{', causal' if variant == 'causal' else ''}, {kind}": (name, variant, kind)
    for name, variant, kind in names()
}


def kernel_of(label: str) -> Kernel:
    """The kernel of a row, as its class makes it, in the default dtype and on the default device."""
    name, variant, kind = CASES[label]
    row = ROWS[name]
    options = {"pos_dim": KINDS[kind].pos_dim} if row.takes_pos_dim else {}
    options = {**options, **row.options, **row.variants[variant]}
    return row.build(**(small_perceptron(**options) if "num_frequencies" in options else options))


def case_of(label: str, dtype: torch.dtype = torch.float64, evaluation: Evaluation = AUTO) -> Case:
    """A row's module with random parameters."""
    torch.manual_seed(0)
    kind = KINDS[CASES[label][2]]
    operator = IntegralOperator(randomise(kernel_of(label)), evaluation=evaluation, residual=False)
    return Case(kind, OnDomain(operator, kind).to(dtype))


def near(got: Tensor, expected: Tensor, tolerance: float) -> None:
    """Asserts that two tensors agree, relative to the largest value or 1."""
    assert got.shape == expected.shape, f"{tuple(got.shape)} is not {tuple(expected.shape)}"
    if got.numel():
        error = (got.detach().double() - expected.detach().double()).abs().max() / expected.abs().max().clamp_min(1.0)
        assert error <= tolerance, f"off by {error:.1e}"


def gradients(case: Case, call: Callable[..., Tensor], size: tuple[int, int] = (2, 12)) -> list[Tensor]:
    """The result, and gradients of a functional of it by the signal and by all parameters."""
    u, *more = case.inputs(*size)
    leaves = [u.requires_grad_(), *case.module.parameters()]
    out = call(u, *more)
    return [out, *torch.autograd.grad(out.square().sum(), leaves, allow_unused=True, materialize_grads=True)]


def leaves_of(case: Case) -> dict[str, Tensor]:
    """Parameters that differ from the module's own, so that code which reads the module's own fails."""
    return {name: (1.1 * p).detach() for name, p in case.module.named_parameters()}


def direction(like: Tensor) -> Tensor:
    """Fixed noise."""
    return torch.randn(like.shape, generator=Generator().manual_seed(5), dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------------------------
# Columns.

OTHER_SIZES = ((2, 12), (3, 150), (1, 9))
BATCHES = ((2, 15), (4, 18), (5, 21))


def by_compile(label: str) -> None:
    """`torch.compile(fullgraph=True, dynamic=True)`: training steps on several sizes, compiled only for the first."""
    case, counter = case_of(label), CompileCounterWithBackend("aot_eager")
    torch.compiler.reset()
    compiled = torch.compile(case.module, fullgraph=True, dynamic=True, backend=counter)
    first = 0
    for size in BATCHES:
        for got, expected in zip(gradients(case, compiled, size), gradients(case, case.module, size), strict=True):
            near(got, expected, 1e-9)
        first = first or counter.frame_count
    assert counter.frame_count == first, "compiled again for another size"


def exported(label: str, dtype: torch.dtype, *, points: bool = True) -> tuple[Case, torch.export.ExportedProgram]:
    """The exported graph of a row, with dynamic batch size, and with a dynamic or fixed number of points."""
    case = case_of(label, dtype)
    axes = case.open_axes(Dim.DYNAMIC, *([Dim.DYNAMIC] * 2 if points else []))
    return case, torch.export.export(case.module, case.inputs(), dynamic_shapes=axes)


def sizes_of(label: str) -> tuple[tuple[int, int], ...]:
    """Sizes (batch, points) that the graph of a row takes."""
    return OTHER_SIZES if points_are_open(label) else ((2, 12), (3, 12), (1, 12))


def points_are_open(label: str) -> bool:
    """Whether the number of points is dynamic in the graph of a row."""
    return ("export", label) not in REASONS


def read_back(program: torch.export.ExportedProgram) -> nn.Module:
    """The module of a graph after saving and loading."""
    torch.export.save(program, file := io.BytesIO())
    file.seek(0)
    return torch.export.load(file).module()


def by_export(label: str) -> None:
    """`torch.export`, saved and loaded, with any batch size and number of points, using only PyTorch's operators."""
    case, program = exported(label, torch.float64)
    custom = {str(node.target) for node in program.graph.nodes if "fredholm" in str(node.target)}
    assert not custom, f"the graph holds {custom}"
    case.near(read_back(program), OTHER_SIZES, 1e-9)


def check_export_of_a_length(label: str) -> None:
    """Checks `torch.export` with any batch size and a fixed number of points."""
    case, program = exported(label, torch.float64, points=False)
    case.near(read_back(program), ((2, 12), (3, 12), (1, 12)), 1e-9)


def by_onnx(label: str) -> None:
    """`torch.onnx.export(dynamo=True)`, run by onnxruntime."""
    import onnxruntime

    case = case_of(label, torch.float32)
    axes = case.open_axes("batch", *(("height", "width") if points_are_open(label) else ()))
    made = torch.onnx.export(case.module, case.inputs(), dynamo=True, dynamic_shapes=axes, verbose=False)
    assert made is not None
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = [each.name for each in session.get_inputs()]

    def call(*tensors: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, dict(zip(inputs, (t.numpy() for t in tensors), strict=True)))[0])

    case.near(call, sizes_of(label), 1e-3)


def by_aot_inductor(label: str) -> None:
    """A `.pt2` package of compiled code, saved and loaded."""
    case, program = exported(label, torch.float32, points=points_are_open(label))
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/model.pt2")
        case.near(torch._inductor.aoti_load_package(path), sizes_of(label), 1e-3)


def by_functional_call(label: str) -> None:
    """`functional_call` with other parameters than the module's own, with gradients."""
    case, reference = case_of(label), case_of(label)
    leaves = {name: p.requires_grad_() for name, p in leaves_of(case).items()}
    reference.module.load_state_dict(leaves, strict=False)
    out = functional_call(case.module, leaves, case.inputs())
    expected = reference.module(*case.inputs())
    near(out, expected, 1e-12)
    got = torch.autograd.grad(out.square().sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    parameters = list(reference.module.parameters())
    grads = torch.autograd.grad(expected.square().sum(), parameters, allow_unused=True, materialize_grads=True)
    for a, b in zip(got, grads, strict=True):
        near(a, b, 1e-9)


def by_vmap_over_parameters(label: str) -> None:
    """`vmap` over the parameters of several models."""
    case = case_of(label)
    inputs = case.inputs()
    models = [leaves_of(case), {name: 0.9 * p for name, p in leaves_of(case).items()}]
    stacked = {name: torch.stack([model[name] for model in models]) for name in models[0]}
    found = vmap(lambda leaves: functional_call(case.module, leaves, inputs))(stacked)
    near(found, torch.stack([functional_call(case.module, model, inputs) for model in models]), 1e-9)


def _one(entry: Tensors, rest: Tensors) -> Tensors:
    """Inputs of one batch entry: its signal and queries, and the tensors that all entries share."""
    u, *query = entry
    return (u[None], *rest, *(q[None] for q in query))


def _entries(case: Case) -> tuple[Tensors, Tensors]:
    """Inputs with a batch axis, and inputs that all entries share."""
    u, *more = case.inputs()
    return ((u, more.pop()) if case.has_query else (u,)), tuple(more)


def by_vmap_over_inputs(label: str) -> None:
    """`vmap` over the entries of a batch."""
    case = case_of(label)
    entries, rest = _entries(case)
    found = vmap(lambda *entry: case.module(*_one(entry, rest))[0])(*entries)  # pyright: ignore[reportArgumentType]
    near(found, case.module(*case.inputs()), 1e-9)


def by_per_sample_gradients(label: str) -> None:
    """`vmap` of `grad`."""
    case = case_of(label)
    entries, rest = _entries(case)
    parameters = leaves_of(case)

    def loss(leaves: dict[str, Tensor], *entry: Tensor) -> Tensor:
        return functional_call(case.module, leaves, _one(entry, rest)).square().sum()

    found = vmap(grad(loss), in_dims=(None, *[0] * len(entries)))(parameters, *entries)
    for i in range(entries[0].shape[0]):
        one = grad(loss)(parameters, *(t[i] for t in entries))
        for name, value in one.items():
            near(found[name][i], value, 1e-9)


def by_jvp(label: str) -> None:
    """Forward mode on a twice differentiable route, compared with finite differences."""
    case = case_of(label, evaluation=TWICE)
    u, *more = case.inputs()
    along = direction(u)
    found = jvp(lambda u: case.module(u, *more), (u,), (along,))[1]
    step = 1e-5
    near(found, (case.module(u + step * along, *more) - case.module(u - step * along, *more)) / (2 * step), 1e-6)


def by_vjp(label: str) -> None:
    """Reverse mode of `torch.func`, compared with autograd."""
    case = case_of(label)
    u, *more = case.inputs()
    out, pull, *_ = vjp(lambda u: case.module(u, *more), u)
    near(pull(2 * out)[0], gradients(case, case.module)[1], 1e-9)


def by_double_backward(label: str) -> None:
    """The gradient of a gradient on a twice differentiable route, compared with finite differences."""
    case = case_of(label, evaluation=TWICE)
    u, *more = case.inputs()
    leaves, step = [u.requires_grad_(), *case.module.parameters()], 1e-5

    def slopes(u: Tensor, create_graph: bool = False) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            case.module(u, *more).square().sum(),
            [u, *leaves[1:]],
            create_graph=create_graph,
            allow_unused=True,
            materialize_grads=True,
        )

    along = direction(u)
    slope = (slopes(u, create_graph=True)[0] * along).sum()
    second = torch.autograd.grad(slope, leaves, allow_unused=True, materialize_grads=True)
    ahead, behind = (slopes((u + s * along).detach().requires_grad_()) for s in (step, -step))
    for found, a, b in zip(second, ahead, behind, strict=True):
        near(found, (a - b) / (2 * step), 1e-5)


def by_checkpointing(label: str) -> None:
    """`torch.utils.checkpoint`, reentrant and non-reentrant."""
    case = case_of(label)
    plain = gradients(case, case.module)
    for got, expected in zip(
        gradients(case, lambda *t: checkpoint(case.module, *t, use_reentrant=False)), plain, strict=True
    ):
        near(got, expected, 1e-12)
    u, *more = case.inputs()
    checkpoint(case.module, u.requires_grad_(), *more, use_reentrant=True).square().sum().backward()
    assert u.grad is not None
    near(u.grad, plain[1], 1e-12)


def by_copy(label: str) -> None:
    """`copy.deepcopy`, which shares no parameter."""
    case = case_of(label)
    expected, twin = case.module(*case.inputs()), copy.deepcopy(case.module.operator)
    with torch.no_grad():
        for parameter in case.module.parameters():
            parameter.zero_()
    near(OnDomain(twin, case.kind)(*case.inputs()), expected, 0.0)


def by_pickle(label: str) -> None:
    """`pickle`, as used between processes."""
    case = case_of(label)
    twin = pickle.loads(pickle.dumps(case.module.operator))  # noqa: S301
    near(OnDomain(twin, case.kind)(*case.inputs()), case.module(*case.inputs()), 0.0)


def by_meta(label: str) -> None:
    """Construction on the meta device, then `to_empty` and a checkpoint."""
    case = case_of(label, torch.float32)
    with torch.device("meta"):
        operator = IntegralOperator(kernel_of(label), residual=False)
    assert all(p.is_meta for p in operator.parameters())
    operator = operator.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in operator.state_dict().values():
            tensor.fill_(torch.nan if tensor.is_floating_point() else 0)
    operator.load_state_dict(case.module.operator.state_dict())
    near(OnDomain(operator, case.kind)(*case.inputs()), case.module(*case.inputs()), 0.0)


def by_shards(label: str) -> None:
    """Construction on the meta device, then `fully_shard` and a checkpoint: results and gradients as unsharded."""
    case, found = case_of(label, torch.float32), list[list[Tensor]]()
    with torch.device("meta"):
        operator = IntegralOperator(kernel_of(label), residual=False)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        fully_shard(operator)
        operator.to_empty(device="cpu")
        whole = StateDictOptions(full_state_dict=True)
        set_model_state_dict(operator, case.module.operator.state_dict(), options=whole)
        for module in (OnDomain(operator, case.kind), case.module):
            u, *more = case.inputs()
            out = module(u.requires_grad_(), *more)
            out.square().sum().backward()
            grads = [u.grad, *(parameter.grad for parameter in module.parameters())]
            found.append([out, *(g.full_tensor() if isinstance(g, DTensor) else g for g in grads if g is not None)])
    finally:
        dist.destroy_process_group()
    assert len(found[0]) == len(found[1])
    for got, expected in zip(*found, strict=True):
        near(got, expected, 0.0)


USES: dict[str, Callable[[str], None]] = {
    "compile": by_compile,
    "export": by_export,
    "ONNX": by_onnx,
    "AOTInductor": by_aot_inductor,
    "functional_call": by_functional_call,
    "vmap, parameters": by_vmap_over_parameters,
    "vmap, inputs": by_vmap_over_inputs,
    "per-sample gradients": by_per_sample_gradients,
    "jvp": by_jvp,
    "vjp": by_vjp,
    "double backward": by_double_backward,
    "checkpointing": by_checkpointing,
    "deepcopy": by_copy,
    "pickle": by_pickle,
    "meta device": by_meta,
    "fully_shard": by_shards,
}
EXPENSIVE = ("compile", "export", "ONNX", "AOTInductor")
"""Uses that trace or compile, which takes seconds per row."""


class Reason(NamedTuple):
    """The reason why a use fails for a kernel: its text in the docs, the error, and a part of the error's message."""

    text: str
    error: type[Exception]
    message: str


def _reasons(use: str, kernels: str, reason: Reason) -> dict[tuple[str, str], Reason]:
    return {(use, label): reason for label in CASES if label.split(",")[0] in kernels.split()}


RECURRENCES = "LinearRNN LinearSystem SelectiveStateSpace"
LENGTH = Reason(
    "a recurrence is unrolled, one step per point, here and in the next two columns: any batch, one length",
    ValueError,
    "is symbolic in the graph; fix their number",
)
UNTRANSLATED = "Failed to convert the exported program to an ONNX model"
SOLVE = Reason("ONNX has no operator that solves systems of equations", RuntimeError, UNTRANSLATED)
UNROLLED = Reason(
    "PyTorch's fused cells are unrolled, one step per point, here and in the next two columns: any batch, one length",
    UserError,
    "specialized",
)
EXPONENTIAL = Reason("ONNX has no exponential of matrices", RuntimeError, UNTRANSLATED)
COMPLEX = Reason("ONNX has no exponential of complex numbers", RuntimeError, UNTRANSLATED)
AGAIN = Reason(
    "the graph is compiled again for another number of points, since the choice of the sum depends on it",
    AssertionError,
    "compiled again for another size",
)
BATCH = Reason("along edges the graph is compiled again for another batch", AssertionError, "compiled again")
REASONS: dict[tuple[str, str], Reason] = {
    **_reasons("export", RECURRENCES, LENGTH),
    **_reasons("export", "RNN LSTM GRU", UNROLLED),
    **_reasons("ONNX", "InfiniteAttention FactorisedInfiniteAttention", SOLVE),
    **_reasons("ONNX", "LinearSystem", EXPONENTIAL),
    **_reasons("ONNX", "DiagonalStateSpace", COMPLEX),
    **_reasons("compile", "Convolution ContinuousConvolution", AGAIN),
    **_reasons("compile", "Diffusion OnEdges", BATCH),
}


COLUMNS = {
    "compile": ("compile",),
    "export": ("export",),
    "ONNX": ("ONNX",),
    "AOTInductor": ("AOTInductor",),
    "`vmap`": ("vmap, parameters", "vmap, inputs", "per-sample gradients"),
    "`jvp`, `vjp`": ("jvp", "vjp", "functional_call"),
    "second derivatives": ("double backward",),
    "checkpointing": ("checkpointing",),
    "copy, pickle, meta": ("deepcopy", "pickle", "meta device"),
    "`fully_shard`": ("fully_shard",),
}
"""Uses by column of the table in the docs."""
LIMITS = {reason.text for reason in (AGAIN, BATCH, LENGTH, UNROLLED)}
"""Reasons that only limit a use, and do not rule it out."""


def table() -> str:
    """Table of kernels by uses in the docs: ✓, ✓ with the number of a limit, or "no" with a reason."""
    found: list[str] = []
    lines = ["| kernel | " + " | ".join(COLUMNS) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for name in ROWS:
        cells = []
        for uses in COLUMNS.values():
            reasons = {
                reason.text
                for use in uses
                for label, (kernel, *_) in CASES.items()
                if kernel == name and (reason := REASONS.get((use, label)))
            }
            found += sorted(reasons - set(found))
            notes = " ".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[1 + found.index(text)] for text in sorted(reasons))
            cells.append(f"{'✓' if reasons <= LIMITS else 'no'} {notes}".strip())
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"{i}. {text[0].upper()}{text[1:]}." for i, text in enumerate(found, start=1))])


def main(arguments: list[str]) -> None:
    """Prints the results of the named uses for every kernel, or the table."""
    if not arguments:
        print(table())
    for use in arguments:
        for label in CASES:
            start = time.perf_counter()
            try:
                USES[use](label)
                found = "ok"
            except Exception as error:
                text = " | ".join(line for line in str(error).splitlines() if line.strip())
                found = f"{type(error).__name__}: {text[:300]}" + text[text.find("No ONNX function") :][:200]
            print(f"{use:16} {label:45} {time.perf_counter() - start:5.1f} s  {found}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
