"""Trains on small data, then on large data with little additional memory.

For each line `["KIND", "SMALL", "LARGE", ROOM]` of the input a process with all imports is forked, which answers
with a line. The kernel refuses memory beyond the limit, in heaps and in writable maps.
"""

import dataclasses
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import torch
import torch._dynamo  # as optimisers do when they are made
import torchmetrics  # noqa: F401 - as tasks do when they measure

from fredholm.models.fields.neural_field import FieldOperator
from fredholm.models.fields.neural_operator import NeuralOperator
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import AttentionConfig, SpectralConfig
from fredholm.models.language.gpt2 import GPT2
from fredholm.models.language.itnet_text import ITNetMaskedModel
from fredholm.models.language.sentence_model import SentenceStackConfig
from fredholm.models.series.ckcnn import CKCNN
from fredholm.tasks import (
    FieldLearning,
    ImageLearning,
    ImageTextLearning,
    LanguageModelling,
    MaskedLanguageModelling,
    OperatorLearning,
    Segmentation,
    SentenceLearning,
    SeriesLearning,
    Task,
)
from fredholm.tasks.fields import npz_file as fields
from fredholm.tasks.files import cache, mapped
from fredholm.tasks.image_texts import npz_file as image_texts
from fredholm.tasks.images import npz_file as images
from fredholm.tasks.masks import npz_file as masks
from fredholm.tasks.series import npz_file as series
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.text import Tokens
from fredholm.training import TrainingConfig
from fredholm.training.batches import EpochBatches
from fredholm.training.learner import Learner

SMALL = ITNet.Config(embed_dim=8, depth=1, num_heads=2, kernel=AttentionConfig(), pool="mean")
FIELD = FieldOperator.Config(embed_dim=4, depth=1, num_heads=1, num_seeds=2, head_dim=4, num_frequencies=2)
KINDS: dict[str, Callable[[str], Task.Config]] = {
    "bytes": lambda data: LanguageModelling.Config(
        data=data, context=512, model=GPT2.Config(embed_dim=8, depth=1, num_heads=2)
    ),
    "byte pairs": lambda data: LanguageModelling.Config(
        data=data, documents="line", vocab_size=300, context=512, model=GPT2.Config(embed_dim=8, depth=1, num_heads=2)
    ),
    "rows": lambda data: LanguageModelling.Config(
        data=data, context=512, model=GPT2.Config(embed_dim=8, depth=1, num_heads=2)
    ),
    "sentences": lambda data: SentenceLearning.Config(
        data=data,
        valid_fraction=0.1,
        context=64,
        tokens=Tokens(vocab_size=200),
        model=SentenceStackConfig(stack=SMALL, position_frequencies=4),
    ),
    "image tables": lambda data: ImageLearning.Config(data=data, patch_size=4, model=SMALL),
    "images": lambda data: ImageLearning.Config(data=data, patch_size=32, model=SMALL),
    "shards": lambda data: ImageLearning.Config(data=str(Path(data).parent), patch_size=32, model=SMALL),
    "masks": lambda data: Segmentation.Config(
        data=data, patch_sizes=(16,), model=dataclasses.replace(SMALL, pool="none"), num_pixels=8, stride=16
    ),
    "image texts": lambda data: ImageTextLearning.Config(
        data=data, patch_size=64, tokens=Tokens(vocab_size=100), context=16, model=SMALL
    ),
    "operator": lambda data: OperatorLearning.Config(
        data=data, model=NeuralOperator.Config(embed_dim=4, depth=1, kernel=SpectralConfig(num_waves_per_axis=2))
    ),
    "field": lambda data: FieldLearning.Config(data=data, shown=16, target_samples=16, width=4, model=FIELD),
    "series": lambda data: SeriesLearning.Config(data=data, model=CKCNN.Config(embed_dim=4, depth=1)),
    "masked": lambda data: MaskedLanguageModelling.Config(
        data=data,
        documents="blank line",
        context=512,
        tokens=Tokens(vocab_size=200),
        model=ITNetMaskedModel.Config(stack=dataclasses.replace(SMALL, pool="cls"), position_frequencies=4),
    ),
}


def learn(config: Task.Config) -> list[float]:
    """Losses of some steps at the start and end of two epochs, and of some batches of each held-out split."""
    task = config.build()
    learner, losses = Learner(task, TrainingConfig(batch_size=2, device="cpu", tensorboard=False), 10), []
    for epoch in range(2):
        batches = EpochBatches(task, 2, 0, epoch)
        losses += [learner.update(batches[i], 0).loss for i in (0, 1, len(batches) - 1)]
    for split in get_args(HeldOut):
        with torch.no_grad():
            metrics = task.metrics()
            task.score(learner.model, task.held_out_batch(split, torch.arange(task.num_held_out(split))[-2:]), metrics)
            losses.append(float(metrics["loss"].compute()))
    return losses


def learn_in_room(kind: str, small: str, large: str, room: int) -> str:
    """Losses on the large data, or the error, under a memory limit."""
    try:
        learn(KINDS[kind](small))
        with Path("/proc/self/status").open() as status:
            taken = int(next(line for line in status if line.startswith("VmData")).split()[1]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (taken + room, -1))
        return f"learnt {learn(KINDS[kind](large))}"
    except BaseException:
        return traceback.format_exc()


def main() -> None:
    """See the module docstring."""
    torch.set_num_threads(1)
    for module in (cache, mapped, fields, images, image_texts, masks, series):
        setattr(module, "LARGE", 1 << 16)  # noqa: B010 - attributes of modules
    for line in sys.stdin:
        child = os.fork()
        if not child:
            print(json.dumps(learn_in_room(*json.loads(line))), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(json.dumps(f"ended with {status}"), flush=True)


if __name__ == "__main__":
    main()
