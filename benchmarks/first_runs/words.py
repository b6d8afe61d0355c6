"""Lines of code whose names have roles, which follow from their surroundings."""

import ast
import io
import itertools
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from benchmarks.first_runs.first_run import FirstRun, accuracy

FILES, LINES, LONGEST = 60, 1500, 60
_NO_WORDS = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_roles(folder: Path, seed: int) -> Path:
    """Lines of Python's standard library, one token a line, with the role of each name and `O` for other tokens.

    Roles are those of the syntax tree: a name may be called, assigned or read, an attribute may be called, and so on.
    Comments and strings are kept as their first letter, and lines that occur twice once.
    """
    draw, root = np.random.default_rng(seed), Path(sysconfig.get_path("stdlib"))
    files = draw.permutation([str(file) for file in sorted(root.glob("*.py"))])[:FILES].tolist()
    lines = dict.fromkeys(itertools.chain.from_iterable(map(_lines, sorted(files))))
    some = draw.permutation(len(lines))[:LINES]
    every = list(lines)
    blocks = ["".join(f"{word}\t{role}\n" for word, role in every[i]) for i in some.tolist()]
    path = folder / "code.conll"
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


def _lines(file: str) -> Iterator[tuple[tuple[str, str], ...]]:
    source = Path(file).read_text(encoding="utf-8", errors="ignore")
    roles, line = dict(_roles(ast.parse(source))), list[tuple[str, str]]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_WORDS:
            text = token.string[:1] if token.type in (tokenize.COMMENT, tokenize.STRING) else token.string
            line.append((text, roles.get((*token.start, token.string), "O")))
        elif token.type == tokenize.NEWLINE:
            if len(line) <= LONGEST and any(role != "O" for _, role in line):
                yield tuple(line)
            line = []


def _roles(tree: ast.AST) -> Iterator[tuple[tuple[int, int, str], str]]:
    """Place and text of names, and their roles."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            role = "called" if id(node) in called else "read" if isinstance(node.ctx, ast.Load) else "assigned"
            yield (node.lineno, node.col_offset, node.id), role
        elif isinstance(node, ast.Attribute) and node.end_lineno is not None and node.end_col_offset is not None:
            start = node.end_col_offset - len(node.attr)
            yield (node.end_lineno, start, node.attr), "method" if id(node) in called else "attribute"
        elif isinstance(node, ast.arg):
            yield (node.lineno, node.col_offset, node.arg), "parameter"
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield (node.lineno, node.col_offset, node.arg), "keyword"
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            yield (node.lineno, node.col_offset + len("class " if kind == "class" else "def "), node.name), kind
        elif isinstance(node, ast.alias):
            yield (node.lineno, node.col_offset, node.name), "imported"


def of_word(words: tuple[str, ...], i: int) -> dict[str, Any]:
    """The word, its lower case, endings and kind."""
    word = words[i]
    return {
        "word": word,
        "lower": word.lower(),
        "first": word[:3],
        "last": word[-3:],
        "is_name": word.isidentifier(),
        "is_title": word.istitle(),
    }


def of_neighbours(words: tuple[str, ...], i: int) -> dict[str, Any]:
    """Those of the word and of up to two words on each side."""
    places = [(k, i + k) for k in range(-2, 3) if 0 <= i + k < len(words)]
    return {f"{name} {k}": value for k, place in places for name, value in of_word(words, place).items()}


def features(of: Callable[[tuple[str, ...], int], dict[str, Any]]) -> Callable[[Any], tuple[list[Any], np.ndarray]]:
    """The features of each word of a set, and its label."""

    def read(part: Any) -> tuple[list[Any], np.ndarray]:
        rows = [of(tuple(each.words), i) for each in part.sentences for i in range(len(each.words))]
        return rows, np.concatenate([targets.numpy() for targets in part.targets])

    return read


def _logistic() -> Any:
    return make_pipeline(DictVectorizer(), LogisticRegression(max_iter=1000))


FIRST_RUNS = (
    FirstRun(
        name="code_roles",
        task="words",
        data="lines of Python's standard library, the role of each name",
        make=code_roles,
        peers={
            "logistic regression of each word": accuracy(_logistic(), features(of_word)),
            "and of two words on each side": accuracy(_logistic(), features(of_neighbours)),
        },
    ),
)
