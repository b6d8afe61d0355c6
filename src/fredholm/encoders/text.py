"""Text as a signal on a sequence of tokens."""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive, refuse_idle
from fredholm.domains import Domain, Sequence
from fredholm.domains.checks import values_are_at_hand
from fredholm.domains.domain import check_tensor
from fredholm.encoders.encoder import Encoder
from fredholm.kernels.fourier_features import fourier_features, sample_frequencies


@final
class Text(Encoder):
    """Tokens as a signal: u_k = E[t_k] + W γ(k / context) + S[s_k] (ITNet, section 3 and H.3.1).

    E is a learned vector for every token. γ are Fourier features of the position, whose unit is the context, however
    long the text is, so that neither padding nor later tokens move a point; the paper divides by the length. s_k
    is the number of separators before k, 0 or 1: the first or the second sentence of a pair, which the paper does not
    specify. Without a context the signal is E[t_k] on `Sequence(N)`: kernels read positions from the domain, or a model
    adds its own.

    Args:
        vocab_size: number of tokens V; tokens are 0 to V - 1.
        embed_dim: channels of the signal.
        std: deviation of the normal start of E and S, and of each entry of Wγ.
        context: longest sequence, and the unit of length.
        num_frequencies: number L of Fourier frequencies of γ; 0: no position enters the signal. Needs a context.
        sigma: their standard deviation, in cycles per context; refused without frequencies.
        pad: the padding token, whose points do not exist; None: all exist.
        separator: the token that ends a sentence; None: no segments.
        has_class_token: whether every sequence starts with a class token.

    Raises:
        ValueError: sizes below 1, a deviation that is not above 0, tokens out of range, settings without effect.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        *,
        std: float = 0.02,
        context: int | None = None,
        num_frequencies: int = 0,
        sigma: float = 10.0,
        pad: int | None = None,
        separator: int | None = None,
        has_class_token: bool = False,
    ) -> None:
        super().__init__()
        name = "encoders.Text"
        for what, size in (("vocab_size", vocab_size), ("embed_dim", embed_dim)):
            check_count(name, what, size)
        check_positive(name, "std", std)
        check_count(name, "num_frequencies", num_frequencies, least=0)
        if context is None:
            refuse_idle(
                name, Text, "no context, which is the unit of length", "give one", num_frequencies=num_frequencies
            )
        else:
            check_count(name, "context", context)
        if num_frequencies == 0:
            refuse_idle(name, Text, "num_frequencies=0", "give num_frequencies", sigma=sigma)
        check_positive(name, "sigma", sigma)
        for what, token in (("pad", pad), ("separator", separator)):
            if token is not None and not 0 <= token < vocab_size:
                raise ValueError(f"{name}: {what} must be a token, 0 to {vocab_size - 1}; got {token}")
        self.embed_dim, self.pos_dim = embed_dim, 1
        self.context, self.pad, self.separator, self.has_class_token = context, pad, separator, has_class_token
        self.weight = nn.Parameter(torch.empty(vocab_size, embed_dim).normal_(std=std))
        self.position_weight = self.segment_weight = None
        self.register_buffer("frequencies", sample_frequencies(num_frequencies, 1, sigma) if num_frequencies else None)
        self.frequencies: Tensor | None
        if num_frequencies:
            # the squared norm of a position's 2L features is L
            start = torch.empty(embed_dim, 2 * num_frequencies).normal_(std=std * num_frequencies**-0.5)
            self.position_weight = nn.Parameter(start)
        if separator is not None:
            self.segment_weight = nn.Parameter(torch.empty(2, embed_dim).normal_(std=std))

    def forward(self, inputs: Tensor, first: int = 0) -> tuple[Tensor, Domain]:
        """Tokens `(B, N)`, int64, to the signal `(B, N, embed_dim)` and its sequence of N points.

        Args:
            inputs: the tokens; N is at most the context.
            first: position of the first token, where the tokens continue a sequence; only with a context.

        Raises:
            ValueError: on another shape or type, more tokens than the context, or on a CPU a token out of range.
        """
        check_tensor("encoders.Text", "tokens", inputs)
        if inputs.ndim != 2 or inputs.dtype != torch.int64:
            raise ValueError(
                f"encoders.Text: expected int64 tokens of shape (batch, length); got {tuple(inputs.shape)}, "
                f"{inputs.dtype}"
            )
        check_vocabulary("encoders.Text", inputs, self.weight.shape[0])
        domain = self._domain(inputs, first)
        u = nn.functional.embedding(inputs, self.weight)
        if self.position_weight is not None and self.frequencies is not None:
            position = fourier_features(domain.pos, self.frequencies).to(u.dtype)
            u = u + nn.functional.linear(position, self.position_weight)
        if self.segment_weight is not None:
            ends = inputs == self.separator
            u = u + nn.functional.embedding((ends.cumsum(1) - ends.long()).clamp(max=1), self.segment_weight)
        return u, domain

    def _domain(self, inputs: Tensor, first: int) -> Sequence:
        length = inputs.shape[1]
        mask = None if self.pad is None else inputs != self.pad
        if self.context is None:
            if first:
                raise ValueError(
                    f"encoders.Text: first={first} needs a context, the unit of length; give the encoder one"
                )
            return Sequence(length, mask=mask, device=inputs.device)
        if first + length > self.context:
            after = f" after {first} others" if first else ""
            raise ValueError(f"encoders.Text: {length} tokens{after} exceed the context of {self.context}; pass fewer")
        spacing = 1 / self.context
        return Sequence(length, spacing=spacing, start=first * spacing, mask=mask, device=inputs.device)


def check_vocabulary(name: str, tokens: Tensor, vocab_size: int) -> None:
    """Raises a ValueError that begins with `name` on a token out of range; checked on the CPU only."""
    if not tokens.numel() or not values_are_at_hand(tokens):
        return
    lowest, highest = (int(end) for end in tokens.aminmax())
    if lowest < 0 or highest >= vocab_size:
        outside = lowest if lowest < 0 else highest
        raise ValueError(f"{name}: there are tokens 0 to {vocab_size - 1}; got {outside}")
