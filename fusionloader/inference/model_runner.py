"""The thread that gives dynamic batches to the user's model, one after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusionloader.inference.requests import DynamicBatch, ImageRequest

Infer = Callable[[torch.Tensor], Sequence[Any] | torch.Tensor]
"""Gets a batch [n, ...], returns n results."""

Answer = Callable[[ImageRequest, Any, BaseException | None], None]
"""Answers a request, whose future is running, with a result or an error."""


class ModelRunner:
    """Runs ``infer`` on batches in the order in which they are given."""

    def __init__(self, infer: Infer, device: torch.device | None, answer: Answer) -> None:
        """With ``device`` batches are copied there first."""
        self._infer, self._device, self._answer = infer, device, answer
        self._batches: queue.SimpleQueue[DynamicBatch | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="fusionloader-infer", daemon=True)
        self.thread.start()

    def give(self, batch: DynamicBatch) -> None:
        """Gives it a batch of which all rows are there, or have failed."""
        self._batches.put(batch)

    def finish(self) -> None:
        """Has the thread end behind the batches that it was given."""
        self._batches.put(None)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._run_batch(batch)
            # Its slot is free while this thread waits, and at once: requests refer to the batch.
            batch.done.clear()
            del batch

    def _run_batch(self, batch: DynamicBatch) -> None:
        try:
            wanted = [each for each in batch.done if each.future.set_running_or_notify_cancel()]
            for request in batch.done:
                if request not in wanted:
                    self._answer(request, None, None)
            results = self._results(batch, wanted) if wanted else []
            for request, result in zip(wanted, results, strict=True):
                self._answer(request, result, None)
        except BaseException as error:  # also one that would end this thread, and all answers
            for request in batch.done:
                if not request.future.done():
                    self._answer(request, None, error)

    def _results(self, batch: DynamicBatch, wanted: list[ImageRequest]) -> Sequence[Any]:
        rows = batch.rows.batch(batch.rows.count)
        places = [request.row for request in wanted]
        is_whole = places == list(range(len(places)))
        images = rows[: len(places)] if is_whole else rows[places]
        if self._device is not None:
            images = images.to(self._device, non_blocking=True)
        results = self._infer(images)
        if self._device is not None:  # the slot is read until here
            torch.cuda.current_stream(self._device).synchronize()
        if len(results) != len(wanted):
            raise ValueError(
                f"infer returned {len(results)} results for a batch of {len(wanted)} images: it "
                "should return one for each, in the order of the batch"
            )
        return list(results)
