"""Sampling of continuations from a language model, token by token."""

import dataclasses
import math
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from fredholm._settings import check_number, check_whole, refuse_idle
from fredholm.models.language.language_model import LanguageModel


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling of a token from logits: p = softmax(logits / temperature), truncated and renormalised.

    Args:
        temperature: below 1 prefers likely tokens; 0 takes the likeliest (the first of equals), and the next two
            settings are then refused.
        top_k: number of likeliest tokens to sample from; None: all.
        top_p: sample only from the likeliest tokens whose probabilities first reach this sum, in (0, 1]; after `top_k`.

    Raises:
        ValueError: a value out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            check_number("Sampling", name, getattr(self, name))
        if self.top_k is not None:
            check_whole("Sampling", "top_k", self.top_k)
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}; expected a finite number of at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; expected at least 1")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; expected a number above 0 and at most 1")
        if self.temperature == 0:
            likeliest = "temperature=0, which takes the likeliest token"
            refuse_idle("", Sampling, likeliest, "raise the temperature", top_k=self.top_k, top_p=self.top_p)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Returns the distribution `(..., V)`, float64, of sampled tokens; one-hot at temperature 0."""
        logits = logits.double()
        if self.temperature == 0:
            return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
        # the largest logit is shifted to 0, so that a tiny temperature overflows to -inf only
        scaled = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        ordered, order = scaled.softmax(-1).sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            ordered[..., self.top_k :] = 0
            ordered = ordered / ordered.sum(-1, keepdim=True)
        if self.top_p < 1:
            before = ordered.cumsum(-1) - ordered
            ordered = torch.where(before < self.top_p, ordered, 0.0)
            ordered = ordered / ordered.sum(-1, keepdim=True)
        return torch.zeros_like(ordered).scatter(-1, order, ordered)

    def draw(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Samples one token for each row of `(B, V)`: int64 `(B,)`, on the device of the logits.

        Sampling is on the CPU, so that a seed gives the same tokens on every device.

        Raises:
            ValueError: logits that are not finite.
        """
        if not bool(logits.isfinite().all()):
            raise ValueError("the model's logits are not finite, so that no token can be drawn; was it trained?")
        if self.temperature == 0:
            return logits.argmax(-1)
        probabilities = self.probabilities(logits.detach().cpu())
        return torch.multinomial(probabilities, 1, generator=generator)[:, 0].to(logits.device)


def generate(
    model: LanguageModel,
    prompt: Tensor,
    sampling: Sampling | None = None,
    *,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
    cache: bool = True,
) -> Iterator[Tensor]:
    """Continues a prompt, or a batch of prompts of different lengths, without end.

    The model reads the prompt at once and then one token at a time through its state. Once its context is full, it
    restarts from the latest half of a context (rounded up).

    Args:
        model: a model in evaluation mode; otherwise its dropout is active.
        prompt: int64 `(B, T)` on the model's device, T from 1 to the model's context.
        sampling: default: the model's own distribution.
        lengths: int64 `(B,)`, length of each prompt, 1 to T, the rest is padding that is never read; None: T each.
        generator: random generator on the CPU; default: torch's global one.
        cache: False recomputes the whole window for every token, which is slower and gives the same tokens.

    Yields:
        The next token of each sequence, int64 `(B,)`, from the end of the shortest prompt on; within a longer prompt,
        the token of the prompt.

    Raises:
        TypeError, ValueError: a prompt of another type or length; an argument that is no model or no `Sampling`.
    """
    if not isinstance(model, LanguageModel):
        raise TypeError(f"generate: model must be a models.LanguageModel; got {type(model).__name__}")
    if sampling is not None and not isinstance(sampling, Sampling):
        raise TypeError(
            f"generate: sampling must be a models.Sampling, such as Sampling(temperature=0.8); got {sampling!r}"
        )
    model.check_tokens(prompt)
    if prompt.shape[1] == 0:
        raise ValueError("generate: the prompt is empty; pass at least one token")
    if lengths is None:
        lengths = torch.full((len(prompt),), prompt.shape[1])
    if not isinstance(lengths, Tensor) or lengths.shape != prompt.shape[:1] or lengths.dtype != torch.int64:
        got = f"{tuple(lengths.shape)} {lengths.dtype}" if isinstance(lengths, Tensor) else repr(lengths)
        raise ValueError(
            f"generate: lengths are {got}; expected an int64 tensor, one for each of {len(prompt)} prompts"
        )
    if len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= prompt.shape[1]:
        raise ValueError(f"generate: lengths are {lengths.tolist()}; expected 1 to {prompt.shape[1]}, the tokens given")
    return _continue(model, prompt, lengths.cpu(), sampling or Sampling(), generator, cache)


@torch.no_grad()
def _continue(
    model: LanguageModel,
    prompt: Tensor,
    lengths: Tensor,
    sampling: Sampling,
    generator: torch.Generator | None,
    cache: bool,
) -> Iterator[Tensor]:
    state = model.initial_state(len(prompt))
    place = int(lengths.min()) if len(lengths) else prompt.shape[1]
    window = unread = prompt[:, :place]
    while True:
        if cache:
            signal, state = model.read(unread, state)
            logits = model.logits(signal[:, -1:])  # only the last position's logits are needed
        else:
            logits = model(window)
        token = sampling.draw(logits[:, -1], generator)
        if place < prompt.shape[1]:
            token = torch.where((place < lengths).to(token.device), prompt[:, place], token)
        place += 1
        yield token
        if window.shape[1] == model.context:
            # a longer window would make the model restart sooner
            window = torch.cat([window, token[:, None]], dim=1)[:, -((model.context + 1) // 2) :]
            state, unread = model.initial_state(len(window)), window
        else:
            unread = token[:, None]
            window = torch.cat([window, unread], dim=1)
