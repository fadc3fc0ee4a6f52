"""The thread that runs the user's model on dynamic batches, one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusionloader.addons.inference.requests import DynamicBatch, ImageRequest

Infer = Callable[[torch.Tensor], Sequence[Any] | torch.Tensor]
"""Takes a batch [n, ...], returns n results."""

Answer = Callable[[ImageRequest, Any, BaseException | None], None]
"""Answers a request whose future is running, with a result or an error."""


class ModelRunner:
    """Runs ``infer`` on batches in the order in which they are given."""

    def __init__(
        self,
        infer: Infer,
        device: torch.device | None,
        answer: Answer,
        failed: Callable[[BaseException], None],
    ) -> None:
        """Starts the thread.

        Args:
            infer: the user's model.
            device: CUDA device that batches are copied to first, or ``None``.
            answer: called for each request.
            failed: called with the error that has ended the thread early.
        """
        self._infer, self._device, self._answer, self._failed = infer, device, answer, failed
        self._batches: deque[DynamicBatch] = deque()  # until they are answered
        self._given = threading.Semaphore(0)  # or finishing
        self._is_finishing = self._has_failed = False
        self.thread = threading.Thread(target=self._run, name="fusionloader-infer", daemon=True)
        self.thread.start()

    def give(self, batch: DynamicBatch) -> None:
        """Enqueues a complete batch."""
        self._batches.append(batch)
        self._given.release()

    def finish(self) -> None:
        """Ends the thread after the enqueued batches."""
        self._is_finishing = True
        self._given.release()

    def left(self) -> list[DynamicBatch]:
        """Returns the batches that stay unanswered because the thread has failed."""
        return list(self._batches) if self._has_failed else []

    def _run(self) -> None:
        try:
            if self._device is not None:  # each thread has a current device of its own
                torch.cuda.set_device(self._device)
            while self._batches or not self._is_finishing:
                if self._batches:
                    self._run_batch(self._batches[0])
                    # Requests refer to the batch, and would keep its slot in use while this waits.
                    self._batches[0].done.clear()
                    self._batches.popleft()
                else:
                    self._given.acquire()
        except BaseException as error:  # between two steps, such as a MemoryError
            self._has_failed = True
            self._failed(error)

    def _run_batch(self, batch: DynamicBatch) -> None:
        wanted = [each for each in batch.done if each.future.set_running_or_notify_cancel()]
        for request in batch.done:
            if request not in wanted:
                self._answer(request, None, None)
        error, results = None, [None] * len(wanted)
        if wanted:
            try:
                results = self._results(batch, wanted)
            except BaseException as raised:  # SystemExit, too, must not end this thread
                error = raised
        for request, result in zip(wanted, results, strict=True):
            self._answer(request, result, error)

    def _results(self, batch: DynamicBatch, wanted: list[ImageRequest]) -> list[Any]:
        rows = batch.rows.batch(batch.rows.count)
        places = [request.row for request in wanted]
        is_whole = places == list(range(len(places)))
        images = rows[: len(places)] if is_whole else rows[places]
        if self._device is not None:
            images = images.to(self._device, non_blocking=True)
        with torch.no_grad():  # each thread has a mode of its own
            results = self._infer(images)
        if self._device is not None:  # the copy reads the slot until here
            torch.cuda.current_stream(self._device).synchronize()
        if len(results) != len(wanted):
            raise ValueError(
                f"infer returned {len(results)} results for a batch of {len(wanted)} images: it "
                "should return one for each, in the order of the batch"
            )
        return list(results)
