"""A file descriptor that an object owns."""

from __future__ import annotations

import os
from collections.abc import Callable


class OwnedDescriptor:
    """Closes it with the last reference to the object; memory that is mapped stays.

    Attributes:
        fd: the descriptor, -1 once it is closed.
    """

    fd: int

    def close(self, close_fd: Callable[[int], None] = os.close) -> None:
        """Closes the descriptor.

        ``close_fd`` is a default argument because Python may clear its modules before ``__del__``.
        """
        if self.fd >= 0:
            close_fd(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()
