"""Drawn pictures with texts: true or false sentences about them, and questions with an answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer

from benchmarks.first_runs.first_run import FirstRun, Peer, learnable
from fredholm.tasks.splits.splits import HeldOut

SIDE, NUM_PICTURES, TEXTS = 32, 400, 4
COLOURS = {"red": (220, 40, 40), "green": (40, 190, 60), "blue": (50, 70, 230), "yellow": (230, 210, 40)}
SHAPES = ("disc", "square", "triangle")


def _picture(draw: np.random.Generator) -> tuple[Image.Image, list[tuple[str, str, float]]]:
    """Three things on a grey background, and the colour, shape and horizontal position of each."""
    ground = int(draw.integers(60, 200))
    image, things = Image.new("RGB", (SIDE, SIDE), (ground,) * 3), []
    pen = ImageDraw.Draw(image)
    for column in draw.permutation(3).tolist():
        x, y, radius = 5.5 + 10.5 * column + draw.uniform(-1, 1), draw.uniform(6, SIDE - 6), draw.uniform(3, 4.5)
        colour, shape = str(draw.choice(list(COLOURS))), str(draw.choice(SHAPES))
        corners = [x - radius, y - radius, x + radius, y + radius]
        if shape == "disc":
            pen.ellipse(corners, fill=COLOURS[colour])
        elif shape == "square":
            pen.rectangle(corners, fill=COLOURS[colour])
        else:
            pen.polygon([(x, corners[1]), (corners[0], corners[3]), (corners[2], corners[3])], fill=COLOURS[colour])
        things.append((colour, shape, x))
    noisy = np.asarray(image) + draw.normal(0, 8, (SIDE, SIDE, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)), things


def _sentence(draw: np.random.Generator, things: list[tuple[str, str, float]]) -> tuple[str, bool]:
    """A sentence about one thing, or about one thing left of another; true and false with equal probability."""
    target = bool(draw.integers(2))
    for _ in range(1000):
        one, two = draw.choice(list(COLOURS), 2)
        if draw.integers(2):
            shape = draw.choice(SHAPES)
            text, is_true = f"there is a {one} {shape}", any(thing[:2] == (one, shape) for thing in things)
        else:
            text = f"something {one} is left of something {two}"
            lefts = [x for colour, _, x in things if colour == one]
            rights = [x for colour, _, x in things if colour == two]
            is_true = bool(lefts and rights and min(lefts) < max(rights))
        if is_true == target:
            return text, target
    raise AssertionError("neither true nor false sentences were found")


def _question(draw: np.random.Generator, things: list[tuple[str, str, float]]) -> tuple[str, str]:
    """A question for the colour or shape of the leftmost or rightmost thing, or for a number of things."""
    kind, is_left = draw.integers(3), bool(draw.integers(2))
    colour, shape, _ = sorted(things, key=lambda thing: thing[2])[0 if is_left else -1]
    side = "left" if is_left else "right"
    if kind == 0:
        return f"what colour is the thing on the {side}", colour
    if kind == 1:
        return f"what shape is the thing on the {side}", shape
    colour = str(draw.choice(list(COLOURS)))
    return f"how many things are {colour}", str(sum(thing[0] == colour for thing in things))


def _written(folder: Path, seed: int, name: str, ask: Any) -> Path:
    draw, rows = np.random.default_rng(seed), []
    (folder / "pictures").mkdir()
    for i in range(NUM_PICTURES):
        image, things = _picture(draw)
        image.save(folder / "pictures" / f"{i:03}.png")
        for text, label in (ask(draw, things) for _ in range(TEXTS)):
            rows.append(json.dumps({"images": f"pictures/{i:03}.png", "text": text, "label": label}))
    (folder / name).write_text("\n".join(rows) + "\n")
    return folder / name


def sentences(folder: Path, seed: int) -> Path:
    """Pictures with true or false sentences about them."""
    return _written(folder, seed, "sentences.jsonl", _sentence)


def questions(folder: Path, seed: int) -> Path:
    """Pictures with questions, and their answers."""
    return _written(folder, seed, "questions.jsonl", _question)


def joined(model: Any) -> Peer:
    """The accuracy of a scikit-learn model on the pixels of an image at 8 x 8 and the words of the text."""

    def peer(task: Any, split: HeldOut) -> float:
        parts, held_out = learnable(task, split), task.held_out(split)
        words = CountVectorizer(binary=True).fit([example.text for part in parts for example in part.examples])

        def features(part: Any) -> np.ndarray:
            images = part.images(np.arange(len(part)))[:, 0].float().unflatten(-1, (8, -1)).unflatten(-3, (8, -1))
            seen = images.mean((-1, -3)).flatten(1).numpy()
            return np.concatenate(
                [seen, words.transform([example.text for example in part.examples]).toarray()], axis=1
            )

        labels = [part.labels.numpy() for part in (*parts, held_out)]
        model.fit(np.concatenate([features(part) for part in parts]), np.concatenate(labels[:-1]))
        return float((model.predict(features(held_out)) == labels[-1]).mean())

    return peer


PEERS = {
    "words and pixels, gradient boosting": joined(HistGradientBoostingClassifier(random_state=0)),
    "the commonest": joined(DummyClassifier()),
}

FIRST_RUNS = (
    FirstRun(
        name="true_sentences",
        task="image-text",
        data="three things, and whether a sentence is true of them",
        make=sentences,
        peers=PEERS,
    ),
    FirstRun(
        name="picture_questions",
        task="image-text",
        data="three things, and the answer to a question",
        make=questions,
        peers=PEERS,
    ),
)
