"""``Preprocessor``: encoded images in, tensors out, for a process that serves a model."""

from __future__ import annotations

import asyncio
import atexit
import functools
import itertools
import os
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, NoReturn

import torch

from fusionloader.addons.inference.admission import Admission, AdmissionPlaces
from fusionloader.addons.inference.compiled import compile_wholly
from fusionloader.addons.inference.dispatcher import Dispatcher
from fusionloader.addons.inference.errors import PreprocessorClosed, bad_image, raise_forked
from fusionloader.addons.inference.model_runner import Infer
from fusionloader.addons.inference.options import PreprocessorOptions, WhenFull, check_number
from fusionloader.addons.inference.request_queue import Image, RequestQueue, Target
from fusionloader.addons.inference.requests import (
    Chunk,
    ImageRequest,
    ListRequest,
    RequestJob,
    RequestRows,
)
from fusionloader.addons.inference.stats import Counters, PreprocessorStats
from fusionloader.addons.inference.worker_start import starter
from fusionloader.engine.delivery.cuda_device import CudaDevice
from fusionloader.engine.delivery.page_locking import CudaPageLocking
from fusionloader.transforms.plan.arguments import Transform
from fusionloader.transforms.plan.stages import Decode

_CHUNK = 32  # images of a list that are published together
_CHUNKS = 3  # of a list in flight; others' images come in between

_running: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


class Preprocessor:
    """Prepares encoded images for a model, in worker processes, as ``FusionLoader`` would.

    The pixels are torchvision's for the same transform, bit for bit. Threads and event loops may
    share one ``Preprocessor``. It belongs to the process that made it.

    Args:
        transform: of torchvision (v1 or v2) or timm, wholly compiled, with tensors of one shape.
        num_workers: processes; by default as many as there are cores for this process.
        max_batch: images in a dynamic batch at most.
        max_delay: how long ``infer`` waits for other images after the first one of its batch:
            ``"2ms"``, or seconds. Without ``infer`` each image is delivered when it is ready.
        max_queued: images that may be unanswered at a time, by default at least 256.
        when_full: whether more images ``"wait"`` or ``"raise"`` ``QueueFull``.
        seed: of the random draws of ``transform``, if it has any. What an image gets depends on
            seed, epoch, key and transform alone; a ``FusionLoader`` of that seed gives the same to
            the sample whose index is the key.
        device: a CUDA device that tensors will be copied to: they are in page-locked memory then,
            and ``infer`` gets batches on the device.
        decode: ``"exact"`` or ``"fast"``, as ``FusionLoader`` has it.
        infer: the model: gets a batch [n, ...] and returns n results, which ``submit`` then gives
            instead of tensors. It runs in a thread of its own.
        multiprocessing_context: how workers are started, if not as bare interpreters.
        timeout: seconds that an image may take in a worker, 0 for any; it fails then with
            ``TimeoutError``, and the worker is replaced.

    Raises:
        ValueError: the transform is not wholly compiled or random without a seed, or an option is
            out of its range; the message says which.
    """

    def __init__(
        self,
        transform: Transform,
        *,
        num_workers: int | None = None,
        max_batch: int = 32,
        max_delay: float | str = "2ms",
        max_queued: int | None = None,
        when_full: WhenFull = "wait",
        seed: int | None = None,
        device: torch.device | str | int | None = None,
        decode: Decode = "exact",
        infer: Infer | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        timeout: float | str = 0,
    ) -> None:
        self._options = options = PreprocessorOptions.of(
            num_workers=num_workers,
            max_batch=max_batch,
            max_delay=max_delay,
            max_queued=max_queued,
            when_full=when_full,
            seed=seed,
            device=device,
            timeout=timeout,
            multiprocessing_context=multiprocessing_context,
        )
        if infer is not None and not callable(infer):
            raise ValueError(f"infer should be a function of a batch, not {infer!r}")
        self._prepared = compile_wholly(transform, decode, options.seed)
        self._has_model = infer is not None
        self._pid = os.getpid()
        self._keys = itertools.count()
        self._counters = Counters()
        locking = None
        if options.device is not None:
            locking = CudaPageLocking(CudaDevice(options.device), needed=False)
        start = functools.partial(starter, options, self._prepared.plan)
        self._queue = RequestQueue(options, self._prepared.leaf, start, locking)
        try:
            self._admission = Admission(options.max_queued, when_full, self._queue.has_room)
            self._dispatcher = Dispatcher(
                self._queue, self._admission, self._counters, options, infer
            )
        except BaseException:  # such as that no thread can be started
            self._queue.end()
            raise
        self._dispatcher.start()
        _running.add(self._dispatcher)
        forgotten = "this Preprocessor was garbage collected"
        self._finalizer = weakref.finalize(self, self._dispatcher.abandon, forgotten)
        self._finalizer.atexit = False  # _end_all does it, and waits

    # ---- lists ---------------------------------------------------------------------------------

    def __call__(
        self,
        images: Sequence[Image],
        *,
        keys: Sequence[int] | None = None,
        epoch: int = 0,
    ) -> torch.Tensor:
        """Returns the tensor [N, ...] of a list of encoded images, in its order.

        Args:
            images: bytes-like objects, as many as there are.
            keys: of the images, for random draws; by default running numbers.
            epoch: for random draws.

        Raises:
            BadImage: an image cannot be prepared; ``place`` says which, the first one of several.
            PreprocessorClosed: it is closed.
            QueueFull: there is no place for the first image, and ``when_full="raise"``.
        """
        begun = time.perf_counter()
        self._check_process()
        check_number("epoch", epoch)
        images = list(images)
        for image in images:
            _check_image(image)
        numbers = self._numbers(images, keys)
        if not self._admission.may_wait():
            raise RuntimeError(
                "a list of images is waited for, and this thread is the one that would answer: "
                "call from another thread than that of a callback or of infer"
            )
        listed = ListRequest(begun)
        if not images:
            return torch.empty((0, *self._prepared.leaf.shape), dtype=self._prepared.leaf.dtype)
        try:
            rows = self._prepare_list(listed, images, numbers, epoch)
        except Exception:
            self._counters.answered(time.perf_counter() - begun, True, len(images))
            raise
        self._counters.answered(time.perf_counter() - begun, False, len(images))
        return rows.batch(len(images))

    def _prepare_list(
        self, listed: ListRequest, images: list[Image], keys: Sequence[int], epoch: int
    ) -> RequestRows:
        with self._dispatcher.listing(listed):
            first = 0
            while first < len(images) and not listed.failures:
                listed.wait(_CHUNKS - 1)
                places = AdmissionPlaces()
                try:
                    most = min(_CHUNK, len(images) - first)
                    count = self._admission.take(places, most, begun=first > 0)
                    if listed.rows is None:
                        with self._queue.lock:
                            listed.rows = self._queue.new_rows(len(images))
                    some = slice(first, first + count)
                    chunk = Chunk(RequestJob(keys[some]), first, places)
                    self._publish_chunk(listed, listed.rows, chunk, images[some], epoch)
                except BaseException:
                    self._admission.give_back(places)
                    raise
                first += count
            listed.wait(0)
        if listed.failures:
            place = min(listed.failures)
            failure, key = listed.failures[place]
            raise bad_image(failure, key, place)
        assert listed.rows is not None
        return listed.rows

    def _publish_chunk(
        self, listed: ListRequest, rows: RequestRows, chunk: Chunk, images: list[Image], epoch: int
    ) -> None:
        def target() -> tuple[RequestRows, int]:
            listed.chunks.append(chunk)
            return rows, chunk.first

        self._queue.publish(chunk.job, images, epoch, lambda: target)

    def _numbers(self, images: list[Image], keys: Sequence[int] | None) -> list[int]:
        if keys is None:
            return list(itertools.islice(self._keys, len(images)))
        if len(keys) != len(images):
            raise ValueError(f"there are {len(images)} images and {len(keys)} keys")
        return [check_number("a key", key) for key in keys]

    # ---- one by one ----------------------------------------------------------------------------

    def submit(self, image: Image, *, key: int | None = None, epoch: int = 0) -> Future[Any]:
        """Returns the future of an image's tensor, or of what ``infer`` makes of it.

        Futures are answered in the order of submission. A callback of one runs in the thread that
        answers them, and should be short. Cancelling one frees its place.

        Args:
            image: bytes-like; it may be changed when this has returned.
            key: of the image, for random draws; by default a running number.
            epoch: for random draws.

        Raises:
            PreprocessorClosed: it is closed.
            QueueFull: there is no place, and ``when_full="raise"``.
        """
        begun = time.perf_counter()
        number, places = self._checked(image, key, epoch), AdmissionPlaces()
        try:
            self._admission.take(places)
            return self._submit_admitted(image, number, epoch, begun, places)
        except BaseException:
            self._admission.give_back(places)
            raise

    async def asubmit(self, image: Image, *, key: int | None = None, epoch: int = 0) -> Any:
        """Returns what ``submit(...)`` gives, to be awaited; waiting does not block the event loop.

        Raises:
            BadImage: the image cannot be prepared.
            PreprocessorClosed: it is closed.
            QueueFull: there is no place, and ``when_full="raise"``.
        """
        begun = time.perf_counter()
        number, places = self._checked(image, key, epoch), AdmissionPlaces()
        try:
            await self._admission.take_async(places)
            future = self._submit_admitted(image, number, epoch, begun, places)
        except BaseException:
            self._admission.give_back(places)
            raise
        return await asyncio.wrap_future(future)

    def _checked(self, image: Image, key: int | None, epoch: int) -> int:
        self._check_process()
        _check_image(image)
        check_number("epoch", epoch)
        return next(self._keys) if key is None else check_number("key", key)

    def _submit_admitted(
        self, image: Image, key: int, epoch: int, begun: float, places: AdmissionPlaces
    ) -> Future[Any]:
        future = self._dispatcher.new_future()
        request = ImageRequest(RequestJob((key,)), future, begun, self, places)

        def prepare() -> Target:
            return functools.partial(
                self._dispatcher.add, request, *self._dispatcher.rows_of_next()
            )

        try:
            self._queue.publish(request.job, (image,), epoch, prepare)
        except BaseException:
            future.cancel()  # it may have been published, and nobody gets the future
            raise
        return future

    # ---- about it ------------------------------------------------------------------------------

    def stats(self) -> PreprocessorStats:
        """Returns what was counted until now; any thread may ask."""
        queued, resident = self._admission.taken, self._queue.resident_bytes
        return self._counters.snapshot(queued, self._queue.totals(), resident)

    def explain(self) -> str:
        """Returns a line per transform, and how images are served."""
        options, leaf = self._options, self._prepared.leaf
        shape = " x ".join(map(str, leaf.shape))
        lines = [
            self._prepared.text,
            f"images become {str(leaf.dtype).removeprefix('torch.')} {shape}, made by "
            f"{options.num_workers} native workers",
        ]
        if self._has_model:
            lines.append(
                f"infer gets batches of up to {options.max_batch}, closed "
                f"{options.max_delay * 1000:g} ms after their first image"
            )
        lines.append(f"up to {options.max_queued} images are queued, then: {options.when_full}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        options = self._options
        state = "" if self._admission.closed is None else ", closed"
        return (
            f"Preprocessor(num_workers={options.num_workers}, max_batch={options.max_batch}, "
            f"queued={self._admission.taken}{state})"
        )

    # ---- the end -------------------------------------------------------------------------------

    def close(self, *, wait: bool = True) -> None:
        """Ends the workers; tensors that were delivered stay valid.

        Args:
            wait: answer what is queued first. Otherwise that raises ``PreprocessorClosed``, but for
                batches that ``infer`` has already been given.
        """
        if os.getpid() != self._pid:
            return  # in a forked child the workers are its parent's
        why = PreprocessorClosed("this Preprocessor was closed")
        if self._admission.closed is None:
            self._admission.close(why)
        if wait:
            self._dispatcher.finish()
        else:
            self._dispatcher.abandon(str(why))
        self._dispatcher.join(wait)

    def __enter__(self) -> Preprocessor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(wait=kind is None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Preprocessor belongs to its process: make one in each")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise_forked(self._pid)


def _check_image(image: object) -> None:
    try:
        memoryview(image)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"an encoded image is bytes or another bytes-like object, not {type(image).__name__}: "
            "read the file first"
        ) from None


@atexit.register
def _end_all() -> None:
    """Ends what is still running, before threads that sleep in native code would be killed."""
    for dispatcher in list(_running):
        dispatcher.end_at_exit()
