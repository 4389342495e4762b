# SPDX-License-Identifier: Apache-2.0
"""Runs a command whose kernel refuses io_uring, O_DIRECT, or both, as containers and some mounts do.

usage: refuse_calls.py [--uring EPERM|ENOSYS] [--direct EINVAL] -- COMMAND [ARGUMENT ...]

By a seccomp filter (x86-64, aarch64), which holds for all threads and children of the command and needs no privilege.
"""

import argparse
import ctypes
import errno
import os
import platform
import struct
import sys

# struct seccomp_data: the number at offset 0, the arguments as 64-bit words from offset 16 (little-endian: low word first).
NUMBER_AT = 0
OPENAT_FLAGS_AT = 16 + 2 * 8
# BPF instructions.
LOAD_WORD, JUMP_IF_EQUAL, JUMP_IF_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
SECCOMP_ALLOW, SECCOMP_ERRNO = 0x7FFF0000, 0x00050000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

URING_CALLS = (425, 426, 427)  # setup, enter, register: the same on all architectures
OPENAT_CALL = {"x86_64": 257, "aarch64": 56}[platform.machine()]


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def refuse(number: int) -> bytes:
    return instruction(RETURN, SECCOMP_ERRNO | number)


def filter_program(uring: int | None, direct: int | None) -> bytes:
    program = instruction(LOAD_WORD, NUMBER_AT)
    if uring is not None:
        for call in URING_CALLS:
            program += instruction(JUMP_IF_EQUAL, call, 0, 1) + refuse(uring)
    if direct is not None:
        program += instruction(JUMP_IF_EQUAL, OPENAT_CALL, 0, 3)
        program += instruction(LOAD_WORD, OPENAT_FLAGS_AT)
        program += instruction(JUMP_IF_ANY_BIT, os.O_DIRECT, 0, 1) + refuse(direct)
    return program + instruction(RETURN, SECCOMP_ALLOW)


def install(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

    buffer = ctypes.create_string_buffer(program, len(program))
    libc = ctypes.CDLL(None, use_errno=True)
    argument = Program(len(program) // 8, ctypes.addressof(buffer))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(argument), 0, 0) != 0:
        sys.exit(f"refuse_calls.py: seccomp: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uring", choices=["EPERM", "ENOSYS"])
    parser.add_argument("--direct", choices=["EINVAL"])
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()

    def number(name: str | None) -> int | None:
        return None if name is None else getattr(errno, name)

    install(filter_program(number(arguments.uring), number(arguments.direct)))
    os.execvp(arguments.command[0], arguments.command)


if __name__ == "__main__":
    main()
