# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM end long work cleanly: no half seal, no message but one, and the exit code that shells expect."""

import os
import signal
import subprocess

import pytest

from checkpoints import write_sparse
from repositories import pack

TENSOR_BYTES = 16 * 2**30  # sparse: costs no disk, and some seconds to read


@pytest.fixture
def large_file(folder):
    path = folder / "large.safetensors"
    head = pack({"zeros": ("U8", [TENSOR_BYTES], b"")}).replace(b'"data_offsets":[0,0]', b'"data_offsets":[0,%d]' % TENSOR_BYTES)
    body = head[8:].rstrip(b" ")
    body += b" " * (-len(body) % 8)
    with path.open("wb") as file:
        file.write(len(body).to_bytes(8, "little") + body)
        file.truncate(8 + len(body) + TENSOR_BYTES)
    return path


def interrupted(program, signals: list[signal.Signals], *arguments) -> tuple[int, bytes]:
    """Runs the program with a terminal as standard error; sends the signals once its progress line says how much time is left."""
    leader, follower = os.openpty()
    with subprocess.Popen([program.path, *arguments], stdout=subprocess.DEVNULL, stderr=follower) as process:
        os.close(follower)
        output = b""
        while b" left" not in output:
            output += os.read(leader, 65536)  # EIO, and so a failure, when the program ends before
        for number in signals:
            process.send_signal(number)
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # EIO: the program has ended
                break
            if not piece:
                break
            output += piece
        process.wait(timeout=60)
    os.close(leader)
    return process.returncode, output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_sealing_and_leaves_no_seal(program, large_file, number):
    status, output = interrupted(program, [number], "seal", large_file)
    assert status == 128 + number, output
    assert b"seal: " in output and b" of 16.00 GiB" in output, "the progress line"
    assert b"cancelled" in output
    assert sorted(path.name for path in large_file.parent.iterdir()) == [large_file.name]


def test_a_signal_cancels_a_load(program, large_file):
    # 3 GiB of it, so that memory suffices.
    status, output = interrupted(program, [signal.SIGINT], "load", large_file, "--slice", f"zeros=0:{3 * 2**30}", "--backend", "threads")
    assert status == 130, output
    assert b"cancelled" in output


def test_a_second_signal_kills(program, large_file):
    status, _ = interrupted(program, [signal.SIGTERM, signal.SIGTERM], "seal", large_file)
    assert status in (-signal.SIGTERM, 128 + signal.SIGTERM)  # the first may have ended it already


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_an_export_and_leaves_nothing(program, folder, number):
    write_sparse(folder / "run", 1, mib=4096)
    status, output = interrupted(program, [number], "checkpoint", "export", folder / "run", folder / "out", "--format", "hf", "--memory", "16MiB")
    assert status == 128 + number, output
    assert b"export: " in output and b"cancelled" in output
    assert [path.name for path in folder.iterdir()] == ["run"]


@pytest.mark.parametrize("arguments", [["verify"], ["diff", "--step", "1", "--step", "1"]])
def test_a_signal_cancels_what_reads_checkpoints(program, folder, arguments):
    write_sparse(folder, 1, mib=16384)
    status, output = interrupted(program, [signal.SIGINT], "checkpoint", arguments[0], folder, *arguments[1:])
    assert status == 130, output
    assert b"cancelled" in output
