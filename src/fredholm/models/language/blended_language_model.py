"""A network of tokens and n-grams beside it, of which each takes a share in what comes next."""

from typing import final

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
from fredholm.models.language.language_model import LanguageModel, LanguageState
from fredholm.models.language.n_gram_model import NGramModel


@final
class BlendedLanguageModel(LanguageModel):
    """s p(w | t) + (1 - s) q(w | t), of a network p that learns in steps and n-grams q that are counted.

    In training it is the network alone; s is chosen afterwards, by text that neither was trained on. A network learns
    what tokens have in common, and of a short text forgets much of what came word for word, which counts do not.

    Args:
        network: p.
        counts: q, of the same tokens.

    Attributes:
        share: s, a float32 scalar, 0 to 1; 1 at first.

    Raises:
        ValueError: the two are of different tokens or contexts.
    """

    share: Tensor

    def __init__(self, network: LanguageModel, counts: NGramModel) -> None:
        super().__init__()
        for what in ("vocab_size", "context"):
            own, other = getattr(network, what), getattr(counts, what)
            if own != other:
                raise ValueError(
                    f"models.BlendedLanguageModel: the network's {what} is {own} and that of the n-grams {other}; "
                    "make them agree"
                )
        self.network, self.counts = network, counts
        self.vocab_size, self.context = network.vocab_size, network.context
        self.token_rows = tuple(f"network.{name}" for name in network.token_rows)
        self.place_rows = tuple(f"network.{name}" for name in network.place_rows)
        self.register_buffer("share", torch.ones(()))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(B, T, V)`, in training those of the network; see `LanguageModel.forward`."""
        if self.training or self._is_network:
            return self.network(tokens)
        return self._blended(self.network(tokens), self.counts.probabilities(tokens))

    def initial_state(self, batch_size: int) -> LanguageState:
        """The network's, and last that of the counts."""
        return *self.network.initial_state(batch_size), *self.counts.initial_state(batch_size)

    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """See `LanguageModel.read`; the signal is the network's, followed by the probabilities of the counts."""
        *of_network, of_counts = state
        signal, reached = self.network.read(tokens, tuple(of_network))
        found, counted = self.counts.read(tokens, (of_counts,))
        return torch.cat([signal, found], -1), (*reached, *counted)

    def logits(self, signal: Tensor) -> Tensor:
        """See `LanguageModel.logits`."""
        learnt, counted = signal[..., : -self.vocab_size], signal[..., -self.vocab_size :]
        of_network = next(self.network.parameters()).dtype  # narrower than the counts' where it is of 16 bits
        logits = self.network.logits(learnt.to(of_network))
        return logits if self.training or self._is_network else self._blended(logits, counted)

    @property
    def _is_network(self) -> bool:
        """Whether the network has all of it, as far as that may be asked."""
        return values_can_be_read(self.share) and float(self.share) == 1

    def _blended(self, logits: Tensor, counted: Tensor) -> Tensor:
        learnt = logits.float().softmax(-1)
        return torch.lerp(counted.float(), learnt, self.share.float()).log()
