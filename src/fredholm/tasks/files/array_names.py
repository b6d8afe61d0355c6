"""Names of arrays in files: synonyms, and hints where an array has a name that only other programs use."""

import difflib
import re
from collections.abc import Container, Iterable, Mapping, Sequence

from fredholm.tasks.splits.split_files import SPLIT_WORDS

ALIKE = (
    ("x", "data", "images", "image", "points", "values", "features", "samples", "inputs", "input", "series", "signals"),
    ("x", "node_feat", "node_features", "node_attr", "features"),
    ("y", "label", "labels", "target", "targets", "graph_labels"),
    ("target_values", "y", "u", "output", "outputs", "target", "targets", "solution", "solutions"),
    ("values", "a", "u"),
    ("masks", "mask", "y", "labels", "label", "segmentation", "segmentations", "annotations"),
    ("text", "texts", "caption", "captions", "sentences"),
    ("pos", "x", "coords", "coordinates", "positions", "points", "xyz", "grid"),
    ("edge_index", "edges", "edge_list", "edgelist", "adjacency"),
    ("edge_features", "edge_attr", "edge_attributes", "edge_feat"),
    ("edge_weights", "edge_weight"),
    ("weights", "weight", "sample_weight", "node_weight"),
    ("graph", "batch", "graph_id", "graph_ids"),
    ("classes", "class_names", "label_names", "target_names"),
    ("channels", "channel_names", "feature_names"),
    ("groups", "group", "subject", "subjects", "patient", "patients"),
    ("times", "time", "timestamps", "t"),
    ("example_times", "times", "time", "dates"),
    ("split", "splits", "fold", "set"),
)
"""Groups of synonyms; the names that readers know come first."""
_OF_SPLIT = re.compile(rf"(?:({'|'.join(SPLIT_WORDS)})_(.+)|(.+)_({'|'.join(SPLIT_WORDS)}))", re.IGNORECASE)
_MEMBERS = ("mask", "idx", "index", "indices", "ids")
_LONGEST = 60


def short(name: str) -> str:
    """Shortens the name of an array for messages."""
    return repr(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}...")


def names_here(unread: Iterable[str], known: Sequence[str], there: Container[str], form: str = "") -> dict[str, str]:
    """Guesses the names that unread arrays should have.

    Args:
        unread: names of the arrays that nothing reads.
        known: names that are read, the most likely first.
        there: names that are in the file already, and so are not guessed for other arrays.
        form: form of the names of a split's arrays, such as {name}_{word}; "": splits have no arrays of their own.
    """
    found: dict[str, str] = {}
    for name in unread:
        parted = _OF_SPLIT.fullmatch(name)
        word, base = (None, name) if parted is None else (parted[1] or parted[4], parted[2] or parted[3])
        if word is not None and base.lower() in _MEMBERS:
            here = "split" if "split" in known else None
        else:
            here = _here(base.lower(), known, there if word is None else ())
            if here is not None and word is not None:
                here = form.format(name=here, word=word.lower()) if form else f"{here}, with a split"
        if here is not None and here != name and here not in there:
            found[name] = here
    return found


def _here(name: str, known: Sequence[str], there: Container[str]) -> str | None:
    for group in ALIKE:
        if name in group:
            for each in known:
                if each in group and each not in there:
                    return each
    close = difflib.get_close_matches(name, [each for each in known if each not in there], n=1, cutoff=0.8)
    return close[0] if close else None


def hint(unread: Sequence[str], known: Sequence[str], there: Container[str], form: str = "") -> str:
    """Formats the result of `names_here` for a message: "here X is x, Y is y", or nothing."""
    found = names_here(unread, known, there, form)
    members = [name for name, here in found.items() if here == "split"]
    known_names = [f"{name} is {here}" for name, here in found.items() if here != "split"]
    parts = [f"here {', '.join(known_names)}"] if known_names else []
    if members:
        parts.append(f"a split is an array split, one of train, valid and test a row, in place of {', '.join(members)}")
    return "; ".join(parts)


def no_array(name: str, arrays: Mapping[str, object], known: Sequence[str], form: str = "") -> ValueError:
    """Returns the error about a missing array, with a hint where it may exist under another name.

    Args:
        name: name of the array, or of several separated by `or`, each in quotation marks.
        arrays: arrays of the file, by name.
        known, form: see `names_here`.
    """
    named = name if name.startswith("'") else repr(name)
    message = hint([each for each in arrays if each not in known], known, arrays, form)
    there = f"the arrays are {', '.join(arrays) or 'none'}"
    return ValueError(f"has no array {named}; {there}{f'; {message}' if message else ''}")


def refuse_twice(arrays: Container[str], *alike: Sequence[str]) -> None:
    """Raises a ValueError where a file has two arrays whose names are synonyms, since one of them would not be read."""
    for names in alike:
        there = [name for name in names if name in arrays]
        if len(there) > 1:
            raise ValueError(f"has {there[0]} and {there[1]}, which are two names of one array; keep one")
