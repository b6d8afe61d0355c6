import pytest
import torch

from fredholm.domains import Sequence
from fredholm.encoders.text import Text
from tests.refusals import refused


def test_tokens_are_mapped_to_vectors_on_a_sequence() -> None:
    encoder, tokens = Text(7, 5), torch.randint(7, (3, 11))
    signal, domain = encoder(tokens)
    assert isinstance(domain, Sequence)
    assert torch.equal(domain.pos, Sequence(11).pos)
    assert (encoder.embed_dim, encoder.pos_dim) == (5, 1)
    for b in range(3):
        for n in range(11):
            assert torch.equal(signal[b, n], encoder.weight[tokens[b, n]])
    signal[0].sum().backward()
    counts = torch.bincount(tokens[0], minlength=7).float()
    assert encoder.weight.grad is not None
    torch.testing.assert_close(encoder.weight.grad, counts[:, None].expand(7, 5))


@pytest.mark.parametrize("std", [0.02, 0.5])
def test_initial_vectors_are_normal(std: float) -> None:
    assert Text(500, 40, std=std).weight.std().item() == pytest.approx(std, rel=0.03)


def test_no_tokens() -> None:
    signal, domain = Text(7, 5)(torch.zeros(2, 0, dtype=torch.int64))
    assert signal.shape == (2, 0, 5)
    assert domain.num_points == 0


def test_bad_input_is_refused() -> None:
    with refused(ValueError, "vocab_size must be at least 1", "got 0"):
        Text(0, 3)
    with refused(ValueError, "embed_dim must be at least 1", "got 0"):
        Text(3, 0)
    with refused(ValueError, "std must be positive", "got 0.0"):
        Text(3, 3, std=0.0)
    with refused(ValueError, "int64 tokens of shape (batch, length)", "(2, 3), torch.float32"):
        Text(3, 3)(torch.zeros(2, 3))


@pytest.mark.parametrize("token", [-1, 7])
def test_unknown_tokens_are_refused(token: int) -> None:
    with refused(ValueError, f"encoders.Text: there are tokens 0 to 6; got {token}"):
        Text(7, 5)(torch.tensor([[0, 6, token]]))
    assert Text(7, 5)(torch.tensor([[0, 6]]))[0].shape == (1, 2, 5)
