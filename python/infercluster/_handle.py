# SPDX-License-Identifier: Apache-2.0
"""open: a source's table, and tensors when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from . import _core, _options
from ._load import Loaded, load_opened
from ._types import Into, Names, Slice, Slices, Source, TensorInfo


class Handle(Mapping[str, Any]):
    """
    The tensors of a source by name; `handle[name]` reads one. Only headers were read so far. Thread-safe. Also a
    context manager.
    """

    def __init__(self, repository: _core.Repository, framework: str, device: Any, verify: str) -> None:
        self._repository: _core.Repository | None = repository
        self._framework, self._device, self._verify = framework, device, verify
        self._names = repository.names()
        self._known = frozenset(self._names)

    def _open(self) -> _core.Repository:
        if self._repository is None:
            raise ValueError("the handle is closed")
        return self._repository

    @property
    def metadata(self) -> dict[str, str]:
        return self._open().metadata

    @property
    def files(self) -> list[str]:
        """The files that hold the tensors."""
        return self._open().files

    def info(self, name: str) -> TensorInfo:
        """dtype, shape, bytes and file of a tensor; nothing is read."""
        found = self._open().find(name)
        if found is None:
            raise KeyError(name)
        return TensorInfo(*found)

    def __getitem__(self, name: str) -> Any:
        return self.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def get_tensor(self, name: str, part: Slice | None = None) -> Any:
        """A tensor, or the part of it that `part` says (see `load`'s slices); only that is read."""
        self.info(name)
        loaded = self.load(names=name, slices=None if part is None else {name: part})
        return loaded[name]

    def load(
        self,
        *,
        names: Names | None = None,
        slices: Slices | None = None,
        into: Into | None = None,
        memory: int | str | None = None,
    ) -> Loaded:
        """As `infercluster.load`, without opening the source again."""
        return load_opened(
            self._open(),
            self._framework,
            self._device,
            names=names,
            slices=slices,
            into=into,
            verify=self._verify,
            memory=memory,
        )

    def close(self) -> None:
        self._repository = None

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<infercluster.Handle: {len(self)} tensors>"


def open(  # noqa: A001 - infercluster.open
    src: Source, *, device: Any = "cpu", framework: str | None = None, verify: str = "auto", revision: str | None = None
) -> Handle:
    """Reads the headers of a source; tensors and parts of them are read when they are asked for. The arguments are
    those of `load`."""
    kind, place = _options.framework_and_device(framework, device)
    return Handle(_options.open_repository(src, revision), kind, place, verify)
