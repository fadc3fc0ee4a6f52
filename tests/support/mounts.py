"""Mounts and pids that only one script sees."""

IN_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")
"""Begins a command that then runs with pids of its own, as in a container."""


def in_mount_namespace(command: str) -> str:
    """Code for the beginning of a script: runs a shell command in a mount namespace of its own.

    The script makes the namespace itself, and not ``unshare``, so that it need not import torch.
    """
    return f"""
import ctypes, subprocess
CLONE_NEWNS = 0x00020000
assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
subprocess.run({f"mount --make-rprivate / && {command}"!r}, shell=True, check=True)
"""
