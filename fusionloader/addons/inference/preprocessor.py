"""``Preprocessor``: encoded images in, tensors out, for a process that serves a model."""

from __future__ import annotations

import asyncio
import functools
import itertools
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

import torch
from PIL import Image as PillowImage
from PIL import ImageFile
from torch.utils.data import TensorDataset

from fusionloader.addons.inference.admission import Admission, AdmissionPlaces
from fusionloader.addons.inference.compiled_processors import (
    compile_image_processor,
    is_image_processor,
)
from fusionloader.addons.inference.dispatcher import Dispatcher
from fusionloader.addons.inference.errors import bad_image, raise_forked
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
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.sources.tables import layout_of
from fusionloader.engine.delivery.cuda_device import CudaDevice
from fusionloader.engine.delivery.page_locking import CudaPageLocking
from fusionloader.engine.manager.native_start import native_starter
from fusionloader.engine.manager.options import StartWorker
from fusionloader.system.finalizers import Finalizer
from fusionloader.transforms.executors.layout import Leaf
from fusionloader.transforms.plan.arguments import Transform
from fusionloader.transforms.plan.stages import Decode, Plan, is_random
from fusionloader.transforms.plan.transforms import compile_transform
from fusionloader.workers.native_worker import NativeWorkerConfig
from fusionloader.workers.pillow_formats import AddedFormats
from fusionloader.workers.prepared_worker import Info

_CHUNK = 32  # images of a list that are published together
_CHUNKS = 3  # of a list in flight; others' images come in between

_DECODE = ("exact", "fast")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A compiled transform: the plan, shape and dtype of a result, and a line for each part."""

    plan: Plan
    leaf: Leaf
    text: str


class Preprocessor:
    """Prepares encoded images for a model, in worker processes, as ``FusionLoader`` would.

    The pixels are torchvision's for the same transform, bit for bit. Threads and event loops may
    share one ``Preprocessor``. It belongs to the process that made it.

    Args:
        transform: a transform of torchvision (v1 or v2) or timm that is wholly compiled and ends in
            tensors of one shape; or an image processor of transformers that only resizes, crops,
            rescales and normalizes to one shape: results are its ``pixel_values``.
        num_workers: number of worker processes; by default the cores of this process.
        max_batch: largest number of images in a dynamic batch.
        max_delay: how long ``infer`` waits for other images after the first one of its batch:
            ``"2ms"``, or seconds. Without ``infer`` each image is delivered when it is ready.
        max_queued: largest number of unanswered images, 1 to 2048; by default at least 256.
        when_full: whether further images ``"wait"`` or ``"raise"`` ``QueueFull``.
        seed: seed of the random draws of ``transform``, required if it has any. The draws for an
            image depend on seed, epoch, key and transform alone. A ``FusionLoader`` with that seed
            gives the same result for the sample whose index is the key.
        device: CUDA device that tensors will be copied to: they are in page-locked memory, and
            ``infer`` gets batches on the device.
        decode: ``"exact"`` or ``"fast"``, as in ``FusionLoader``.
        infer: the model. It takes a batch [n, ...] and returns n results, which ``submit`` then
            returns instead of tensors. It runs in its own thread, without gradients.
        multiprocessing_context: start method or context of the workers; by default they are bare
            interpreters.
        timeout: seconds that an image may take in a worker, 0 for no limit. A longer one fails with
            ``TimeoutError``, and its worker is replaced.

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
        self._prepared = _compile_wholly(transform, decode, options.seed)
        self._has_model = infer is not None
        self._pid = os.getpid()
        self._keys = itertools.count()
        self._counters = Counters()
        locking = None
        if options.device is not None:
            locking = CudaPageLocking(CudaDevice(options.device), needed=False)
        start = functools.partial(_starter, options, self._prepared.plan)
        self._queue = RequestQueue(options, self._prepared.leaf, start, locking)
        try:
            self._admission = Admission(options.max_queued, when_full, self._queue.has_room)
            self._dispatcher = Dispatcher(
                self._queue, self._admission, self._counters, options, infer
            )
        except BaseException:  # as when no thread can be started
            self._queue.end()
            raise
        self._dispatcher.start()
        Finalizer(self, self._dispatcher.abandon, "this Preprocessor was garbage collected")

    # ---- lists ---------------------------------------------------------------------------------

    def __call__(
        self, images: Sequence[Image], *, keys: Sequence[int] | None = None, epoch: int = 0
    ) -> torch.Tensor:
        """Returns the tensor [N, ...] of a list of encoded images, in its order.

        Args:
            images: bytes-like objects.
            keys: keys of the images, for random draws; by default running numbers.
            epoch: epoch of the random draws.

        Raises:
            BadImage: an image cannot be prepared; ``place`` is its position in the list.
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
        listed = ListRequest()
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
        """Returns the future of an image's tensor, or of the result of ``infer`` for it.

        Futures are answered in the order of submission. Their callbacks run in the thread that
        answers them, and should be short. Cancelling a future frees its place.

        Args:
            image: bytes-like object, which may be changed after the call.
            key: key of the image, for random draws; by default a running number.
            epoch: epoch of the random draws.

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
        """Returns the result of ``submit(...)``, without blocking the event loop.

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
            future.cancel()  # it may have been published, but is not returned
            raise
        return future

    # ---- about it ------------------------------------------------------------------------------

    def stats(self) -> PreprocessorStats:
        """Returns a snapshot of the counters; any thread may call it."""
        queued, resident = self._admission.taken, self._queue.resident_bytes
        return self._counters.snapshot(queued, self._queue.totals(), resident)

    def explain(self) -> str:
        """Returns a line for each transform, and how images are served."""
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
        """Ends the workers; delivered tensors stay valid.

        Args:
            wait: whether queued images are answered first. Otherwise they raise
                ``PreprocessorClosed``, except those of batches that ``infer`` has begun.
        """
        if os.getpid() != self._pid:
            return  # in a forked child the workers are its parent's
        why = "this Preprocessor was closed"
        if self._admission.closed is None:
            self._admission.close(why)
        if wait:
            self._dispatcher.finish()
        else:
            self._dispatcher.abandon(why)
        self._dispatcher.join(wait)

    def __enter__(self) -> Preprocessor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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


def _compile_wholly(transform: Transform, decode: Decode, seed: int | None) -> _Prepared:
    """Compiles a transform.

    Raises:
        ValueError: a part of it is not compiled, its results are not tensors of one shape, or it
            draws random numbers and there is no seed.
    """
    if decode not in _DECODE:
        raise ValueError(f"decode should be one of {_DECODE}, not {decode!r}")
    compile = compile_image_processor if is_image_processor(transform) else compile_transform
    compiled = compile(transform, decode)
    plan, text = compiled.plan, compiled.explain()
    if compiled.tail is not None:
        raise ValueError(
            "a Preprocessor has workers that run no Python code, and a part of this transform is "
            f"not compiled. Leave it to the model, or use the others:\n{text}"
        )
    if plan.convert is None:
        raise ValueError(f"the transform should end in a tensor: add ToTensor() to\n{text}")
    if plan.height is None or plan.width is None:
        raise ValueError(
            "the results of this transform differ in size, and could not be put into one batch: "
            f"add a resize or crop to a fixed size to\n{text}"
        )
    if seed is None and is_random(plan.stages):
        raise ValueError(
            "this transform draws random numbers. Give a seed, by which each image's draws depend "
            f"on its key alone, or use the transform of the validation:\n{text}"
        )
    layout = layout_of(plan)
    assert not isinstance(layout, str)
    return _Prepared(plan, layout.leaves[0], text)


def _starter(options: PreprocessorOptions, plan: Plan, table: DatasetTable) -> StartWorker:
    """Returns a function that starts workers for a plan.

    Workers are bare interpreters, which a server with threads can start safely, unless a context of
    multiprocessing was given. ``table`` is empty, because images come with their requests.
    """
    context = options.context
    method = "spawn" if context is None else str(context.get_start_method())
    formats = AddedFormats() if method == "fork" else AddedFormats.here()
    config = NativeWorkerConfig(
        table_fd=table.fd,
        table_bytes=table.nbytes,
        plan=plan,
        on_error="raise",
        load_truncated=ImageFile.LOAD_TRUNCATED_IMAGES,
        max_pixels=PillowImage.MAX_IMAGE_PIXELS,
        formats=formats,
    )
    info: Info | None = None
    if formats.of_script:
        info = options.num_workers, 0, TensorDataset(torch.empty(0)), None, plan
    spawning = multiprocessing.get_context(method) if context is None else context
    return native_starter(config, spawning, method, info)
