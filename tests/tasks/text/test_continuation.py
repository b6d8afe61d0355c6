from typing import final

import pytest
import torch
from torch import Tensor

from fredholm.models.language.generation import Sampling
from fredholm.models.language.language_model import LanguageModel, LanguageState
from fredholm.tasks.text import Bytes, Piece, continue_text
from tests.refusals import refused


@final
class Reciter(LanguageModel):
    """Generates `line`, then end-of-text, again and again for any prompt."""

    def __init__(self, line: bytes, context: int = 100) -> None:
        super().__init__()
        self.vocab_size, self.context = 257, context
        self.line = torch.tensor([*line, 256])
        self.prompts: list[list[int]] = []

    def forward(self, tokens: Tensor) -> Tensor:
        return self.advance(tokens, self.initial_state(len(tokens)))[0]

    def initial_state(self, batch_size: int) -> LanguageState:
        return ((torch.tensor(-1),),)

    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        if int(state[0][0]) < 0:
            self.prompts.append(tokens[0].tolist())
        place = state[0][0] + 1
        expected = self.line[place % len(self.line)].expand(tokens.shape)
        return 9 * torch.nn.functional.one_hot(expected, 257).float(), ((place,),)

    def logits(self, signal: Tensor) -> Tensor:
        return signal


def recite(
    line: bytes, prompt: str = "?", max_tokens: int = 100, context: int = 100, stop: tuple[str, ...] = ()
) -> list[Piece]:
    pieces = continue_text(
        Reciter(line, context),
        Bytes(),
        prompt,
        max_tokens=max_tokens,
        sampling=Sampling(temperature=0),
        generator=torch.Generator(),
        device=torch.device("cpu"),
        stop=stop,
    )
    return list(pieces)


def test_characters_appear_when_their_bytes_are_complete() -> None:
    pieces = recite("aé𝄞".encode())
    assert [piece.text for piece in pieces] == ["a", "", "é", "", "", "", "𝄞", ""]
    assert [piece.token for piece in pieces] == [*"aé𝄞".encode(), 256]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"a\xffb", "a�b"),
        (b"a\xc3", "a�"),  # end-of-text comes after half a character
        (b"\xc3\xc3\xa9", "�é"),
    ],
)
def test_invalid_utf8_is_replaced(line: bytes, text: str) -> None:
    assert "".join(piece.text for piece in recite(line)) == text


def test_at_the_token_limit_the_remaining_bytes_are_given_out() -> None:
    assert [piece.text for piece in recite("aé".encode(), max_tokens=2)] == ["a", "�"]
    assert len(recite(b"abc", max_tokens=1)) == 1


def test_an_empty_prompt_starts_a_document() -> None:
    model = Reciter(b"x")
    settings = {"sampling": Sampling(), "generator": torch.Generator(), "device": torch.device("cpu")}
    for prompt in ("", "é"):
        list(continue_text(model, Bytes(), prompt, max_tokens=1, **settings))
    assert model.prompts == [[256], [0xC3, 0xA9]]


def test_bad_prompts_are_refused_before_sampling() -> None:
    with refused(ValueError, "the prompt has 5 tokens, more than the model's context of 4"):
        recite(b"x", "12345", context=4)
    assert recite(b"x", "1234", context=4)[0].text == "x"
    with refused(ValueError, "max_tokens is 0; expected at least 1"):
        recite(b"x", max_tokens=0)
    with refused(ValueError, "no UTF-8 at character 0"):
        recite(b"x", "\udcff")


@pytest.mark.parametrize(
    ("stop", "left"),
    [
        (("c",), "ab"),
        (("cd",), "ab"),
        (("cx", "bcd"), "a"),
        (("cda", "ef"), "abcd"),
        (("cdeg",), "abcdef"),
        (("zz",), "abcdef"),
        (("bc", "abc"), ""),
        (("a",), ""),
    ],
)
def test_generation_ends_before_a_stop_text(stop: tuple[str, ...], left: str) -> None:
    assert "".join(piece.text for piece in recite(b"abcdef", stop=stop)) == left


def test_the_possible_start_of_a_stop_text_is_held_back() -> None:
    assert [piece.text for piece in recite(b"abcab", stop=("abd",))] == ["", "", "abc", "", "", "ab"]


@pytest.mark.parametrize(
    ("max_tokens", "stop", "ended"),
    [
        (2, (), "max_tokens"),
        (2, ("z",), "max_tokens"),
        (2, ("b",), "stop"),  # completed by the last token allowed
        (9, ("b",), "stop"),
        (4, (), "end_of_text"),
        (9, ("cz",), "end_of_text"),
    ],
)
def test_the_last_piece_has_the_reason_for_the_end(max_tokens: int, stop: tuple[str, ...], ended: str) -> None:
    *before, last = recite(b"abc", max_tokens=max_tokens, stop=stop)
    assert last.ended_by == ended
    assert [piece.ended_by for piece in before] == [None] * len(before)


def test_an_empty_stop_text_is_refused() -> None:
    with refused(ValueError, "stop has an empty text"):
        recite(b"abc", stop=("",))
