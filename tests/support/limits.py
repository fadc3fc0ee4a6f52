"""Limits of this process for a moment, as ``ulimit`` sets them."""

import contextlib
import resource


@contextlib.contextmanager
def limited(what, most):
    before = resource.getrlimit(what)
    resource.setrlimit(what, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)
