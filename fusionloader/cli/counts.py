"""Counts that are given as options."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Returns a ``type`` for argparse: an int that is not below ``least``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"should be an int of {least} or more, not {text}")
        return int(text)

    return parse
