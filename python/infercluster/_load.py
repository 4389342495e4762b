# SPDX-License-Identifier: Apache-2.0
"""load: all tensors of a source, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from . import _core, _device, _dtypes, _jobs, _options
from ._types import Into, Names, Report, Slices, Source


class Loaded(Mapping[str, Any]):
    """
    Tensors by name, in the order of files and offsets. A tensor object is made when it is first asked for; it shares
    the loaded memory, keeps it alive by itself, and may be written to.
    """

    def __init__(
        self,
        framework: str,
        tensors: list[_jobs.Tensor],
        metadata: dict[str, str],
        report: Report,
        given: Mapping[str, Any],
        ordinal: int = -1,
    ) -> None:
        self._framework, self._ordinal = framework, ordinal
        self._memory = {name: (dtype, shape, memory) for name, dtype, shape, memory in tensors}
        self._objects: dict[str, Any] = {name: tensor for name, tensor in given.items() if name in self._memory}
        self._metadata = metadata
        self._report = report

    @property
    def metadata(self) -> dict[str, str]:
        """The free-form text of the first file that has any."""
        return self._metadata

    @property
    def report(self) -> Report:
        """What happened, and where the time went."""
        return self._report

    def __getitem__(self, name: str) -> Any:
        if name in self._objects:
            return self._objects[name]
        dtype, shape, memory = self._memory[name]
        if self._ordinal < 0:
            tensor = _dtypes.over_memory(self._framework, dtype, shape, memory)
        else:
            tensor = _device.over_memory(self._framework, dtype, shape, memory, self._ordinal)
        # Of two threads that ask at once, both get the same object.
        tensor = self._objects.setdefault(name, tensor)
        self._memory[name] = (dtype, shape, None)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._memory)

    def __len__(self) -> int:
        return len(self._memory)

    def __contains__(self, name: object) -> bool:
        return name in self._memory

    def __repr__(self) -> str:
        report = self._report
        rate = f"{report['gib_per_s']:.2f} GiB/s" if report["gib_per_s"] else "no rate"
        return f"<infercluster.Loaded: {len(self)} tensors, {report['bytes']} bytes, {rate}, {report['backend']}>"


def load(
    src: Source,
    *,
    device: Any = "cpu",
    into: Into | None = None,
    names: Names | None = None,
    slices: Slices | None = None,
    framework: str | None = None,
    verify: str = "auto",
    revision: str | None = None,
    memory: int | str | None = None,
    latency_target: float | None = None,
    group: Any = None,
    group_timeout: float | None = None,
) -> Loaded:
    """
    Loads tensors at the speed of the storage.

    Args:
        src: a safetensors file, a directory with or without an index, a Hugging Face cache folder, or a repository id
        that the cache has. device: where the tensors go; "cpu", or "cuda:N": straight into its memory, which comes
        from torch's allocator when torch has the device, else from the driver; other devices of torch get copies while
        the rest is read. into: memory of the caller, by name: contiguous tensors of torch or numpy arrays of the
        right dtype and shape, which are filled and returned. names: names or shell patterns of the tensors that are
        wanted; all when left out. slices: by name or shell pattern the part that is wanted: a slice, a tuple of
        slices for the leading dimensions, or a `Shard`. framework: "pt" or "np", or on a CUDA device "dlpack" (see
        DeviceTensor); torch when it is installed (and has the device), else numpy (on a device "dlpack"), when left
        out. verify: "auto" checks where there are checksums (a seal), "always" demands them, "never"
        leaves them. revision: of a repository in the Hugging Face cache.
        memory: bytes that the load may use beyond the tensors (default 32 MiB), as a number or as "64MiB".
        latency_target: seconds that 99 of 100 reads may take, each from when it was asked for: while they take longer,
        checkpoints that processes of this user write on this node give way (INFERCLUSTER_LATENCY_TARGET="20ms").
        group: a process group of torch.distributed, or "world" for the default one, all of whose ranks make this call.
        Each byte is then read from storage by one rank, and comes to the others over the group; what a rank alone
        wants (its rows, its experts) it reads itself. Names and slices may differ between the ranks, nothing else.
        `memory` is then what may be on its way at once (default 512 MiB). When one rank fails, all raise its
        exception. group_timeout: seconds that a rank waits for the others at one step (default 600), then TimeoutError.

    Raises:
        FileNotFoundError, PermissionError, OSError: of the file named in the exception. KeyError: a tensor is not
        there. ValueError: what was asked cannot be. SafetensorError: a file breaks the format. MemoryError: over the
        budget, with the figure that is needed.
    """
    if group is not None:
        if latency_target is not None:
            raise ValueError("latency_target is not for loads by a group; set INFERCLUSTER_LATENCY_TARGET for its ranks")
        from ._group import load_in_group

        return load_in_group(
            src, group=group, device=device, into=into, names=names, slices=slices, framework=framework, verify=verify,
            revision=revision, memory=memory, timeout=group_timeout,
        )  # fmt: skip
    kind, place = _options.framework_and_device(framework, device)
    repository = _options.open_repository(src, revision)
    return load_opened(
        repository, kind, place, into=into, names=names, slices=slices, verify=verify, memory=memory,
        latency_target=latency_target,
    )  # fmt: skip


def load_opened(
    repository: _core.Repository,
    framework: str,
    device: str,
    *,
    into: Into | None,
    names: Names | None,
    slices: Slices | None,
    verify: str,
    memory: int | str | None,
    latency_target: float | None = None,
) -> Loaded:
    options = _options.build(
        repository, names=names, slices=slices, verify=verify, memory=memory, latency_target=latency_target
    )
    given = dict(into or {})
    ordinal = _device.core_ordinal(repository, device)
    if ordinal is not None and all(_options.place_of(tensor) == ordinal for tensor in given.values()):
        _device.use(options, ordinal, framework)
        _options.add_into(options, repository, given, slices or {})
        tensors, metadata, report = _jobs.run(repository, options)
        return Loaded(framework, tensors, metadata, report, given, ordinal)
    if device != "cpu":
        if framework == "dlpack":
            raise ValueError("into: its tensors are not on the load's device")
        checked = _options.build(repository, names=names, slices=slices, verify=verify, memory=None)
        _options.add_into(checked, repository, given, slices or {})
        return _load_to_device(repository, options, device, given)
    _options.add_into(options, repository, given, slices or {})
    tensors, metadata, report = _jobs.run(repository, options)
    for name, dtype, shape, loaded in tensors:
        if name in given and loaded is not None:  # a tensor on a device: filled from the host
            given[name].copy_(_dtypes.over_memory("pt", dtype, shape, loaded))
    return Loaded(framework, tensors, metadata, report, given)


def _load_to_device(repository: _core.Repository, options: _core.Options, device: str, given: dict[str, Any]) -> Loaded:
    """Host memory holds a stream's window only; each tensor is copied to its device as it arrives."""
    from ._stream import Stream

    result: dict[str, Any] = {}
    with Stream(repository, options, "pt", "cpu") as arriving:
        for name, tensor in arriving:
            result[name] = given[name].copy_(tensor) if name in given else tensor.to(device)
    tensors: list[_jobs.Tensor] = [(name, "", (), None) for name in result]
    return Loaded("pt", tensors, arriving.metadata, arriving.report, result)
