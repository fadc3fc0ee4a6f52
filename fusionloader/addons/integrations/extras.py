"""An error that says how to install the packages of an integration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Names the extra of this package in errors of imports within the block.

    Raises:
        ImportError: a package is missing; the message has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise ImportError(
            f"fusionloader.addons.integrations.{name} needs {package}: "
            f"pip install 'fusionloader[{name}]'",
            name=error.name,
        ) from error
