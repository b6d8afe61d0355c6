import pytest

from fredholm.tasks.files.channel_names import chosen_channels
from tests.refusals import refused


@pytest.mark.parametrize(
    ("own", "known", "found"),
    [
        (None, None, (("channel_0", "channel_1"), None)),
        (("b", "a"), None, (("b", "a"), None)),
        (None, ("a", "b"), (("a", "b"), None)),
        (("b", "a"), ("a", "b"), (("a", "b"), [1, 0])),
        (("b", "a"), ("a",), (("a",), [1])),
        (("b", "a"), ("channel_0", "channel_1"), (("channel_0", "channel_1"), None)),  # counted, not named
        (("channel_1", "channel_0"), ("channel_0", "channel_1"), (("channel_0", "channel_1"), [1, 0])),
    ],
)
def test_channels_are_matched_by_name_where_both_have_names(
    own: tuple[str, ...] | None, known: tuple[str, ...] | None, found: tuple[tuple[str, ...], list[int] | None]
) -> None:
    assert chosen_channels(2, own=own, known=known) == found


def test_names_that_do_not_fit_are_refused() -> None:
    with refused(ValueError, "has no channel 'c'; its channels are a, b"):
        chosen_channels(2, own=("a", "b"), known=("a", "c"))
    with refused(ValueError, "has 2 channels; expected 1: a"):
        chosen_channels(2, own=("a",), known=None)
    with refused(ValueError, "has 2 features; expected 0: none"):
        chosen_channels(2, own=None, known=(), what="feature")
    with refused(ValueError, "of the channels two are called 'a'"):
        chosen_channels(2, own=("a", "a"), known=None)
