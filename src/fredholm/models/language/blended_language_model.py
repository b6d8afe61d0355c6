"""Blend of a neural language model and an n-gram model."""

from typing import final

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
from fredholm.models.blended import Blended
from fredholm.models.language.language_model import LanguageModel, LanguageState
from fredholm.models.language.n_gram_model import NGramModel


@final
class BlendedLanguageModel(LanguageModel, Blended[LanguageModel, NGramModel]):
    """Blend of a neural language model and an n-gram model; see `Blended`.

    Probabilities are blended, s p(w | t) + (1 - s) q(w | t). A network generalises over similar tokens; counts are
    better at verbatim repetitions in a short text.

    Args:
        network: p.
        fitted: q, with the same tokens and context.

    Raises:
        ValueError: the two have different tokens or contexts.
    """

    def __init__(self, network: LanguageModel, fitted: NGramModel) -> None:
        super().__init__(network, fitted)
        for what in ("vocab_size", "context"):
            own, other = getattr(network, what), getattr(fitted, what)
            if own != other:
                raise ValueError(
                    f"models.BlendedLanguageModel: the network's {what} is {own} and that of the n-grams {other}; "
                    "make them agree"
                )
        self.vocab_size, self.context = network.vocab_size, network.context
        self.token_rows = tuple(f"network.{name}" for name in network.token_rows)
        self.place_rows = tuple(f"network.{name}" for name in network.place_rows)

    def forward(self, tokens: Tensor, past: Tensor | None = None) -> Tensor:
        """Computes logits `(B, T, V)`, in training the network's, else log probabilities; see `LanguageModel.forward`.

        Args:
            tokens: int64 `(B, T)`, T up to `context`.
            past: int64 `(B, P)`, earlier tokens that the n-grams recall; see `NGramModel.forward`.
        """
        if past is None or self.training:
            logits = self._answer(tokens)
        elif (share := float(self.share)) == 1.0:
            logits = self.network(tokens)
        else:
            fitted = self.fitted(tokens, past)
            logits = self.mixed(self.network(tokens), fitted, share) if share else fitted
        return logits if self.training else logits.float().log_softmax(-1)

    def without_recall(self) -> "BlendedLanguageModel":
        """Returns the model with the same weights and counts, but without recall."""
        found = BlendedLanguageModel(self.network, self.fitted.without_recall())
        found.share = self.share
        return found.train(self.training)

    def initial_state(self, batch_size: int) -> LanguageState:
        """The network's state, followed by that of the n-grams."""
        return *self.network.initial_state(batch_size), *self.fitted.initial_state(batch_size)

    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """See `LanguageModel.read`; the signal is the network's, followed by the probabilities of the n-grams."""
        *of_network, of_fitted = state
        learnt, reached = self.network.read(tokens, tuple(of_network))
        fitted, seen = self.fitted.read(tokens, (of_fitted,))
        return torch.cat([learnt, fitted], -1), (*reached, *seen)

    def logits(self, signal: Tensor) -> Tensor:
        """See `LanguageModel.logits`."""
        of_network = next(self.network.parameters()).dtype  # narrower than that of the n-grams where it has 16 bits
        learnt = self.network.logits(signal[..., : -self.vocab_size].to(of_network))
        if self.training:
            return learnt
        share = float(self.share) if values_can_be_read(self.share) else self.share
        return self.mixed(learnt, signal[..., -self.vocab_size :].log(), share).float().log_softmax(-1)

    def mixed(self, learnt: Tensor, fitted: Tensor, share: float | Tensor) -> Tensor:
        """Blends the logits of both: logits of the mixture of their probabilities."""
        if isinstance(share, float) and share in (0.0, 1.0):
            return learnt if share else fitted
        return mixed_logarithms(learnt.float().log_softmax(-1), fitted.float(), share)


def mixed_logarithms(learnt: Tensor, fitted: Tensor, share: float | Tensor) -> Tensor:
    """Returns log(s p + (1 - s) q) from log p and log q; for s of 0 or 1 one of them, even if the other is NaN."""
    if isinstance(share, float) and share in (0.0, 1.0):
        return learnt if share else fitted
    return torch.lerp(fitted.exp(), learnt.exp(), share).log()
