"""A process that ends itself at one of its file operations, as after kill -9 or a crash."""

import builtins
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any, final

_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@final
class Guillotine:
    """Counts the file operations of this process below a folder, and kills it at one of them.

    Counted are opening for writing, each write, syncing, renaming, removing, making folders and truncating. The process
    dies before the operation, or in the middle of it for a write, half of which is done. Once installed it stays.

    Args:
        folder: the absolute path.
        at: number of the operation, counted from 1; None: only count.
    """

    def __init__(self, folder: Path, at: int | None) -> None:
        self.count = 0
        self._root, self._at, self._process = str(folder), at, os.getpid()

    def install(self) -> None:
        """Starts counting."""
        opened, synced = io.open, os.fsync

        def fsync(descriptor: int) -> None:
            if self._is_due():
                self._fall()
            synced(descriptor)

        def open_torn(file: Any, mode: str = "r", *others: Any, **settings: Any) -> Any:
            if not set(mode) & set("wax+") or not self._is_inside(file):
                return opened(file, mode, *others, **settings)
            raw = _Torn(file, mode.replace("b", "").replace("t", ""), self)
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding=settings.get("encoding"))

        os.fsync = fsync
        io.open = builtins.open = open_torn
        sys.addaudithook(self._see)

    def write(self, raw: io.FileIO, data: Any) -> int | None:
        """Writes, and dies halfway if it is due."""
        if self._is_due():
            io.FileIO.write(raw, memoryview(data)[: len(data) // 2])
            self._fall()
        return io.FileIO.write(raw, data)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        opens = event == "open" and arguments[2] & _WRITING
        if (opens or event in _CHANGES) and self._is_inside(arguments[0]) and self._is_due():
            self._fall()

    def _is_inside(self, path: Any) -> bool:
        # a relative name belongs to a folder that is being removed through its descriptor
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        name = os.fsdecode(path)
        return name.startswith(self._root) or not name.startswith("/")

    def _is_due(self) -> bool:
        self.count += os.getpid() == self._process  # not in forked workers
        return self.count == self._at and os.getpid() == self._process

    def _fall(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@final
class _Torn(io.FileIO):
    def __init__(self, file: Any, mode: str, guillotine: Guillotine) -> None:
        super().__init__(file, mode)
        self._guillotine = guillotine

    def write(self, data: Any) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._guillotine.write(self, data)
