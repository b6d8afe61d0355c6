"""The contract of an evaluation route: it agrees with the dense oracle, forward and in every gradient."""

import functools
from typing import Any, TypeVar

import torch
from torch import Tensor

from fredholm.domains import Points, Sequence
from fredholm.evaluation import Dense, Evaluation, Integral, StatefulEvaluation, StepLoop
from fredholm.kernels import Kernel

AnyKernel = TypeVar("AnyKernel", bound=Kernel)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def changed(integral: Integral[Any], **fields: Any) -> Integral[Any]:
    """The same integral with some arguments replaced."""
    u, domain, query, query_domain = integral.arguments
    query = query if integral.has_query_signal else None
    arguments = {"kernel": integral.kernel, "u": u, "domain": domain, "query": query, "query_domain": query_domain}
    return Integral(**(arguments | fields))


def randomise(kernel: AnyKernel, scale: float = 0.5) -> AnyKernel:
    """Replaces every parameter by noise: at its initialisation a kernel hides mistakes behind small numbers."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return kernel


def results(route: Evaluation, problem: Integral[Any]) -> dict[str, Tensor]:
    """The integral, and gradients of a fixed functional of it by signals, positions, weights and parameters."""
    kernel = problem.kernel
    leaves = {"u": problem.u}
    _, _, query, query_domain = problem.arguments
    if query is not None and problem.has_query_signal:
        leaves["query"] = query
    for side, domain in (("key", problem.domain), ("query", query_domain)):
        if isinstance(domain, Points):
            leaves[f"{side} pos"] = domain.pos
            if side == "key" and domain.uniform_parts is None:
                leaves["weights"] = domain.weights
    leaves |= dict(kernel.named_parameters())
    for leaf in leaves.values():
        leaf.requires_grad_()
    out = route.integrate(Integral(kernel, problem.u, problem.domain, problem.query, problem.query_domain))
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(out)
    grads = torch.autograd.grad(out, list(leaves.values()), cotangent, allow_unused=True)
    found = {f"d/d {name}": grad for name, grad in zip(leaves, grads, strict=True) if grad is not None}
    return {"integral": out.detach(), **found}


def check_route(route: Evaluation, problem: Integral[Any], tolerance: float | None = None) -> None:
    """Asserts that a route accepts a problem and agrees with the dense oracle in all `results`."""
    reasons = route.unsupported_reasons(problem)
    assert not reasons, reasons
    expected, got = results(Dense(), problem), results(route, problem)
    tolerance = TOLERANCE[problem.u.dtype] if tolerance is None else tolerance
    compare(got, expected, tolerance)


def check_chunks(
    route: StatefulEvaluation, kernel: Kernel, u: Tensor, tolerance: float, times: Tensor | None = None
) -> None:
    """Asserts that two chunks, cut anywhere, and single steps give the outputs and final state of the whole."""

    def part(start: int, stop: int) -> Integral[Kernel]:
        domain = Sequence(stop - start) if times is None else Sequence(times=times[start:stop])
        return Integral(kernel, u[:, start:stop], domain)

    n, assert_close = u.shape[1], functools.partial(torch.testing.assert_close, atol=tolerance, rtol=tolerance)
    whole, end = route.run(part(0, n))
    assert_close(whole, route.integrate(part(0, n)))
    stepped, stepped_end = StepLoop().run(part(0, n))
    assert_close(stepped, whole)
    for split in range(n + 1):
        first, state = route.run(part(0, split))
        second, last = route.run(part(split, n), state)
        assert_close(torch.cat([first, second], 1), whole)
        for of_chunks, of_whole, of_steps in zip(last, end, stepped_end, strict=True):
            assert_close(of_chunks, of_whole)
            assert_close(of_chunks, of_steps)


def check_autocast(route: Evaluation, kernel: Kernel) -> None:
    """Asserts that autocast gives bfloat16 close to the float32 oracle, for float32 and bfloat16 signals."""
    domain, u = Sequence(5, weights=torch.rand(5)), torch.randn(2, 5, 8)
    exact = Dense().integrate(Integral(kernel, u, domain))
    with torch.autocast("cpu", torch.bfloat16):
        for signal in (u, u.bfloat16()):
            out = route.integrate(Integral(kernel, signal, domain))
            assert out.dtype == torch.bfloat16
            torch.testing.assert_close(out.float(), exact, atol=3e-2, rtol=3e-2)


def compare(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Asserts that the error of every entry by `relative_errors` is within a tolerance."""
    for name, error in relative_errors(got, expected).items():
        assert error <= tolerance, f"{name}: relative error {error:.2e} above {tolerance:.0e}"


def relative_errors(got: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Largest error of each entry, relative to its largest value; absent gradients count as zero.

    An entry that is tiny beside the others, such as the gradient by a constant in all scores, is measured against the
    others. Where the expected entry is 0 throughout, rounding errors of cancelling terms are accepted.
    """
    largest = max((side.abs().max().item() for side in expected.values() if side.numel()), default=0.0)
    errors = {}
    for name in got.keys() | expected.keys():
        shape = (got if name in got else expected)[name].shape
        a, b = (side.get(name, torch.zeros(shape)).double() for side in (got, expected))
        assert torch.isfinite(a).all(), f"{name} is not finite"
        if a.numel() == 0:
            continue
        rounding = 100 * torch.finfo((got if name in got else expected)[name].dtype).eps * largest
        if not b.any() and a.abs().max() <= rounding:
            continue
        errors[name] = ((a - b).abs().max() / b.abs().max().clamp_min(1e-30 + 1e-4 * largest)).item()
    return errors
