"""Code that runs as another user, which only root can have it do."""

import os
import pwd

import pytest

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def as_nobody(function):
    """Runs a function in a process of another user; returns what it returns, a small number."""
    return exit_code_of(begun_as_nobody(function))


def begun_as_nobody(function):
    """The same, beside this process; returns its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setuid(NOBODY)
            os._exit(function())
        except BaseException:
            os._exit(255)
    return pid


def exit_code_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def without_home(monkeypatch):
    """Makes this process's user one that has no home folder and that the system does not know."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in "HOME", "XDG_CACHE_HOME":
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
