"""The kernels compile for an H200 (sm_90) ahead of time, without a GPU, with the arguments of real launches."""

import functools
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import Integral, TritonFeatureSum, TritonTiled, TritonYat
from fredholm.evaluation.triton import machine, tuning
from fredholm.kernels import MLP, LowRankMLP, SeparableMLP, Softermax, YatAttention
from tests.contracts.routes import results

triton = pytest.importorskip("triton")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(machine.INTERPRETING, reason="the interpreter compiles nothing")]

SHARED_OF = {80: 163 * 1024, 90: 227 * 1024}  # shared memory of one program in bytes, by compute capability
SHARED_BYTES = SHARED_OF[90]
TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
}
PAPER = {"width": 128, "num_frequencies": 64, "head_dim": 64}
ODD = {"width": 5, "num_frequencies": 3, "head_dim": 3}
LARGE = {"width": 256, "num_frequencies": 256, "head_dim": 256}
TOKEN = Points(torch.full((1, 2), 0.5))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Records launches, which are not carried out: the kernel, its tile, and its arguments."""
    from fredholm.evaluation.triton import features, long_product, perceptron, yat

    recorded: list[tuple[Any, Any, dict[str, Any]]] = []

    def record(kernel: Any, grid: tuple[int, int, int], tile: Any, arguments: dict[str, Any]) -> None:
        assert min(grid) > 0
        sizes = {name: value for name, value in tuning._options(kernel, tile).items() if name in kernel.arg_names}
        recorded.append((kernel, tile, {**arguments, **sizes}))

    for module in (features, long_product, perceptron, yat):
        monkeypatch.setattr(module, "launch", record)
    for route in (TritonTiled, TritonFeatureSum, TritonYat):
        monkeypatch.setattr(route, "refusals", lambda *_: [])  # ignore that there is no GPU
        monkeypatch.setattr(route, "devices", None)
    return recorded


def record_all(domain: Domain, dtype: torch.dtype, head_dim: int, **options: Any) -> None:
    """Runs an integral and its gradients, recording the launches of kernels."""
    kernel = MLP(head_dim, 1, domain.pos_dim, **options).to(dtype)
    results(TritonTiled(), Integral(kernel, torch.zeros(1, domain.num_points, head_dim, dtype=dtype), domain))


def compiled(kernel: Any, tile: Any, arguments: dict[str, Any], capability: int = 90) -> Any:
    """Compiles one launch; asserts that its arguments are exactly those of the kernel."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    limits = {"maxnreg": tile.registers} if tile.registers else {}
    assert set(arguments) == set(kernel.arg_names)
    signature, constants, aligned = {}, {}, {}

    def described(value: Any, is_special: bool, *path: int) -> Any:
        if isinstance(value, tuple):
            return type(value)(*(described(part, is_special, *path, place) for place, part in enumerate(value)))
        if isinstance(value, torch.Tensor):
            aligned[path] = [["tt.divisibility", 16]]
            return TYPES[value.dtype]
        assert isinstance(value, int), path
        if is_special and value == 1:
            constants[path] = value
            return "constexpr"
        if is_special and value % 16 == 0:
            aligned[path] = [["tt.divisibility", 16]]
        return "i32"

    for place, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        else:
            signature[parameter.name] = described(value, not parameter.do_not_specialize, place)
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": tile.warps, "num_stages": tile.stages, **limits}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def disassembled(code: bytes, folder: Path, option: str) -> str:
    """Output of Nvidia's cuobjdump on machine code."""
    path = folder / "kernel.cubin"
    path.write_bytes(code)
    command = [triton.knobs.nvidia.cuobjdump.path, option, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def unset_registers(sass: str) -> list[str]:
    """Instructions that read a uniform register before it is set.

    The assembler of CUDA 12.8 emits them where two tiles use the same shared memory with different layouts.
    """
    unset, known = list[str](), set[int]()
    for instruction in re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?(.*?);", sass, re.M):
        name, _, operands = instruction.partition(" ")
        first, _, sources = operands.partition(",")
        target = re.fullmatch(r"UR(\d+)", first.strip())
        pair = 2 if re.search(r"\.(64|WIDE)\b", name) else 1
        read = set[int]()
        for matrices in re.finditer(r"gdesc\[UR(\d+)\]", operands):
            # the first half describes a first matrix in shared memory; otherwise it lies in registers, named before
            in_registers = len(re.findall(r"\bR\d+", operands[: matrices.start()])) > 1
            read |= {int(matrices[1]) + k for k in ((2, 3) if in_registers else (0, 1, 2, 3))}
        rest = re.sub(r"gdesc\[UR\d+\]", "", sources if target else operands)
        read |= {int(base[1]) + k for base in re.finditer(r"desc\[UR(\d+)\]", rest) for k in (0, 1)}
        is_pair = name.startswith("U") and name.endswith(".64")
        rest = re.sub(r"desc\[UR\d+\]", "", rest)
        read |= {int(number) + k for number in re.findall(r"\bUR(\d+)", rest) for k in range(1 + is_pair)}
        if read - known:
            unset.append(instruction)
        known |= {int(target[1]) + k for k in range(pair)} if target else set()
    return unset


def steps_of_a_tile(sass: str) -> list[str]:
    """The instructions, including matrix products, of the longest innermost loop."""
    found = re.findall(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", sass, re.M)
    steps = [(int(place, 16), instruction) for place, instruction in found]
    loops = [(int(to[1], 16), at) for at, text in steps if (to := re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text))]
    loops = [(first, last) for first, last in loops if first < last]
    inner = [(first, last) for first, last in loops if not any(first < inside[1] < last for inside in loops)]
    bodies = [[text for at, text in steps if first <= at <= last] for first, last in inner]
    return max((body for body in bodies if any("MMA" in text for text in body)), key=len)


def stack_bytes(code: bytes, folder: Path) -> int:
    """Bytes of local memory per thread, which holds spilled registers."""
    found = re.search(r"STACK:(\d+)", disassembled(code, folder, "-res-usage"))
    assert found is not None
    return int(found[1])


def check_products(ttgir: str) -> None:
    """Checks for code that Triton 3.6 accepts but computes wrongly: warps without rows, and products outside of loops.

    Of several products outside of a loop, only one is awaited before the shared memory that they read is overwritten.
    """
    layouts = dict(re.findall(r"^(#\w+) = #ttg\.nvidia_mma<\{versionMajor = 3.*?warpsPerCTA = \[(\d+),", ttgir, re.M))
    for line in ttgir.splitlines():
        if "ttng.warp_group_dot " in line:
            assert "isAsync = true" in line
            rows, layout = re.findall(r"tensor<(\d+)x\d+xf32, (#\w+)>", line)[-1]
            assert 16 * int(layouts[layout]) <= int(rows), line


def check_that_all_fit(launches: list[tuple[Any, Any, dict[str, Any]]], folder: Path, *, on_tensor_cores: bool) -> None:
    """Compiles all launches and checks their limits; `on_tensor_cores`: all must use Hopper's tensor cores."""
    for kernel, tile, arguments in launches:
        code = compiled(kernel, tile, arguments)
        stack = stack_bytes(code.asm["cubin"], folder)
        print(kernel.fn.__name__, tile, f"shared {code.metadata.shared}, stack {stack}")
        assert code.metadata.shared <= SHARED_BYTES
        assert stack <= 512
        check_products(code.asm["ttgir"])
        if "wgmma" in code.asm["ptx"]:
            assert unset_registers(disassembled(code.asm["cubin"], folder, "-sass")) == []
        if on_tensor_cores and set(kernel.arg_names) & {"PLAN", "PRECISION"}:
            assert "wgmma.mma_async" in code.asm["ptx"]


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
POINTS, GRID, BOTH = Points(torch.rand(3, 2)), Grid(2, 2), Union(TOKEN, Grid(2, 2))


@pytest.mark.parametrize(
    ("domain", "sizes", "dtype"),
    [
        *((BOTH, PAPER, BF16), (BOTH, PAPER, FP16), (BOTH, ODD, FP32), (POINTS, LARGE, BF16)),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                *((GRID, PAPER, BF16), (BOTH, PAPER, FP32), (BOTH, ODD, FP16)),
                *((POINTS, LARGE, FP16), (POINTS, LARGE, FP32)),
            )
        ),
    ],
)
def test_every_launch_compiles_and_fits(launches, tmp_path, domain, sizes, dtype):
    """A grid beside a token includes the launches of a grid alone, which only the long tests compile."""
    record_all(domain, dtype, is_causal=sizes is ODD, **sizes)
    # the gradient of R is that of the queries in the grid and beside it
    assert len(launches) == {POINTS: 3, GRID: 5, BOTH: 6}[domain]
    check_that_all_fit(launches, tmp_path, on_tensor_cores=sizes is PAPER and dtype != FP32)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("rest", [tuning.BEFORE, tuning.AFTER, tuning.PRODUCT])
@pytest.mark.parametrize("dtype", [pytest.param(BF16, marks=pytest.mark.long), FP16], ids=str)
def test_the_forward_pass_spills_no_registers(launches, tmp_path, dtype, rest, capability):
    """In every variant of adding R to p; registers allow three programs on a multiprocessor of an H100."""
    record_all(BOTH, dtype, **PAPER)
    kernel, tile, arguments = launches[0]
    assert (kernel.fn.__name__, arguments["REST"]) == ("sums_kernel", tuning.AFTER)
    code = compiled(kernel, tile._replace(registers=168), {**arguments, "REST": rest}, capability)
    assert stack_bytes(code.asm["cubin"], tmp_path) == 0
    assert 2 * code.metadata.shared <= SHARED_OF[capability]
    check_products(code.asm["ttgir"])
    if capability == 90:
        sass = disassembled(code.asm["cubin"], tmp_path, "-sass")
        assert unset_registers(sass) == []
        steps = steps_of_a_tile(sass)
        waits = sum("BAR.SYNC" in step for step in steps)
        print(f"{dtype}, {tile._replace(rest=rest).text}: {len(steps)} instructions, {waits} barriers a tile")
        # R changes its layout before the product, after it, or never
        assert waits <= {tuning.BEFORE: 9, tuning.AFTER: 5, tuning.PRODUCT: 2}[rest]


KERNELS = (SeparableMLP, functools.partial(LowRankMLP, rank=3))


@pytest.mark.parametrize(
    ("sizes", "dtype", "made"),
    [
        *((PAPER, BF16, KERNELS[:1]), (PAPER, FP16, KERNELS[1:])),
        *(
            pytest.param(*case, KERNELS, marks=pytest.mark.long)
            for case in (
                *((PAPER, BF16), (PAPER, FP16), (PAPER, FP32)),
                *((ODD, BF16), (ODD, FP16), (LARGE, BF16), (LARGE, FP16)),
            )
        ),
    ],
)
def test_every_launch_of_features_compiles_and_fits(launches, tmp_path, sizes, dtype, made):
    """Each kernel in one dtype, and each dtype with one kernel; the long tests cover all pairs."""
    head_dim, options = sizes["head_dim"], {name: sizes[name] for name in ("width", "num_frequencies")}
    for make in made:
        kernel = make(head_dim, 1, 2, **options).to(dtype)
        results(TritonFeatureSum(), Integral(kernel, torch.zeros(1, 3, head_dim, dtype=dtype), POINTS))
    # S and h T; backward, for each, both orders of gradients, with the other sum; and, of low rank, a product each way
    assert len(launches) == len(made) * (2 + 2 * 2) + 2 * (KERNELS[1] in made)
    for launch in launches:
        in_float32 = launch[0].fn.__name__ == "long_products_kernel"
        on_tensor_cores = sizes is PAPER and dtype != FP32 and not in_float32
        check_that_all_fit([launch], tmp_path, on_tensor_cores=on_tensor_cores)


@pytest.mark.parametrize(("num_frequencies", "units"), [(20, 32), pytest.param(50, 64, marks=pytest.mark.long)])
def test_tiles_of_features_that_share_memory_have_the_same_layout(launches, tmp_path, num_frequencies, units):
    kernel = SeparableMLP(48, 2, 2, width=48, num_frequencies=num_frequencies)
    with torch.autocast("cpu", BF16):
        results(TritonFeatureSum(), Integral(kernel, torch.zeros(2, 91, 48), Grid(7, 13)))
    by_points = [launch for launch in launches if launch[0].fn.__name__ == "point_sums_kernel"]
    assert len(by_points) == 3
    for kernel, tile, arguments in by_points:
        sized = {"UNITS": units, "N": 64}
        code = compiled(kernel, tile._replace(units=units, points=64), {**arguments, **sized})
        assert unset_registers(disassembled(code.asm["cubin"], tmp_path, "-sass")) == []


@pytest.mark.parametrize(
    ("head_dim", "dtype", "normaliser"),
    [
        *((64, BF16, Softermax(2.5)), (3, FP32, None)),
        *(pytest.param(64, BF16, normaliser, marks=pytest.mark.long) for normaliser in (None, Softermax())),
        *(
            pytest.param(*size, None, marks=pytest.mark.long)
            for size in ((128, BF16), (256, BF16), (64, FP32), (256, FP32))
        ),
    ],
)
def test_every_launch_of_yat_scores_compiles_and_fits(launches, tmp_path, normaliser, head_dim, dtype):
    kernel = YatAttention(head_dim, 1, normaliser=normaliser, is_causal=True).to(dtype)
    where = Sequence(5, mask=torch.ones(1, 5, dtype=torch.bool))
    results(TritonYat(), Integral(kernel, torch.zeros(1, 5, head_dim, dtype=dtype), where))
    assert len(launches) == (6 if normaliser is None else 5)  # only gradients of softmax need a separate δ
    check_that_all_fit(launches, tmp_path, on_tensor_cores=head_dim in (64, 128) and dtype == BF16)


@pytest.mark.parametrize(
    ("head_dim", "is_causal"),
    [(128, False), *(pytest.param(*case, marks=pytest.mark.long) for case in ((64, False), (64, True), (128, True)))],
)
def test_products_of_yat_scores_overlap_and_programs_share_a_multiprocessor(launches, tmp_path, head_dim, is_causal):
    kernel = YatAttention(2 * head_dim, 2, is_causal=is_causal).to(BF16)
    # many points, so that tiles are those of large problems
    results(TritonYat(), Integral(kernel, torch.zeros(1, 512, 2 * head_dim, dtype=BF16), Sequence(512)))
    for kernel, tile, arguments in launches:
        if "PRECISION" not in kernel.arg_names:
            continue
        code = compiled(kernel, tile, arguments)
        registers = re.search(r"REG:(\d+)", disassembled(code.asm["cubin"], tmp_path, "-res-usage"))
        steps = disassembled(code.asm["cubin"], tmp_path, "-sass")
        assert registers is not None
        # where the assembler cannot overlap products, it waits after each
        assert 2 * steps.count("WARPGROUP.ARRIVE") < steps.count("HGMMA")
        assert 2 * 32 * tile.warps * int(registers[1]) <= tuning.REGISTERS
        assert 2 * code.metadata.shared <= SHARED_BYTES


def test_products_rounded_to_tf32_compile(launches, tmp_path):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        record_all(BOTH, FP32, **PAPER)
    finally:
        torch.set_float32_matmul_precision(before)
    check_that_all_fit(launches, tmp_path, on_tensor_cores=False)


def test_the_short_gelu_costs_a_fifth_of_the_exact_one(launches, tmp_path):
    record_all(GRID, BF16, **PAPER)
    kernel, tile, arguments = launches[0]
    plan = arguments["PLAN"]
    assert plan.ACTIVATION == "gelu_short"
    lengths = {}
    for activation in ("relu", "gelu_short", "gelu"):
        code = compiled(kernel, tile, {**arguments, "PLAN": plan._replace(ACTIVATION=activation)}).asm["cubin"]
        lengths[activation] = len(re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/", disassembled(code, tmp_path, "-sass"), re.M))
    print(kernel.fn.__name__, lengths)
    assert lengths["gelu_short"] - lengths["relu"] < (lengths["gelu"] - lengths["relu"]) / 5


def test_tiles_on_trial_are_compiled_side_by_side(launches, monkeypatch, tmp_path):
    """Compiles by Triton's launcher, for a GPU that it takes for the current one."""
    from triton.backends.compiler import GPUTarget

    here = {"get_current_device": 99, "get_current_stream": 0, "get_current_target": GPUTarget("cuda", 90, 32)}
    driver = SimpleNamespace(**{name: lambda *_, expected=expected: expected for name, expected in here.items()})
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    record_all(GRID, BF16, **ODD)
    kernel, rule, arguments = launches[0]
    arguments = {name: value for name, value in arguments.items() if name not in ("UNITS", "N", "REST")}
    tiles = [rule._replace(points=points, warps=4) for points in (16, 32)]
    impossible = rule._replace(units=3)

    def step():
        assert tuning._Trial.running is not None
        tuning._Trial.running.start("one", lambda: None, warm_up)
        return []

    def warm_up(tile):
        return kernel.warmup(grid=(1, 1, 1), **arguments, **tuning._options(kernel, tile))

    with tuning._Trial(step, 0.0) as trial:
        trial.compile("one", [*tiles, impossible])
    kept = [*kernel.device_caches[99][0].values()]
    with pytest.raises(triton.CompilationError):
        _ = warm_up(impossible).asm
    for tile in tiles:
        found = warm_up(tile)
        assert any(found is each for each in kept)
        assert found.metadata.num_warps == 4
        assert "sm_90" in found.asm["ptx"]


def test_sources_are_parsed_one_after_the_other(monkeypatch):
    """Two threads in Python's parser at the same time sometimes raise a SystemError."""
    function, within, most = triton.runtime.jit.JITFunction, [], []

    def parse(_):
        within.append(1)
        most.append(len(within))
        time.sleep(0.01)
        within.pop()

    monkeypatch.setattr(function, "parse", parse)
    with tuning._parsed_in_turn(), ThreadPoolExecutor(4) as pool:
        list(pool.map(function.parse, range(8)))
    assert (len(most), max(most)) == (8, 1)
    assert function.parse is parse


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_every_activation_compiles(launches, activation):
    record_all(Points(torch.rand(3, 2)), torch.float32, activation=activation, **ODD)
    assert len(launches) == 3
    codes = [compiled(*launch).asm for launch in launches]
    assert all(code["cubin"] for code in codes)
    # NaN stays NaN
    assert ("max.NaN.f32" in codes[0]["ptx"]) == (activation == "relu")
