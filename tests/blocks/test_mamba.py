from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad, silu

from fredholm.blocks.mamba import MambaBlock
from fredholm.domains import Sequence
from fredholm.kernels import SelectiveStateSpace
from tests.kernels.recurrence.test_selective_state_space import recurrence
from tests.refusals import refused


def block(dtype: torch.dtype = torch.float64, **options) -> MambaBlock:
    torch.manual_seed(5)
    sizes: dict[str, Any] = {"expand": 2, "state_dim": 4, "conv_width": 3} | options
    made = MambaBlock(3, **sizes).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def test_equals_the_papers_figure():
    made = block(conv_width=4)
    u = torch.randn(2, 11, 3, dtype=torch.float64)
    v, z = (u @ made.in_projection.weight.mT).chunk(2, dim=-1)
    v = conv1d(pad(v.mT, (3, 0)), made.convolution.weight[:, None], made.convolution.bias, groups=6).mT
    kernel = made.operator.kernel
    assert isinstance(kernel, SelectiveStateSpace)
    expected = (recurrence(kernel, silu(v)) * silu(z)) @ made.out_projection.weight.mT
    assert torch.allclose(made(u), expected, atol=1e-12)


@pytest.mark.parametrize(("embed_dim", "expand", "rank"), [(3, 2, 1), (16, 2, 1), (17, 2, 2), (64, 2, 4), (64, 3, 4)])
def test_the_rank_of_step_sizes_depends_on_embed_dim_not_inner_channels(embed_dim, expand, rank):
    kernel = MambaBlock(embed_dim, expand).operator.kernel
    assert isinstance(kernel, SelectiveStateSpace)
    assert kernel.rank == rank


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("with_mask", [False, True])
def test_steps_and_chunks_equal_the_whole_at_every_split(dtype, tolerance, with_mask):
    made, n = block(dtype), 13
    u = torch.randn(2, n, 3, dtype=dtype)
    mask = torch.rand(2, n) > 0.4 if with_mask else None

    def part(start: int, stop: int) -> Sequence:
        return Sequence(stop - start, mask=None if mask is None else mask[:, start:stop])

    with torch.no_grad():
        expected = made(u, part(0, n))
        bound = tolerance * expected.abs().max()
        for split in range(n + 1):
            head, state = made.scan(u[:, :split], part(0, split))
            tail, _ = made.scan(u[:, split:], part(split, n), state=state)
            assert (torch.cat([head, tail], dim=1) - expected).abs().max() <= bound
        if mask is None:
            state = made.initial_state(2)
            for t in range(n):
                row, state = made.step(u[:, t], state)
                assert (row - expected[:, t]).abs().max() <= bound
        else:
            assert not expected[~mask].any()


def test_a_reset_begins_a_new_sequence_and_gradients_flow_through_states():
    made = block(expand=1, state_dim=2)
    u = torch.randn(1, 9, 3, dtype=torch.float64)
    reset = torch.zeros(1, 9, dtype=torch.bool)
    reset[0, 4] = True
    out, _ = made.scan(u, reset=reset)
    assert torch.allclose(out, torch.cat([made(u[:, :4]), made(u[:, 4:])], dim=1), atol=1e-13)
    state = tuple(torch.randn_like(part).requires_grad_() for part in made.initial_state(1))

    def run(u: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        out, final = made.scan(u, state=state)
        return out, *final

    assert torch.autograd.gradcheck(run, [u[:, :3].clone().requires_grad_(), *state])


def test_compiles_and_runs_in_low_precision():
    made = block(torch.float32)
    u = torch.randn(2, 7, 3)
    expected = made(u)
    torch.compiler.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(u), expected, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        out, state = made.scan(u)
        assert state[1].dtype == torch.float32
        stepped, _ = made.step(u[:, 0], made.initial_state(2))
    assert (out.float() - expected).abs().max() <= 2e-2 * expected.abs().max()
    assert (stepped.float() - expected[:, 0]).abs().max() <= 2e-2 * expected.abs().max()


def test_padding_does_not_affect_unmasked_points():
    made = block()
    u = torch.randn(2, 8, 3, dtype=torch.float64)
    kept = torch.tensor([True] * 5 + [False] * 3)
    out = made(u, key_padding_mask=kept)
    assert torch.allclose(out[:, :5], made(u[:, :5]), atol=1e-13)
    assert not out[:, 5:].any()


def test_bad_input_is_refused():
    with refused(ValueError, "MambaBlock", "expand", "0"):
        MambaBlock(3, 0)
    with refused(ValueError, "kernel has 5 channels", "6"):
        MambaBlock(3, kernel=SelectiveStateSpace(5))
    made = MambaBlock(3)
    with refused(ValueError, "(batch, points, channels)", "(2, 3)"):
        made(torch.randn(2, 3))
    with refused(ValueError, "Sequence(3)", "(1, 4, 3)"):
        made(torch.randn(1, 4, 3), Sequence(3))
    with refused(ValueError, "does not fit u of shape (1, 4, 3)"):
        made(torch.randn(1, 4, 3), Sequence(4, mask=torch.ones(2, 4, dtype=torch.bool)))
    with refused(ValueError, "reset must be (1, 4) bool", "(4,)"):
        made.scan(torch.randn(1, 4, 3), reset=torch.zeros(4, dtype=torch.bool))
    with refused(ValueError, "initial_state(2)", "(1, 3, 6)"):
        made.step(torch.randn(2, 3), made.initial_state(1))
