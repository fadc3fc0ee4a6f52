"""What containers and batch systems take from a process, taken from this one.

Imports little: scripts call it before they import what they try.
"""

import ctypes
import os
import struct
from pathlib import Path

CLONE_NEWUSER = 0x10000000
_LIBC = ctypes.CDLL(None, use_errno=True)

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
EPERM, ENOSYS = 1, 38

# By their numbers on x86-64. Those that Docker's default profile refuses to a process without
# capabilities, as far as a library under Python might call them.
DOCKER = {
    "ptrace": (101, EPERM),
    "unshare": (272, EPERM),
    "setns": (308, EPERM),
    "mount": (165, EPERM),
    "keyctl": (250, EPERM),
    "get_mempolicy": (239, EPERM),
    "set_mempolicy": (238, EPERM),
    "mbind": (237, EPERM),
    "move_pages": (279, EPERM),
    "perf_event_open": (298, EPERM),
    "kcmp": (312, EPERM),
    "bpf": (321, EPERM),
    "userfaultfd": (323, EPERM),
    "io_uring_setup": (425, EPERM),
    "clone3": (435, ENOSYS),
}
# Those that older or stricter profiles refuse, too.
STRICTER = {
    "sched_setaffinity": (203, EPERM),
    "process_vm_readv": (310, EPERM),
    "process_vm_writev": (311, EPERM),
    "pidfd_open": (434, EPERM),
    "pidfd_send_signal": (424, EPERM),
    "pidfd_getfd": (438, EPERM),
}
MEMFD = {"memfd_create": (319, EPERM)}


def refuse(calls):
    """Has the kernel refuse system calls, by a seccomp filter that child processes inherit."""
    program = [(_LOAD, 0, 0, 0)]  # the number of the call
    for number, error in calls.values():
        program += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]
    program.append((_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    text = ctypes.create_string_buffer(code)
    head = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(text)))
    assert _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    done = _LIBC.prctl(_PR_SET_SECCOMP, _MODE_FILTER, head, 0, 0)
    assert done == 0, os.strerror(ctypes.get_errno())
    for name, (number, error) in calls.items():
        assert (_LIBC.syscall(number, 0), ctypes.get_errno()) == (-1, error), name


def become_another_user(uid):
    """Runs as ``uid`` in a user namespace, without capabilities, as a rootless container does."""
    here = os.geteuid()
    if _LIBC.unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "no user namespace can be made")
    Path("/proc/self/uid_map").write_text(f"{uid} {here} 1")
    version = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    nothing = ctypes.create_string_buffer(24)
    assert _LIBC.capset(version, nothing) == 0
    assert os.getuid() == uid
