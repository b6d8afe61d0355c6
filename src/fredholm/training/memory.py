"""How a lack of memory shows."""

import re

_NO_MEMORY = re.compile(
    r"can't allocate memory|std::bad_alloc|unable to mmap|can't start new thread|Cannot allocate memory|out of memory"
    r"|could not create a (primitive(?! descriptor)|memory)"
)
"""What torch's RuntimeErrors say where there is no memory for tensors, files or threads."""


def lacking_memory(error: BaseException) -> BaseException | None:
    """The error of a lack of memory that led to this one, which may be itself."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        return error
    before = error.__cause__ or error.__context__
    return None if before is None else lacking_memory(before)
