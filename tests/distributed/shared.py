"""Functions that processes of the tests in this folder run on a shared signal."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.shared_signals import CHANNELS, KERNELS
from fredholm import IntegralOperator, kernels
from fredholm.blocks.feed_forward import FeedForward
from fredholm.blocks.mamba import MambaBlock
from fredholm.blocks.residual import ResidualBlock
from fredholm.distributed import Shard, counted_traffic, gather_points, reduce_gradients, shard_points
from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import AUTO, Dense
from fredholm.kernels import Kernel
from fredholm.quadrature import MonteCarlo


def refusals() -> list[str]:
    """Error messages for bad input."""
    u, grid = torch.randn(1, 6, 2), Grid(2, 3)
    weighed = grid.weigh_pairs(torch.zeros(6, 6))
    plain = torch.nn.Linear(2, 2)
    dropping = IntegralOperator(kernels.ContinuousConvolution(2, 2, 2, weight_dropout=0.5))
    calls = [
        lambda: shard_points(u[:, :1], Grid(1)),
        lambda: shard_points(u, grid, sizes=[6, 0]),
        lambda: shard_points(u, grid, sizes=[2, 3]),
        lambda: shard_points(u[0], grid),
        lambda: shard_points(u, weighed),
        lambda: Shard(Shard(grid)),
        lambda: Shard(grid).weigh_pairs(torch.zeros(6, 6)),
        lambda: Shard(Grid(6 + dist.get_rank())),
        lambda: shard_points(torch.randn(1, 6, 2 + dist.get_rank()), grid),
        lambda: shard_points(u, grid, init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "points"))),
        lambda: gather_points(u, Shard(grid)),
        lambda: dropping(*shard_points(u, Grid(2, 3))),
        lambda: IntegralOperator(kernels.Attention(2), quadrature=MonteCarlo(2))(*shard_points(u, grid)),
        lambda: Shard(Points(torch.rand(6, 2, generator=torch.Generator().manual_seed(dist.get_rank())))),
        lambda: Shard(Grid(6, weights=torch.full((6,), 1.0 + dist.get_rank()))),
        lambda: IntegralOperator(kernels.Attention(2))(*shard_points(u, grid), query=u),
        lambda: Shard(grid).restrict(torch.ones(3)),
        lambda: MambaBlock(2)(*shard_points(u, Sequence(6))),
        lambda: reduce_gradients(plain, init_device_mesh("cpu", (1, 2))),
    ]
    found = []
    for call in calls:
        try:
            call()
            found.append("nothing")
        except (ValueError, TypeError) as error:
            found.append(str(error))
    return found


def routes() -> list[str]:
    """The routes that `explain` names for kernels on a shared signal."""
    grid, line = Grid(2, 3), Sequence(6)
    cases: list[tuple[Kernel, Domain]] = [
        (kernels.MLP(4, 2, 2), grid),
        (kernels.LowRankMLP(4, 2, 2, rank=2), grid),
        (kernels.Attention(4, 2), grid),
        (kernels.YatAttention(4, 2, normaliser=kernels.Unnormalised()), grid),
        (kernels.InfiniteAttention(4, 2, form="hop"), grid),
        (kernels.InfiniteAttention(4, 2), grid),
        (kernels.FactorisedInfiniteAttention(4, 2), grid),
        (kernels.LinearInfiniteAttention(4, 2), grid),
        (kernels.LinearAttention(4, 2), grid),
        (kernels.LinearAttention(4, 2, is_causal=True), line),
        (kernels.LSTM(4, 4), line),
        (kernels.Convolution(4, 4, 3, padding="same"), line),
    ]
    found = []
    for kernel, domain in cases:
        u, shard = shard_points(torch.randn(1, 6, 4), domain)
        found.append(IntegralOperator(kernel).explain(u, shard).split(":")[0])
    return found


def block(kernel: Kernel) -> nn.Module:
    torch.manual_seed(1)
    return ResidualBlock(IntegralOperator(kernel, residual=False), FeedForward(8, 2)).double()


def training_step(name: str, size: int) -> dict[str, Tensor]:
    """The signal after a block and the gradients, for a class token and a grid."""
    torch.manual_seed(0)
    kernel = {"ring": kernels.MLP(8, 2, 2), "sums": kernels.FactorisedInfiniteAttention(8, 2)}[name]
    model = block(kernel)
    token = nn.Parameter(torch.randn(1, 1, 8, dtype=torch.float64))
    whole = Union(Points(torch.full((1, 2), 0.5, dtype=torch.float64)), Grid(size, size))
    u = torch.cat([token, torch.randn(1, size * size, 8, dtype=torch.float64)], dim=1).expand(2, -1, -1)
    u, domain = shard_points(u, whole)
    y = model(u, domain)
    loss = y.square().sum() / (2 * whole.num_points)
    loss.backward()
    reduce_gradients(model)
    reduce_gradients([token])
    assert token.grad is not None
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"y": gather_points(y, domain).detach(), "token": token.grad, **grads}


def traffic(sizes: list[int], causal: bool) -> list[int]:
    """Bytes that this process sends in the forward and backward pass of an exact MLP kernel, float32, batch of two."""
    kernel = kernels.MLP(4, 2, 1, is_causal=causal)
    u, domain = shard_points(torch.randn(2, sum(sizes), 4, requires_grad=True), Sequence(sum(sizes)), sizes=sizes)
    with counted_traffic() as forward:
        y = IntegralOperator(kernel)(u, domain)
    with counted_traffic() as backward:
        y.sum().backward()
    assert forward.sums + forward.gathered + forward.relay + backward.sums + backward.gathered + backward.relay == 0
    return [forward.ring, backward.ring]


def second_derivative() -> Tensor:
    """The gradient of the squared gradient of a kernel whose sums are added up over the processes."""
    torch.manual_seed(0)
    operator = IntegralOperator(kernels.LinearAttention(4, 2)).double()
    whole = torch.randn(1, 7, 4, dtype=torch.float64, requires_grad=True)
    u, domain = shard_points(whole, Sequence(7))
    (slope,) = torch.autograd.grad(operator(u, domain).square().sum(), u, create_graph=True)
    slope.square().sum().backward()
    assert whole.grad is not None
    reduce_gradients([whole])
    return whole.grad


def bytes_by_kernel(side: int) -> dict[str, list[int]]:
    """Bytes sent around the ring and bytes added up, in the forward pass, for each kernel of the benchmark."""
    found = {}
    for name, (build, place) in KERNELS.items():
        whole = place(side)
        u, domain = shard_points(torch.randn(1, whole.num_points, CHANNELS), whole)
        with torch.no_grad(), counted_traffic() as forward:
            IntegralOperator(build(), residual=False)(u, domain)
        found[name] = [forward.ring, forward.sums]
    return found


def answers(names: list[str], dtype: str, masked: bool, batch: int) -> dict[str, Tensor]:
    """Results and gradients of operators, optionally with masked keys or autocast; on one process without sharing."""
    found, count = {}, dist.get_world_size()
    for name in names:
        build, place = KERNELS[name]
        torch.manual_seed(0)
        operator, whole = IntegralOperator(build()), place(4)
        u = torch.randn(batch, 16, CHANNELS, requires_grad=True)
        keep = torch.rand(batch, 16) > 0.3 if masked else None
        domain = Shard(whole, sizes=[16 - 3 * (count - 1), *[3] * (count - 1)]) if count > 1 else None
        here = slice(None) if domain is None else slice(domain.start, domain.start + domain.num_points)
        mask = None if keep is None else keep[:, here]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            y = operator(u[:, here], whole if domain is None else domain, key_padding_mask=mask)
        y.float().square().sum().backward()
        assert u.grad is not None
        if count > 1:
            assert domain is not None
            reduce_gradients([u, *operator.parameters()])
            y = gather_points(y.detach(), domain)
        grads = {f"{name} {key}": p.grad for key, p in operator.named_parameters() if p.grad is not None}
        found |= {f"{name} y": y.detach().float(), f"{name} u": u.grad, **grads}
    return found


def saturated(name: str, dtype: torch.dtype, causal: bool) -> dict[str, Tensor]:
    """Gradients of attention whose scores give all the weight to one key; on one process by definition."""
    torch.manual_seed(0)
    kernel = {"attention": kernels.Attention, "Yat attention": kernels.YatAttention}[name](2, is_causal=causal)
    u, weight = (1000 * torch.randn(2, 33, 2)).to(dtype).requires_grad_(), torch.randn(2, 33, 2).to(dtype)
    shares = dist.get_world_size() > 1
    operator = IntegralOperator(kernel, residual=False, evaluation=AUTO if shares else Dense()).to(dtype)
    domain = Shard(Sequence(33), sizes=[20, 13]) if shares else Sequence(33)
    here = slice(domain.start, domain.start + domain.num_points) if isinstance(domain, Shard) else slice(None)
    (operator(u[:, here], domain) * weight[:, here]).sum().backward()
    reduce_gradients(operator)
    reduce_gradients([u])
    leaves = {"u": u, **dict(operator.named_parameters())}
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
