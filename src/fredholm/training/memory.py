"""Recognising errors that come from a lack of memory."""

import re

_NO_MEMORY = re.compile(
    r"can't allocate memory|std::bad_alloc|unable to mmap|can't start new thread|Cannot allocate memory|out of memory"
    r"|could not create a (primitive(?! descriptor)|memory)"
)
"""Messages of torch's RuntimeErrors when memory for tensors, files or threads is exhausted."""


def lacking_memory(error: BaseException) -> BaseException | None:
    """Returns the out-of-memory error that caused this one, possibly itself; None if there is none."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        return error
    before = error.__cause__ or error.__context__
    return None if before is None else lacking_memory(before)
