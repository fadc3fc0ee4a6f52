"""What DALI cannot do. No DALI here."""

from __future__ import annotations


class NotOnDali(ValueError):
    """Neither the head nor a family can do an operation; the message says what and why."""
