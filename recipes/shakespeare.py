"""Train Aether, or GPT-2 of its size, on tiny Shakespeare: 1.1 million characters of plays, byte by byte.

Command:   fredholm train shakespeare
Modality:  text
Data:      tiny Shakespeare in ../shared/data/text_lm
Get:       input.txt from https://github.com/karpathy/char-rnn (data/tinyshakespeare), or any text; then --task.data
           FILE
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      5 minutes of processor time for Aether, 2 for GPT-2
Score:     bits a byte on the validation text, seed 0: Aether 2.531, GPT-2 (shakespeare_gpt2) 2.758, and with rotary
           positions 2.405, see docs/studies/aether.md
"""

import dataclasses

from fredholm.models.language.aether import Aether
from fredholm.models.language.gpt2 import GPT2
from fredholm.tasks import LanguageModelling
from fredholm.training import Run, TrainingConfig


def shakespeare() -> Run.Config:
    """Train Aether, 4 layers of 64 channels, on the bytes of tiny Shakespeare.

    Time:  5 minutes of processor time
    """
    return Run.Config(
        task=LanguageModelling.Config(
            data="../shared/data/text_lm/tinyshakespeare.txt.gz",
            test_fraction=0.1,
            valid_fraction=0.1,
            context=128,
            stride=64,
            model=Aether.Config(embed_dim=64, depth=4, num_heads=4, positions="rotary", dropout=0.0),
        ),
        training=TrainingConfig(
            epochs=2,
            batch_size=8,
            learning_rate=3e-3,
            final_learning_rate=0.0,
            warmup_fraction=0.1,
            weight_decay=0.1,
            betas=(0.9, 0.95),
            ema_decay=0.99,
            evaluation_batch_size=16,
        ),
    )


def shakespeare_gpt2() -> Run.Config:
    """Train GPT-2 of the same size on the bytes of tiny Shakespeare.

    Time:  2 minutes of processor time
    """
    base = shakespeare()
    model = GPT2.Config(embed_dim=64, depth=4, num_heads=4, bias=False, dropout=0.0)
    return dataclasses.replace(
        base,
        task=dataclasses.replace(base.task, model=model),
        training=dataclasses.replace(base.training, learning_rate=1e-2),
    )
