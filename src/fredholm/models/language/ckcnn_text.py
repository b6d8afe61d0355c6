"""CKCNN as a language model."""

import dataclasses
import math
from typing import final

from torch import Tensor, nn

from fredholm._settings import check_config, check_count, check_rate
from fredholm.domains import Sequence
from fredholm.encoders.text import Text
from fredholm.models.language.language_model import LanguageModel, LanguageState
from fredholm.models.series.ckcnn import ContinuousStack, StackState


def _stack() -> ContinuousStack.Config:
    return ContinuousStack.Config(embed_dim=128, omega_0=25.78, dropout=0.0, input_dropout=0.1, pool="none")


@final
class CKCNNText(LanguageModel):
    """Token vectors, a causal stack of continuous convolutions, a linear head (CKConv, figure 8 and table 8).

    Tokens are samples at spacing 1; the kernels are as long as the context. The signal has no position embeddings.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence.
        config: the stack.

    Raises:
        ValueError: sizes below 1, a stack that looks ahead or pools, or settings that `ContinuousStack` refuses.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(LanguageModel.Config):
        """The stack and its embedding; the defaults are the paper's network for characters of Penn Treebank."""

        stack: ContinuousStack.Config = dataclasses.field(default_factory=_stack)
        embedding_dropout: float = 0.1
        """Rate at which the whole vector of a token is dropped, at all its occurrences in the batch."""

        def __post_init__(self) -> None:
            check_rate("models.CKCNNText", "embedding_dropout", self.embedding_dropout)
            check_config("models.CKCNNText", "stack", self.stack, ContinuousStack.Config)
            if self.stack.pool != "none" or not self.stack.is_causal:
                raise ValueError(
                    "models.CKCNNText: every token is predicted from those before it; set stack.pool to 'none' and "
                    "stack.is_causal"
                )

        def build(self, vocab_size: int, context: int) -> "CKCNNText":
            """Builds the model; see `CKCNNText`."""
            return CKCNNText(vocab_size, context, self)

    def __init__(self, vocab_size: int, context: int, config: Config) -> None:
        super().__init__()
        check_count("models.CKCNNText", "context", context)
        self.vocab_size, self.context, self.config = vocab_size, context, config
        dim = config.stack.embed_dim
        self.tokens = Text(vocab_size, dim, std=1.0)
        self.stack = ContinuousStack(dim, config.stack, extent=float(max(context - 1, 1)), spacing=1.0)
        self.head = nn.Linear(dim, vocab_size)
        self.token_rows = ("tokens.weight", "head.weight", "head.bias")

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(B, T, V)`; see `LanguageModel.forward`."""
        self.check_tokens(tokens)
        return self.head(self.stack(self._embed(tokens), Sequence(tokens.shape[1], spacing=1.0, device=tokens.device)))

    def initial_state(self, batch_size: int) -> LanguageState:
        """Past signals, with their times, of both convolutions of each block."""
        return _flat(self.stack.initial_state(batch_size))

    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """Appends the tokens' signals to the state; see `LanguageModel.read`."""
        num_read = _num_read(state)
        self.check_tokens(tokens, num_read)
        domain = Sequence(tokens.shape[1], spacing=1.0, start=float(num_read), device=tokens.device)
        u, reached = self.stack.scan(self._embed(tokens), domain, _paired(state))
        return u, _flat(reached)

    def logits(self, signal: Tensor) -> Tensor:
        """See `LanguageModel.logits`: takes the signal after the stack."""
        return self.head(signal)

    def _embed(self, tokens: Tensor) -> Tensor:
        vectors = self.tokens(tokens)[0]
        rate = self.config.embedding_dropout if self.training else 0.0
        if rate == 0:
            return vectors
        kept = nn.functional.dropout(vectors.new_ones(self.vocab_size), rate)
        return vectors * kept[tokens][..., None]


def _flat(state: StackState) -> LanguageState:
    return tuple((*first, *second) for first, second in state)


def _paired(state: LanguageState) -> StackState:
    return tuple(((signal, times), (inner, inner_times)) for signal, times, inner, inner_times in state)


def _num_read(state: LanguageState) -> int:
    """Number of tokens read so far: the time of the last one plus 1."""
    times = state[0][1]
    last = float(times[0, -1]) if times.numel() else -math.inf
    return 0 if last == -math.inf else round(last) + 1
