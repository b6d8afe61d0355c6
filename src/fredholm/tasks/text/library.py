"""The package `tokenizers`, which learns and applies tokens, imported where it is needed."""

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers


def tokenizers_library() -> ModuleType:
    """The package.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError('these tokens need tokenizers; get it with: pip install "fredholm[data]"') from error
    return tokenizers


def library_tokenizer(state: str) -> "tokenizers.Tokenizer":
    """The package's tokenizer of its JSON.

    Raises:
        ValueError: something else.
        ImportError: the package is not installed.
    """
    library = tokenizers_library()
    try:
        return library.Tokenizer.from_str(state)
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"this is no tokenizer of the tokenizers library: {error}") from error
