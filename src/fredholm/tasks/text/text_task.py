"""What tasks on running text share: its documents, their splits, and blocks that each epoch cuts at another place."""

import copy
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self, final

import torch

from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.splits.stratified_split import DEFAULT_VALID_FRACTION
from fredholm.tasks.task import EpochTask, Task
from fredholm.tasks.text import Separator, TextSplits, open_text


class TextTask(EpochTask):
    """A task on the documents of a text.

    Args:
        config: the settings.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        """A text, and what of it the model sees.

        Args:
            data: a .txt or .txt.gz file, or a folder with files such as train.txt, valid.txt and test.txt.
            documents: what ends a document: the end of its file, a blank line, or the end of a line.
            test_fraction: share of the test split, the end of the text, where the files bring none.
            valid_fraction: share of the validation split before it, likewise; 0: there is none, and nothing is chosen.
            context: tokens that the model sees.
        """

        data: str = ""
        documents: Separator = "file"
        test_fraction: float = 0.1
        valid_fraction: float = DEFAULT_VALID_FRACTION
        context: int = 256

        kernel_sigma: ClassVar[float] = 10.0
        dividing: ClassVar[tuple[str, ...]] = ("documents", "test_fraction", "valid_fraction")

        def __post_init__(self) -> None:
            if self.context < 1:
                raise ValueError(f"context is {self.context}; expected at least 1")

    def __init__(self, config: Config) -> None:
        self._text = config
        self._offset = 0

    @property
    @abstractmethod
    def _num_places(self) -> int:
        """Places of the training text at which an epoch may begin."""

    @final
    @cached_property
    def splits(self) -> TextSplits:
        """The documents, read at first use: a prediction needs none.

        Raises:
            ValueError: they cannot be read.
        """
        config = self._text
        if not config.data:
            raise ValueError("no text is given; pass a .txt file or a folder of such files")
        return open_text(
            config.data,
            documents=config.documents,
            test_fraction=config.test_fraction,
            valid_fraction=config.valid_fraction,
        )

    @final
    @property
    def _held_out_documents(self) -> dict[HeldOut, tuple[str, ...]]:
        """Those of the held-out splits that there are."""
        parts: dict[HeldOut, tuple[str, ...] | None] = {"valid": self.splits.valid, "test": self.splits.test}
        return {split: documents for split, documents in parts.items() if documents is not None}

    @final
    def for_epoch(self, generator: torch.Generator) -> Self:
        """The training text cut from another token on."""
        epoch = copy.copy(self)
        epoch._offset = int(torch.randint(self._num_places, (), generator=generator))
        return epoch
