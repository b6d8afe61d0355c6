"""Writing and reading tensors that are sharded over processes (`torch.distributed.tensor.DTensor`).

torch.distributed.checkpoint plans which process writes and reads which part. Its own formats unpickle, or lack
checksums and integers, so the files here are those of `parts`.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from fredholm.storage.atomic import Draft
from fredholm.storage.integrity import check_listed, listed

from .parts import Part, joined, part_bytes, part_names

Listing = dict[str, dict[str, Any]]
Tensors = Mapping[str, Mapping[str, Tensor]]
"""Tensors by file name and tensor name."""


def has_shards(tensors: Mapping[str, Tensor]) -> bool:
    """Whether any tensor is sharded over processes."""
    return any(isinstance(tensor, DTensor) for tensor in tensors.values())


@final
class Shards:
    """Writes and reads sharded tensors; all processes construct it, and call its methods, together.

    It has its own process group, so that it may write while the processes train.
    """

    def __init__(self) -> None:
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        self._group = group
        on_gpu = torch.cuda.is_available()
        self._staging = StagingOptions(
            use_pinned_memory=on_gpu, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=on_gpu
        )
        self.is_first = dist.get_rank() == 0

    def copied(self, tensors: Tensors) -> dict[str, dict[str, Tensor]]:
        """Returns copies in host memory, pinned where there is a GPU."""
        # PyTorch 2.11 closes a stager that has been used
        stager = DefaultStager(self._staging)
        try:
            copies: Any = stager.stage({file: dict(named) for file, named in tensors.items()})
            return copies
        finally:
            stager.close()

    def write(
        self, draft: Draft, tensors: Tensors, step: int, there: Listing, finish: Callable[[Listing], None]
    ) -> None:
        """Adds the parts of all processes to a draft.

        Args:
            draft: draft of the folder.
            tensors: tensors of this process.
            step: step for the headers of the files.
            there: files already in the folder, which are not written again.
            finish: called by the first process with the listing, once all files are there.

        Raises:
            OSError: a process cannot write; raised on all processes.
            RuntimeError: a process has ended.
        """
        named = {f"{file}/{name}": tensor for file, each in tensors.items() for name, tensor in each.items()}
        writer = _Writer(draft, tuple(tensors), step, there, finish)
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        _agreed(lambda: save(named, storage_writer=writer, planner=planner, process_group=self._group))

    def check(self, files: Mapping[Path, Mapping[str, Any]]) -> None:
        """Compares files with their entries in a listing, each file on one process.

        Raises:
            ValueError: a file differs; raised on all processes.
            OSError: a file cannot be read.
        """
        rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        error: Exception | None = None
        try:
            for path, entry in list(files.items())[rank::size]:
                check_listed(path, entry)
        except (ValueError, OSError) as caught:
            error = caught
        errors: list[Exception | None] = [None] * size
        dist.all_gather_object(errors, error, group=self._group)
        for found in errors:
            if found is not None:
                raise found

    def read(self, found: Mapping[str, Sequence[Part]], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns tensors that are sharded as in `like`; each process reads its own parts.

        Args:
            found: parts found, by tensor.
            like: tensors by name. A tensor is whole where its counterpart is missing, not sharded, or of another shape.
        """
        tensors: dict[str, Tensor] = {}
        sharded: dict[str, Tensor] = {}
        for name, parts in found.items():
            other = like.get(name)
            if isinstance(other, DTensor) and other.shape == parts[0].shape:
                sharded[name] = tensors[name] = torch.empty_like(other.detach(), dtype=parts[0].values.dtype)
            else:
                tensors[name] = joined(parts)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        reader = _Reader({name: found[name] for name in sharded})
        _agreed(lambda: load(sharded, storage_reader=reader, planner=planner, process_group=self._group))
        return tensors


def _agreed(act: Callable[[], object]) -> None:
    """Raises the error of the first process that failed on all processes."""
    try:
        act()
    except CheckpointException as error:
        number, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
        if isinstance(cause, OSError) and cause.errno is not None:
            raise OSError(cause.errno, f"{cause.strerror}, process {number}", cause.filename) from None
        raise cause from None


@final
class _Writer(StorageWriter):
    """Writes one file per name and process; the first process lists them."""

    def __init__(
        self, draft: Draft, files: Collection[str], step: int, there: Listing, finish: Callable[[Listing], None]
    ) -> None:
        self._draft, self._files, self._step = draft, files, step
        self._there, self._finish = there, finish

    def reset(self, checkpoint_id: object = None) -> None:
        """See `StorageWriter`; there is nothing to do."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See `StorageWriter`; there is nothing to do."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """See `StorageWriter`."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Numbers the processes, once the folder for their files exists."""
        self._draft.begin()
        return [dataclasses.replace(plan, storage_data=(rank, len(plans))) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes the files of this process."""
        rank, size = plan.storage_data
        results: list[WriteResult] = []
        for file in self._files:
            parts: dict[str, Part] = {}
            for item in plan.items:
                if item.index.fqn.startswith(f"{file}/"):
                    name = item.index.fqn.removeprefix(f"{file}/")
                    assert name not in parts, f"{name} has several parts on process {rank}"
                    parts[name] = _part(item, planner)
            name, content = part_names(file, size)[rank], part_bytes(parts, self._step)
            entry = listed(content)
            if self._there.get(name) != entry:
                self._draft.add(name, content)
            results.append(WriteResult(MetadataIndex(name), len(content), entry))
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """See `StorageWriter`."""
        self._finish({each.index.fqn: each.storage_data for of_process in results for each in of_process})

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        """Always False, so that this storage is never chosen by the form of a path."""
        return False


@final
class _Reader(StorageReader):
    """Reads parts that were found in files."""

    def __init__(self, found: Mapping[str, Sequence[Part]]) -> None:
        self._found = found

    def reset(self, checkpoint_id: object = None) -> None:
        """See `StorageReader`; there is nothing to do."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns the place of each part in its tensor."""
        tensors = {
            name: TensorStorageMetadata(
                properties=TensorProperties(dtype=parts[0].values.dtype),
                size=torch.Size(parts[0].shape),
                chunks=[ChunkStorageMetadata(torch.Size(part.offset), part.values.shape) for part in parts],
            )
            for name, parts in self._found.items()
        }
        return Metadata(state_dict_metadata=dict(tensors))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See `StorageReader`; there is nothing to do."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """See `StorageReader`."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """See `StorageReader`."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies the parts of this process."""
        for item in plan.items:
            number = item.storage_index.index
            assert number is not None
            values = self._found[item.storage_index.fqn][number].values
            for axis, (start, size) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                values = values.narrow(axis, start, size)
            target = planner.resolve_tensor(item).detach()
            target.copy_(values)
            planner.commit_tensor(item, target)
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        """Always False, so that this storage is never chosen by the form of a path."""
        return False


def _part(item: WriteItem, planner: SavePlanner) -> Part:
    about, values = item.tensor_data, planner.resolve_data(item)
    assert about is not None
    assert isinstance(values, Tensor)
    return Part(tuple(about.size), tuple(about.chunk.offsets), values)


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
