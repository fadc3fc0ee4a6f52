"""Runs a training script with one of both loaders, and records what it got.

    python recorded_script.py FusionLoader RECORD SCRIPT [ARGUMENTS]

``SCRIPT`` is a file, or ``entry:NAME`` for a command that a package has installed. ``RECORD`` gets
JSON: of each loader the digests of its batches, the seconds waited in ``next()`` and how it was
served; and the warnings of the process.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import random
import runpy
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data


class Recorder:
    """What a script's loaders delivered."""

    def __init__(self) -> None:
        self.loaders: list[dict[str, Any]] = []
        self._known: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.warnings: list[str] = []

    def entry(self, loader: Any) -> dict[str, Any]:
        if id(loader) not in self._known:
            entry: dict[str, Any] = {
                "dataset": type(loader.dataset).__name__,
                "order": [],
                "batches": [],
                "waited": 0.0,
            }
            self._known[id(loader)] = loader, entry  # the loader, so that its id stays its own
            self.loaders.append(entry)
        return self._known[id(loader)][1]

    def watch(self, kind: Any) -> None:
        make = kind._get_iterator  # that of subclasses whose __iter__ is their own, too
        kind._get_iterator = lambda loader: Timed(self.entry(loader), make(loader))

    def warn(self, text: str) -> None:
        text = " ".join(text.split())[:300]
        if text not in self.warnings:
            self.warnings.append(text)

    def write(self, path: Path) -> None:
        for loader, entry in self._known.values():
            if hasattr(loader, "explain"):
                entry["served"] = loader.explain().splitlines()
        path.write_text(json.dumps({"loaders": self.loaders, "warnings": self.warnings}))


class Timed:
    """An iterator of a loader; everything but ``next()`` is its own."""

    def __init__(self, entry: dict[str, Any], iterator: Iterator[Any]) -> None:
        self._entry, self._iterator = entry, iterator

    def __iter__(self) -> Timed:
        return self

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __next__(self) -> Any:
        started = time.perf_counter()
        try:
            batch = next(self._iterator)
        finally:
            self._entry["waited"] += time.perf_counter() - started
        for name, labels_only in (("order", True), ("batches", False)):
            digest = hashlib.sha256()
            add(digest, batch, labels_only)
            self._entry[name].append(digest.hexdigest()[:16])
        return batch


def add(digest: Any, value: Any, labels_only: bool) -> None:
    """Adds a batch to a digest; ``labels_only`` leaves out what pixels may be."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().as_subclass(torch.Tensor).cpu().contiguous()
        if not labels_only or (plain.ndim == 1 and not plain.is_floating_point()):
            digest.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        add(digest, torch.from_numpy(value), labels_only)
    elif isinstance(value, dict):
        for key, each in value.items():
            digest.update(str(key).encode())
            add(digest, each, labels_only)
    elif isinstance(value, (list, tuple)):
        for each in value:
            add(digest, each, labels_only)
    elif isinstance(value, (str, int)) or (isinstance(value, float) and not labels_only):
        digest.update(repr(value).encode())


class WarningsOfTheLog(logging.Handler):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__(logging.WARNING)
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        self._recorder.warn(f"{record.name}: {record.getMessage()}")


def main() -> None:
    kind, record, script, *arguments = sys.argv[1:]
    recorder = Recorder()
    loader: Any = torch.utils.data.DataLoader
    if kind == "FusionLoader":
        from fusionloader import FusionLoader

        loader = FusionLoader
        torch.utils.data.DataLoader = loader  # type: ignore[misc]
        torch.utils.data.dataloader.DataLoader = loader  # type: ignore[misc]
    recorder.watch(loader)
    shown = warnings.showwarning

    def show(message: Any, category: Any, *rest: Any) -> None:
        recorder.warn(f"{category.__name__}: {message}")
        shown(message, category, *rest)

    warnings.showwarning = show
    logging.getLogger("fusionloader").addHandler(WarningsOfTheLog(recorder))
    for seed in (random.seed, np.random.seed, torch.manual_seed):  # of scripts that do not
        seed(0)
    sys.argv = [script, *arguments]
    try:
        if script.startswith("entry:"):
            name = script.removeprefix("entry:")
            (entry,) = importlib.metadata.entry_points(group="console_scripts", name=name)
            entry.load()()
        else:
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")
    finally:
        recorder.write(Path(record))


if __name__ == "__main__":
    main()
