"""The section on a language model: loss by position in the context, and continuations."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from fredholm.models.language.generation import Sampling
from fredholm.tasks.text import IGNORED
from fredholm.tasks.text.language_modelling import LanguageModelling
from fredholm.tasks.views import ShownExample, TextPart, TextView
from fredholm.training.device import move

from .blocks import Block, Card, Gallery, Plot, Section, Table
from .charts import away_from_zero, axis, chart, hint
from .drawing import drawn
from .examination import Examination

MOST_WINDOWS = 64
"""Most windows that the loss by position is averaged over."""
LENGTH = 200
"""Most tokens of a continuation."""
PROMPTS = 2


@torch.no_grad()
def text_section(task: LanguageModelling, model: nn.Module, found: Examination, device: torch.device) -> Section:
    """The section of the loss by position in a window and of continuations of some windows."""
    indices = found.indices[:MOST_WINDOWS]
    batch = move(task.held_out_batch(found.split, indices), device)
    logits = task.logits(model, batch).float()
    costs = F.cross_entropy(logits.mT, batch["targets"], reduction="none", ignore_index=IGNORED).double().cpu()
    counted = (batch["targets"] != IGNORED).cpu()
    blocks: list[Block] = [_by_position(costs.sum(0), counted.sum(0))]
    cards = []
    for row in range(min(PROMPTS, len(indices))):
        given = batch["inputs"][row, : max(1, task.config.context // 4)].tolist()
        prompt = task.tokenizer.decode(token for token in given if token != IGNORED).decode(errors="ignore")[:80]
        pieces = task.generate(
            model,
            prompt,
            max_tokens=LENGTH,
            sampling=Sampling(temperature=0.8),
            generator=torch.Generator(device).manual_seed(row),
            device=device,
        )
        more = "".join(piece.text for piece in pieces)
        view = TextView(parts=(TextPart(prompt), TextPart(" | "), TextPart(more)))
        drawing = drawn(ShownExample(name=f"continuation {row}", views=(view,)))
        cards.append(Card(title=f"window {int(indices[row])}", drawings=drawing, lines=()))
    note = f"Before the bar the beginning of a held-out window, after it at most {LENGTH} tokens, temperature 0.8."
    blocks.append(Gallery(title="Continuations", cards=tuple(cards), note=note))
    return Section(title="Text", blocks=tuple(blocks))


def _by_position(costs: torch.Tensor, counts: torch.Tensor) -> Plot:
    rows = [
        {"position": n + 1, "bits": cost / count / math.log(2), "tokens": count}
        for n, (cost, count) in enumerate(zip(costs.tolist(), counts.tolist(), strict=True))
        if count
    ]
    line = {
        "mark": {"type": "line", "color": "var(--hue-0)", "point": len(rows) <= 60},
        "encoding": {
            "x": axis("position", "position in the window"),
            "y": away_from_zero("bits", "bits a token"),
            "tooltip": hint(("position", "position"), ("bits", "bits a token"), ("tokens", "tokens")),
        },
    }
    title = "Loss by position"
    step = -(-len(rows) // 40)
    cells = tuple((row["position"], row["bits"], row["tokens"]) for row in rows[::step])
    table = Table(title=title, columns=("position", "bits a token", "tokens"), rows=cells, is_folded=True)
    note = "The mean loss of a token at each position, over windows. It falls as far as the model uses the context."
    return Plot(title=title, spec=chart(rows, [line]), table=table, note=note)
