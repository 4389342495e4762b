# SPDX-License-Identifier: Apache-2.0
"""What the engines' loaders share: options in their configuration, and a stream of tensors over a list of files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _options
from .._errors import SafetensorError
from .._handle import Handle
from .._handle import open as open_handle
from .._jobs import exact
from .._stream import Stream

FORMAT = "infercluster"

_LOGGER = logging.getLogger("infercluster")

Wanted = Callable[[str], bool]


@dataclass(frozen=True)
class Options:
    """`memory`: the window of a stream, as for `infercluster.stream`; None: its default. `verify`: "auto", "always" or
    "never". `device`: where tensors are handed out; None: where the model is."""

    memory: int | str | None = None
    verify: str = "auto"
    device: str | None = None

    @staticmethod
    def taken_from(extra: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
        """Ours, and the rest, which is the engine's."""
        own = {key: extra[key] for key in ("memory", "verify", "device") if key in extra}
        options = Options(**own)
        if options.memory is not None:
            _options.byte_count(options.memory)
        if options.verify not in ("auto", "always", "never"):
            raise ValueError(f'verify is "{options.verify}"; expected "auto", "always" or "never"')
        return options, {key: value for key, value in extra.items() if key not in own}


def device_of(model: Any) -> str:
    """Where a model's parameters are; "cpu" when it has none yet."""
    parameters = model.parameters() if hasattr(model, "parameters") else ()
    found = next((parameter.device for parameter in parameters if parameter.device.type != "meta"), None)
    return "cpu" if found is None else str(found)


def weights(
    files: Sequence[str | os.PathLike[str]], options: Options, device: str, wanted: Wanted = lambda name: True
) -> Iterator[tuple[str, Any]]:
    """
    Yields (name, tensor) of every wanted tensor in these safetensors files as its bytes arrive, each once. What is
    not wanted is not read. A consumer may keep tensors: when they fill the window, the rest is read one by one.
    """
    for source, names in _sources(files):
        chosen = [name for name in names if wanted(name)]
        if chosen:
            yield from _stream(source, chosen, options, device)


def _sources(files: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[str, list[str]]]:
    """A folder in one go when it holds exactly these files' tensors, so that reads do not pause between them; else
    each file."""
    paths = list(dict.fromkeys(os.fspath(file) for file in files))
    folders = {os.path.dirname(path) for path in paths}
    if len(paths) > 1 and len(folders) == 1:
        try:
            handle = open_handle(*folders, framework="pt")
        except (OSError, ValueError, RuntimeError, SafetensorError):
            handle = None  # the folder is no repository; its files may be readable all the same
        if handle is not None and {_real(file) for file in handle.files} == {_real(path) for path in paths}:
            yield folders.pop(), list(handle)
            return
    for path in paths:
        yield path, list(open_handle(path, framework="pt"))


def _real(path: str) -> str:
    return os.path.realpath(path)


def _stream(source: str, names: list[str], options: Options, device: str) -> Iterator[tuple[str, Any]]:
    kind, place = _options.framework_and_device("pt", device)
    repository = _options.open_repository(source, None)
    left = dict.fromkeys(names)
    built = _options.build(
        repository, names=list(map(exact, names)), slices=None, verify=options.verify, memory=options.memory
    )
    try:
        with Stream(repository, built, kind, place) as arriving:
            for name, tensor in arriving:
                del left[name]
                yield name, tensor
                del tensor
    except MemoryError as error:
        _LOGGER.warning("%s: the rest is read tensor by tensor: %s", source, error)
        handle = Handle(repository, kind, place, options.verify)
        for name in left:
            yield name, handle[name]
