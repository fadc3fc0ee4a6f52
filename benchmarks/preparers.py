"""Ways to prepare the images of requests: ours and those that servers have without it.

All resize to 256, crop the middle 224 x 224, convert to float32 and normalise. Each takes an
encoded image and returns a future of its tensor.
"""

from __future__ import annotations

import io
import multiprocessing
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from fusionloader.addons.inference import Preprocessor
from fusionloader.cli.measure.workloads import MEAN, SIDE, STD
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.transforms import compile_transform

RESIZED = 256
MAX_BATCH, MAX_DELAY_SECONDS = 32, 0.002  # of those that form batches

PIL_TRANSFORM = transforms.Compose(
    [
        transforms.Resize(RESIZED),
        transforms.CenterCrop(SIDE),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
)
TENSOR_TRANSFORM = v2.Compose(
    [
        v2.Resize(RESIZED, antialias=True),
        v2.CenterCrop(SIDE),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
)


def with_pillow(encoded: bytes) -> Tensor:
    """Prepares an image with Pillow and torchvision's v1 transforms."""
    with Image.open(io.BytesIO(encoded)) as image:
        prepared: Tensor = PIL_TRANSFORM(image.convert("RGB"))
    return prepared


def with_tensors(encoded: bytes) -> Tensor:
    """Prepares an image with torchvision's own decoder and v2 transforms."""
    data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    prepared: Tensor = TENSOR_TRANSFORM(decode_image(data, ImageReadMode.RGB))
    return prepared


def array_with_tensors(encoded: bytes) -> Any:
    """As ``with_tensors``: an array, which comes through a pipe sooner than a shared tensor."""
    return with_tensors(encoded).numpy()


def native_run() -> Callable[[bytes], None]:
    """Returns what runs the native plan in the calling thread, without a request around it."""
    executor = make_executor(compile_transform(PIL_TRANSFORM).plan)
    out = np.empty((3, SIDE, SIDE), np.float32)

    def run(encoded: bytes) -> None:
        executor.run(encoded, 0, 0, 0, 0, out)

    return run


class Preparer(ABC):
    """Prepares encoded images; also a context manager."""

    @abstractmethod
    def submit(self, encoded: bytes) -> Future[Any]:
        """Returns the future of an image's tensor or array, float32 [3, 224, 224]."""

    @abstractmethod
    def close(self) -> None:
        """Ends its threads and processes."""

    def __enter__(self) -> Preparer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class PoolPreparer(Preparer):
    """A function in a pool of ``concurrent.futures``."""

    def __init__(self, pool: Executor, function: Callable[[bytes], Any]) -> None:
        self._pool, self._function = pool, function

    def submit(self, encoded: bytes) -> Future[Any]:
        return self._pool.submit(self._function, encoded)

    def close(self) -> None:
        self._pool.shutdown()


class DaliPreparer(Preparer):
    """DALI's CPU backend behind a thread that forms batches, as Triton's dynamic batching does.

    DALI takes whole batches. A batch is closed when it is full or ``MAX_DELAY_SECONDS`` after its
    first image, and at once while another one is being prepared. Two pipelines take turns, so that
    the threads have work while a batch is handed out.
    """

    def __init__(self, workers: int) -> None:
        self._idle = deque(_dali_pipeline(workers) for _ in range(2))
        self._requests: queue.SimpleQueue[tuple[bytes, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="DALI batches")
        self._thread.start()

    def submit(self, encoded: bytes) -> Future[Any]:
        future: Future[Any] = Future()
        self._requests.put((encoded, future))
        return future

    def close(self) -> None:
        self._requests.put(None)
        self._thread.join()
        self._idle.clear()

    def _serve(self) -> None:
        running: deque[tuple[Any, list[Future[Any]]]] = deque()
        closed = False
        while not closed or running:
            batch, closed = ([], True) if closed else self._gather(wait=not running)
            if batch:
                pipeline = self._idle.popleft()
                arrays = [np.frombuffer(encoded, np.uint8) for encoded, _ in batch]
                pipeline.feed_input("encoded", arrays)
                pipeline.schedule_run()
                running.append((pipeline, [future for _, future in batch]))
            if running and not (batch and self._idle):
                pipeline, futures = running.popleft()
                (rows,) = pipeline.outputs()
                prepared = torch.from_numpy(np.array(rows.as_tensor()))  # DALI's memory is reused
                self._idle.append(pipeline)
                for future, row in zip(futures, prepared, strict=True):
                    future.set_result(row)

    def _gather(self, wait: bool) -> tuple[list[tuple[bytes, Future[Any]]], bool]:
        """Returns the next batch, and whether it is the last."""
        batch: list[tuple[bytes, Future[Any]]] = []
        deadline = None
        while len(batch) < MAX_BATCH:
            left = None if deadline is None else deadline - time.perf_counter()
            try:
                request = self._requests.get(wait and (left is None or left > 0), left)
            except queue.Empty:
                break
            if request is None:
                return batch, True
            batch.append(request)
            deadline = deadline or time.perf_counter() + MAX_DELAY_SECONDS
        return batch, False


def _dali_pipeline(workers: int) -> Any:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=MAX_BATCH, num_threads=workers, device_id=None, prefetch_queue_depth=1
    )
    def image_pipeline() -> Any:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        images = fn.resize(
            images, resize_shorter=RESIZED, interp_type=types.INTERP_LINEAR, antialias=True
        )
        return fn.crop_mirror_normalize(
            images,
            crop=(SIDE, SIDE),
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[level * 255 for level in MEAN],
            std=[level * 255 for level in STD],
        )

    pipeline = image_pipeline()
    pipeline.build()
    return pipeline


def _process_pool(workers: int) -> Executor:
    context = multiprocessing.get_context("forkserver")
    return ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,))


THREADS = "pillow-threads"  # what the others are compared with
OURS = "fusionloader"
PREPARERS: dict[str, Callable[[int], Preparer | Preprocessor]] = {
    THREADS: lambda workers: PoolPreparer(ThreadPoolExecutor(workers), with_pillow),
    "torchvision-threads": lambda workers: PoolPreparer(ThreadPoolExecutor(workers), with_tensors),
    "torchvision-processes": lambda workers: PoolPreparer(
        _process_pool(workers), array_with_tensors
    ),
    "dali-cpu": DaliPreparer,
    OURS: lambda workers: Preprocessor(
        PIL_TRANSFORM,
        num_workers=workers,
        max_batch=MAX_BATCH,
        max_delay=f"{MAX_DELAY_SECONDS * 1e3:g}ms",
    ),
}
"""By name: how each is started with so many worker threads or processes."""
