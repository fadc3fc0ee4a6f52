"""The thread that answers requests and looks after the workers.

It sleeps until a worker has finished a mini-batch of the queue. Submitted images are answered in
the order of their submission, so it checks the oldest one only, and continues while that one is
done. Without ``infer`` an image is answered at once. With ``infer`` the image waits for its batch,
which is closed when it is full or due, and is then passed to the model's thread. Lists are checked
separately. Futures are answered without a lock, because their callbacks may submit images.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from fusionloader.addons.inference.admission import Admission
from fusionloader.addons.inference.errors import PreprocessorClosed, bad_image
from fusionloader.addons.inference.model_runner import Infer, ModelRunner
from fusionloader.addons.inference.options import PreprocessorOptions
from fusionloader.addons.inference.request_queue import RequestQueue
from fusionloader.addons.inference.requests import (
    Chunk,
    DynamicBatch,
    ImageFuture,
    ImageRequest,
    ListRequest,
    RequestRows,
)
from fusionloader.addons.inference.stats import Counters
from fusionloader.scheduler.batch_forming import BatchForming
from fusionloader.system.finalizers import ExitFinalizer

log = logging.getLogger("fusionloader.inference")

_IDLE_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0


class Dispatcher:
    """Owns the queue from the start of its thread to the thread's end.

    Attributes:
        thread: the thread that dispatches.
    """

    def __init__(
        self,
        queue: RequestQueue,
        admission: Admission,
        counters: Counters,
        options: PreprocessorOptions,
        infer: Infer | None,
    ) -> None:
        self._queue, self._admission, self._counters = queue, admission, counters
        self._max_batch = options.max_batch
        # Without a model a batch is only a slot to fill, and need not be complete.
        delay = math.inf if infer is None else options.max_delay
        self._forming = BatchForming(options.max_batch, delay)
        self._open: DynamicBatch | None = None
        self._batches: deque[DynamicBatch] = deque()  # for the model
        self._requests: deque[ImageRequest] = deque()
        # Taken out of the two queues above, and not yet answered or passed to the model.
        self._due: deque[ImageRequest] = deque()
        self._whole: deque[DynamicBatch] = deque()
        self._lists: set[ListRequest] = set()
        self._stop: str | None = None  # why nothing is answered any more
        self._finishing = False
        self._busy = 0.0
        self._runner: ModelRunner | None = None
        if infer is not None:
            self._runner = ModelRunner(infer, options.device, self._answer, self._cannot_go_on)
        self.thread = threading.Thread(target=self._run, name="fusionloader-dispatch", daemon=True)

    def start(self) -> None:
        """Starts the thread; ends the queue if that fails."""
        # Also if the Preprocessor is collected first: the exit kills threads in native code.
        self._at_exit = ExitFinalizer(self.thread, self._end_at_exit)
        try:
            if self._runner is not None and self._runner.thread.ident is not None:
                self._admission.makes_room(self._runner.thread.ident)
            self.thread.start()
        except BaseException:
            self.abandon("its thread could not be started")
            if self.thread.is_alive():
                self.thread.join()
            else:
                self._end()
            raise

    # ---- called by other threads ---------------------------------------------------------------

    def new_future(self) -> ImageFuture:
        return ImageFuture(self._cancelled)

    def rows_of_next(self) -> tuple[float, RequestRows | None]:
        """Returns the time, and new rows if the next image opens a batch; the lock is held.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """
        now = time.monotonic()
        if self._open is not None and not self._forming.is_due(now):
            return now, None
        return now, self._queue.new_rows(self._max_batch)

    def add(
        self, request: ImageRequest, now: float, rows: RequestRows | None
    ) -> tuple[RequestRows, int]:
        """Puts a request into its batch, and returns its row; the queue's lock is held.

        Args:
            request: the request for an image.
            now: the time that ``rows_of_next`` has returned.
            rows: the rows that it has returned.
        """
        if self._forming.is_due(now):
            self._close_batch()
        if self._open is None:
            assert rows is not None
            self._open = DynamicBatch(rows)
            if self._runner is not None:
                self._batches.append(self._open)
        request.batch, request.row = batch, row = self._open, self._forming.add(now)
        if self._forming.rows == 0:
            self._end_batch(row + 1)
        request.future.request = request
        self._requests.append(request)
        return batch.rows, row

    def _close_batch(self) -> None:
        rows = self._forming.rows
        self._forming.close()
        if self._open is not None:
            self._end_batch(rows)

    def _end_batch(self, size: int) -> None:
        assert self._open is not None
        self._open.size = size
        self._counters.batch(size)
        self._open = None

    def _cancelled(self, request: ImageRequest) -> None:
        with self._queue.lock:
            self._queue.withdraw(request.job)
        self._admission.give_back(request.places)

    @contextlib.contextmanager
    def listing(self, listed: ListRequest) -> Iterator[None]:
        """Has the thread check the chunks of a list within the block."""
        try:
            with self._queue.lock:
                self._lists.add(listed)
            yield
        finally:  # chunks in flight are still checked, because their slots have to be freed
            listed.published = True
            with self._queue.lock:
                self._drop_finished_lists()

    def _drop_finished_lists(self) -> None:
        self._lists = {each for each in self._lists if each.chunks or not each.published}

    def finish(self) -> None:
        """Ends the thread when all admitted requests are answered."""
        self._finishing = True
        self._queue.wake()

    def abandon(self, why: str) -> None:
        """Ends the thread now: unanswered requests raise PreprocessorClosed.

        It takes no lock, so that a finalizer may call it.
        """
        if self._stop is None:
            self._stop = why
        self._queue.wake()

    def _end_at_exit(self) -> None:
        if self.thread.is_alive():
            self.abandon("the interpreter exits")
        self.join(wait=False)

    def join(self, wait: bool) -> None:
        """Waits for the threads; without ``wait`` for at most 5 s for ``infer``."""
        current = threading.current_thread()
        if self.thread is not current:
            self.thread.join()
        if self._runner is not None and self._runner.thread is not current:
            self._runner.thread.join(None if wait else _PATIENCE_SECONDS)

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        self._admission.makes_room(threading.get_ident())
        try:
            while self._stop is None and not self._is_finished():
                seen = self._queue.word()
                if self._queue.look():
                    self._trim_if_idle()
                self._collect()
                left = self._forming.deadline - time.monotonic()
                if self._stop is None and not self._is_finished():
                    self._queue.sleep(seen, left)
        except BaseException as error:
            self._cannot_go_on(error)
        try:
            why = self._stop or "this Preprocessor was closed"
            self._admission.close(why, also_begun=True)
            self._fail_all(why)
        finally:
            self._end()

    def _cannot_go_on(self, error: BaseException) -> None:
        """Ends this thread and fails unanswered requests; the model's thread calls it, too."""
        is_reason = isinstance(error, PreprocessorClosed)
        self._stop = str(error) if is_reason else f"this Preprocessor cannot go on: {error!r}"
        log.error("the Preprocessor cannot go on", exc_info=error)
        self._queue.wake()

    def _end(self) -> None:
        try:
            if self._runner is not None:
                self._runner.finish()
            self._queue.end()
        finally:  # last: a process that exits waits for the threads until then
            self._at_exit.detach()

    def _is_finished(self) -> bool:
        if not self._finishing:
            return False
        with self._queue.lock:
            self._drop_finished_lists()
            waiting = self._lists or self._requests or self._batches
        return not waiting and self._admission.taken == 0

    def _trim_if_idle(self) -> None:
        now = time.monotonic()
        if self._admission.taken:
            self._busy = now
        elif self._busy and now - self._busy > _IDLE_SECONDS:
            self._busy = 0.0
            with self._queue.lock:
                self._queue.trim()

    def _collect(self) -> None:
        with self._queue.lock:
            self._queue.check_open()
            any_done = self._take_done()
            self._take_whole_batches()
            chunks = self._take_chunks()
        while self._due:
            self._answer_now(self._due[0])
            self._due.popleft()
        while self._whole:
            self._give_to_model(self._whole[0])
            self._whole.popleft()
        for listed, chunk in chunks:
            listed.chunk_done(chunk)
            self._admission.give_back(chunk.places)
        if chunks:
            with self._queue.lock:
                self._drop_finished_lists()
        if any_done:
            self._admission.look_again()

    def _take_done(self) -> bool:
        any_done = False
        while self._requests and self._queue.is_done(self._requests[0].job):
            request, any_done = self._requests[0], True
            self._queue.take_out(request.job)
            waiting = self._due if self._runner is None else request.dynamic_batch.done
            waiting.append(request)
            self._requests.popleft()
        return any_done

    def _take_whole_batches(self) -> None:
        if self._finishing or self._forming.is_due(time.monotonic()):
            self._close_batch()
        while self._batches and self._batches[0].is_complete:
            self._whole.append(self._batches[0])
            self._batches.popleft()

    def _take_chunks(self) -> list[tuple[ListRequest, Chunk]]:
        taken = []
        for listed in self._lists:
            for chunk in itertools.takewhile(self._is_done, listed.chunks):
                self._queue.take_out(chunk.job)
                taken.append((listed, chunk))
        return taken

    def _is_done(self, chunk: Chunk) -> bool:
        return self._queue.is_done(chunk.job)

    def _answer_now(self, request: ImageRequest) -> None:
        if not request.future.set_running_or_notify_cancel():
            self._answer(request, None, None)
        elif failure := request.job.failures.get(0):
            self._answer(request, None, bad_image(failure, request.job.keys[0]))
        else:
            try:
                row = request.dynamic_batch.rows.row(request.row)
            except Exception as error:  # such as MemoryError; other requests are still answered
                self._answer(request, None, error)
            else:
                self._answer(request, row, None)

    def _give_to_model(self, batch: DynamicBatch) -> None:
        assert self._runner is not None
        for request in [each for each in batch.done if each.job.failures]:
            self._answer_now(request)
            batch.done.remove(request)
        self._runner.give(batch)

    def _answer(self, request: ImageRequest, result: Any, error: BaseException | None) -> None:
        """Answers a request whose future is running, or was cancelled."""
        future = request.future
        future.request = None
        if future.cancelled():
            self._counters.cancelled()
        else:
            self._counters.answered(time.perf_counter() - request.begun, error is not None)
            try:
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            except BaseException as raised:  # futures log an Exception of a callback themselves
                if future.done():
                    log.exception("a callback of the future of an image raised")
                else:
                    future.set_exception(raised)
        self._admission.give_back(request.places)
        if self._finishing:
            self._queue.wake()

    def _fail_all(self, why: str) -> None:
        with self._queue.lock:
            self._queue.refusal = why
            lists = list(self._lists)
            left = [] if self._runner is None else self._runner.left()
            batches = (*left, *self._whole, *self._batches)
            of_batches = (each for batch in batches for each in batch.done)
            requests = [*self._due, *of_batches, *self._requests]
        for request in requests:
            try:
                self._fail(request, why)
            except BaseException:
                log.exception("a request is not answered")
        for listed in lists:
            listed.fail(PreprocessorClosed(why))
        for each in (self._due, self._whole, self._batches, self._requests):
            each.clear()

    def _fail(self, request: ImageRequest, why: str) -> None:
        future = request.future
        if future.done() and not future.cancelled():
            return
        is_running = future.running() or future.set_running_or_notify_cancel()
        self._answer(request, None, PreprocessorClosed(why) if is_running else None)
