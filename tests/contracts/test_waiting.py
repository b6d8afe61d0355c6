"""Forward and backward passes neither synchronise with the device nor copy to it, so CUDA graphs can capture them.

Synchronisation shows in the dispatched operations: reads of values, and sizes that depend on values. Copies show
because the default device is another one meanwhile: a tensor created without a device is not on the signal's.
"""

import itertools
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.captured import captured
from fredholm import encoders, models
from fredholm.domains import Grid, Points, Union
from fredholm.evaluation import TritonFeatureSum, TritonTiled, TritonYat
from fredholm.evaluation.triton import machine
from fredholm.kernels import MLP
from fredholm.models.language.gpt2 import GPT2
from fredholm.operators import IntegralOperator

READS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "_unique2", "unique_dim"}
READS |= {"unique_consecutive", "lift_fresh"}  # `lift_fresh` is `torch.tensor` of Python numbers
BY_MASK = {"index", "index_put", "index_put_"}


class Watch(TorchDispatchMode):
    """Records the places where operations read values, also inside the library's own operators."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if func.namespace == "fredholm":
            with self:
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
        by_mask = name in BY_MASK and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or by_mask:
            ours = [frame for frame in traceback.extract_stack() if "/fredholm/" in frame.filename]
            self.found.add(f"{name} at {ours[-1].filename}:{ours[-1].lineno}" if ours else name)
        return func(*args, **kwargs)


class Launches(TorchDispatchMode):
    """Counts the operations for which a GPU would launch a kernel, also inside the library's own operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "fredholm":
            with self:
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
        self.count += not func.is_view and func.overloadpacket.__name__ not in WITHOUT_LAUNCH
        return func(*args, **kwargs)


WITHOUT_LAUNCH = {"empty", "empty_like", "new_empty", "empty_strided", "_unsafe_view", "promote_types", "scalar_tensor"}


PERCEPTRON: dict[str, Any] = {"width": 5, "num_frequencies": 3}
KERNELS: dict[str, Any] = {
    "exact": models.MLPConfig(**PERCEPTRON),
    "low rank": models.LowRankConfig(rank=2, **PERCEPTRON),
    "separable": models.SeparableConfig(**PERCEPTRON),
    "attention": models.AttentionConfig(),
    "Yat": models.YatConfig(),
    "infinite attention": models.InfiniteConfig(),
    "sum": models.SumConfig(first=models.MLPConfig(**PERCEPTRON), second=models.AttentionConfig()),
}


def itnet(kernel: str, depth: int = 2, **options: Any) -> nn.Module:
    """An ITNet on images of 4 x 4 patches, with a class token."""
    images = encoders.Image.Config(image_size=(8, 8), patch_size=2, num_frequencies=2)
    sizes = {"embed_dim": 12, "depth": depth, "num_heads": 3}
    config = models.ITNet.Config(**sizes, kernel=KERNELS[kernel], drop_path=0.1, **options)
    return models.ITNet(encoders.Image(images, 12), 5, config)


def images() -> Tensor:
    """A batch of images for `itnet`."""
    return torch.randn(2, 3, 8, 8)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    **{name: (lambda name=name: itnet(name), images) for name in KERNELS},
    "Monte Carlo": (lambda: itnet("exact", num_samples=5), images),
    "GPT-2": (
        lambda: GPT2.Config(embed_dim=12, depth=2, num_heads=3).build(7, 9),
        lambda: torch.randint(7, (2, 9)),
    ),
}
# without the model that draws new samples at each replay, and the one whose linear solver chooses its own library
CAPTURED = [name for name in MODELS if name not in ("Monte Carlo", "infinite attention")]


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes routes choose as on a GPU, with Triton kernels that do nothing."""
    pytest.importorskip("triton")
    from fredholm.encoders import text
    from fredholm.evaluation.attention import fused
    from fredholm.evaluation.triton import features, long_product, perceptron, yat
    from fredholm.layers import yat_response

    monkeypatch.setattr(fused, "_is_out_of_reach", lambda *_: False)
    for reader in (text, fused, yat_response):
        monkeypatch.setattr(reader, "values_are_at_hand", lambda *_: False)
    for module in (features, long_product, perceptron, yat):
        monkeypatch.setattr(module, "launch", lambda *_: None)
    monkeypatch.setattr(machine, "machine_refusals", lambda *_: [])
    for route in (TritonTiled, TritonFeatureSum, TritonYat):
        monkeypatch.setattr(route, "devices", None)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_waits_for_the_device(name: str, trains: bool, autocast: bool) -> None:
    build, draw = MODELS[name]
    model, inputs = build().train(trains), draw()
    leaves = [parameter for parameter in model.parameters() if parameter.numel()]
    watch = Watch()
    with torch.device("meta"), watch, torch.set_grad_enabled(trains), torch.autocast("cpu", enabled=autocast):
        out = model(inputs)
        if trains:
            torch.autograd.grad(out.float().sum(), leaves, allow_unused=True)
    assert not watch.found


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(
    ("name", "inference", "training"), [("exact", 70, 215), ("low rank", 24, 90), ("attention", 38, 118)]
)
def test_a_layer_launches_few_kernels(name: str, inference: int, training: int) -> None:
    """Small kernels take less time than their launches of some microseconds each. Triton kernels are not counted."""
    counts, inputs = [], images()
    itnet(name)(inputs)  # fills the caches of positions
    for depth, trains in itertools.product((1, 3), (False, True)):
        model = itnet(name, depth).train(trains)
        with Launches() as launches, torch.set_grad_enabled(trains), torch.autocast("cpu", torch.bfloat16):
            out = model(inputs)
            if trains:
                out.float().sum().backward()
        counts.append(launches.count)
    layer = [(deep - shallow) / 2 for shallow, deep in zip(counts[:2], counts[2:], strict=True)]
    assert layer[0] <= inference
    assert layer[1] <= training


@pytest.mark.usefixtures("fused")
def test_many_points_beside_a_grid_launch_few_kernels() -> None:
    """Such points are, for example, the words of a text beside the patches of an image."""
    domain = Union(Points(torch.rand(128, 2)), Grid(14, 14)).with_cache()
    operator, counts = IntegralOperator(MLP(4, 2, 2, width=3, num_frequencies=64)), []
    for _ in range(2):
        with Launches() as launches, torch.autocast("cpu", torch.bfloat16):
            operator(torch.randn(1, domain.num_points, 4), domain)
        counts.append(launches.count)
    assert counts[1] <= 90  # the second call uses the cache of positions


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CAPTURED)
def test_a_cuda_graph_gives_the_results_of_the_model(name: str, trains: bool) -> None:
    build, draw = MODELS[name]
    model, inputs = build().cuda().eval(), draw().cuda()
    leaves = [parameter for parameter in model.parameters() if parameter.numel()]

    def step() -> list[Tensor]:
        with torch.set_grad_enabled(trains):
            with torch.autocast("cuda", torch.bfloat16):
                out = model(inputs)
            if not trains:
                return [out]
            grads = torch.autograd.grad(out.float().square().sum(), leaves, allow_unused=True)
            return [out.detach(), *(grad for grad in grads if grad is not None)]

    replay = captured(step)
    for _ in range(2):
        inputs.copy_(draw())
        torch.testing.assert_close(list(replay()), step(), atol=1e-2, rtol=1e-2)


def test_the_watch_records_reads_of_values() -> None:
    with Watch() as watch:
        bool(torch.ones(1) > 0)
        torch.arange(3)[torch.ones(3, dtype=torch.bool)]
        torch.tensor([1.0])
    assert {place.split()[0] for place in watch.found} == {"_local_scalar_dense", "index", "lift_fresh"}
