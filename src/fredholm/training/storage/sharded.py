"""What lies on several processes as parts of tensors (`torch.distributed.tensor.DTensor`), to files and back.

torch.distributed.checkpoint plans which process writes and reads what; its own formats unpickle, or know neither
checksums nor integers, so that the files here are those of `parts`.
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
"""Tensors by the name of their file and their own."""


def has_shards(tensors: Mapping[str, Tensor]) -> bool:
    """Whether one of them lies on several processes."""
    return any(isinstance(tensor, DTensor) for tensor in tensors.values())


@final
class Shards:
    """Writes and reads the tensors of several processes, all of which make it, and call its methods together.

    It has a process group of its own, so that it may write while the processes train.
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
        """Copies in the host's memory, pinned where there is a GPU."""
        # PyTorch 2.11 closes one that has been used
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
            draft: of the folder.
            tensors: this process's.
            step: for the notes of the files.
            there: files of the folder as it is, which are not written again.
            finish: is called by the first process once all files are there, with their listing.

        Raises:
            OSError: a process cannot write, which all are told.
            RuntimeError: a process has gone.
        """
        named = {f"{file}/{name}": tensor for file, each in tensors.items() for name, tensor in each.items()}
        writer = _Writer(draft, tuple(tensors), step, there, finish)
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        _agreed(lambda: save(named, storage_writer=writer, planner=planner, process_group=self._group))

    def check(self, files: Mapping[Path, Mapping[str, Any]]) -> None:
        """Compares files with their entries in a listing, each in one process.

        Raises:
            ValueError: one is another, which all processes are told.
            OSError: one cannot be read.
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
        """Tensors that lie on the processes as others do; each process reads what it holds of them.

        Args:
            found: what there is.
            like: tensors by name. One that there is not, or not in several processes, or of another shape, is whole.
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
    """Raises on every process what went wrong on the first that failed."""
    try:
        act()
    except CheckpointException as error:
        number, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
        if isinstance(cause, OSError) and cause.errno is not None:
            raise OSError(cause.errno, f"{cause.strerror}, process {number}", cause.filename) from None
        raise cause from None


@final
class _Writer(StorageWriter):
    """A file of every name and process, of which the first process makes a listing."""

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
        """Tells each process its number, once there is a place for its files."""
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
        """Whether it is a path that it would choose itself: no."""
        return False


@final
class _Reader(StorageReader):
    """Parts that were found in files."""

    def __init__(self, found: Mapping[str, Sequence[Part]]) -> None:
        self._found = found

    def reset(self, checkpoint_id: object = None) -> None:
        """See `StorageReader`; there is nothing to do."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Where the parts are in their tensors."""
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
        """Copies what this process holds."""
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
        """Whether it is a path that it would choose itself: no."""
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
