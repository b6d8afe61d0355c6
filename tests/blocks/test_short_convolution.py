import pytest
import torch

from fredholm.blocks.short_convolution import ShortConvolution
from tests.refusals import refused


def filter_definition(conv: ShortConvolution, points: list[torch.Tensor]) -> torch.Tensor:
    """The filter at the last of `points`, `(channels,)` each, zeros before the first."""
    out = conv.bias.clone()
    for k in range(min(conv.width, len(points))):
        out = out + conv.weight[:, conv.width - 1 - k] * points[-1 - k]
    return out


@pytest.mark.pairs
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("length", [0, 1, 11])
def test_filters_the_unmasked_points_since_the_last_reset_at_every_split(width, with_mask, with_reset, length):
    conv = ShortConvolution(3, width).double()
    u = torch.randn(2, length, 3, dtype=torch.float64)
    mask = torch.rand(2, length) > 0.4 if with_mask else torch.ones(2, length, dtype=torch.bool)
    reset = torch.rand(2, length) > 0.7 if with_reset else torch.zeros(2, length, dtype=torch.bool)
    for split in range(length + 1):
        buffer, parts = conv.initial_buffer(2), []
        for at in (slice(0, split), slice(split, length)):
            out, buffer = conv(
                u[:, at], buffer, mask[:, at] if with_mask else None, reset[:, at] if with_reset else None
            )
            parts.append(out)
        whole = torch.cat(parts, dim=1)
        for b in range(2):
            seen: list[torch.Tensor] = []
            for t in range(length):
                seen = [] if reset[b, t] else seen
                if mask[b, t]:
                    seen = [*seen, u[b, t]]
                    assert torch.allclose(whole[b, t], filter_definition(conv, seen), atol=1e-14)
            expected = torch.zeros(width - 1, 3, dtype=torch.float64)
            for k in range(min(width - 1, len(seen))):
                expected[-1 - k] = seen[-1 - k]
            assert torch.equal(buffer[b], expected)


def test_bad_input_is_refused():
    with refused(ValueError, "ShortConvolution", "at least 1", "0"):
        ShortConvolution(3, 0)
