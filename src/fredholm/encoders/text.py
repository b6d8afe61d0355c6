"""Text as a signal on a sequence of tokens."""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.domains import Domain, Sequence
from fredholm.encoders.encoder import Encoder


@final
class Text(Encoder):
    """A learned vector for every token of a vocabulary; the signal lives on `Sequence(N)`.

    Positions enter the signal nowhere: kernels read them from the domain, or a model adds its own.

    Args:
        vocab_size: number of tokens V; tokens are 0 to V - 1.
        embed_dim: channels of the signal.
        std: deviation of the vectors' normal start.

    Raises:
        ValueError: sizes below 1, or a deviation that is not above 0.
    """

    def __init__(self, vocab_size: int, embed_dim: int, std: float = 0.02) -> None:
        super().__init__()
        for what, size in (("vocab_size", vocab_size), ("embed_dim", embed_dim)):
            check_count("encoders.Text", what, size)
        if not std > 0:
            raise ValueError(f"encoders.Text: std must be above 0; got {std}")
        self.embed_dim, self.pos_dim = embed_dim, 1
        self.weight = nn.Parameter(torch.empty(vocab_size, embed_dim).normal_(std=std))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """Tokens `(B, N)`, int64, to the signal `(B, N, embed_dim)` and its sequence of N points."""
        if inputs.ndim != 2 or inputs.dtype != torch.int64:
            raise ValueError(
                f"encoders.Text: expected int64 tokens of shape (batch, length); got {tuple(inputs.shape)}, "
                f"{inputs.dtype}"
            )
        return nn.functional.embedding(inputs, self.weight), Sequence(inputs.shape[1]).to(inputs.device)
