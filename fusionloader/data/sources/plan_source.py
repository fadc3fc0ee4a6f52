"""Makes samples with a compiled plan, one at a time, and runs the Python code after it."""

from __future__ import annotations

import contextlib
import io
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fusionloader._native import Executor, RunStatus
from fusionloader.data.deferred import activity
from fusionloader.data.deferred.composed.compose import run_listed
from fusionloader.data.deferred.core import deferred_core, make_image, wrap_pixels
from fusionloader.data.sources.arrays import PixelArrays
from fusionloader.data.sources.datasets import Compiled, compile_dataset
from fusionloader.data.sources.nesting import find_leaf, find_leaves
from fusionloader.transforms.executors.global_generators import preserved_generators
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.python import (
    Dataset,
    DatasetSource,
    SampleKey,
    Seeding,
    Source,
    find_length,
    seed_generators,
)
from fusionloader.transforms.executors.results import converted, result_array, result_like
from fusionloader.transforms.plan.image_info import keeps_info
from fusionloader.transforms.plan.parts import FIRST_STAGE, PASSES, PYTHON, READ, Spent
from fusionloader.transforms.plan.stages import Plan, RandomCrop


class _CompiledSource:
    """Base of sources that are made of a compiled dataset.

    Attributes:
        dataset: the dataset, or its copy in a worker.
    """

    def __init__(self, dataset: Dataset, compiled: Compiled, in_worker: bool) -> None:
        self.dataset = dataset
        self._compiled, self._in_worker = compiled, in_worker

    def __reduce__(self) -> tuple[type[_CompiledSource], tuple[Dataset, Compiled, bool]]:
        # Without executors, which belong to one process.
        return type(self), (self.dataset, self._compiled, self._in_worker)

    @property
    def has_tail(self) -> bool:
        """Whether Python code of the user follows on images."""
        return self._compiled.has_tail

    def renewed(self) -> Source:
        """Returns a source for the dataset's present transforms, with another plan or none."""
        plan = self._compiled.plan
        assert plan is not None
        compiled = compile_dataset(self.dataset, plan.decode, plan.strict)
        if compiled.plan is None:
            return DatasetSource(self.dataset)
        return make_source(self.dataset, compiled, self._in_worker)

    def name(self, key: SampleKey) -> str:
        return self._compiled.name(key.index)

    def count(self) -> int:
        return find_length(self.dataset)


class PlanSource(_CompiledSource):
    """Decodes and transforms natively, then runs the Python tail and the target's transform.

    The global generators are seeded for the Python code of each sample. Outside worker processes
    (``in_worker=False``) they belong to the user, and their state is restored afterwards.
    """

    def __init__(self, dataset: Dataset, compiled: Compiled, in_worker: bool = True) -> None:
        super().__init__(dataset, compiled, in_worker)
        assert compiled.plan is not None
        self.seeding = Seeding()
        self._plan: Plan = compiled.plan
        self._sized = self._plan.height is not None and self._plan.width is not None
        # RandomCrop pads, and makes a new image, even where its window is within the old one.
        stages = self._plan.stages
        self._pads = any(isinstance(each, RandomCrop) and any(each.padding) for each in stages)
        self._made: Executor | None = None
        self._arrays: PixelArrays | None = None
        self._seconds = {READ: 0.0, PYTHON: 0.0}
        self._read_bytes = 0

    def load(self, key: SampleKey) -> Any:
        """Returns ``(image, target)`` like ``dataset[index]``."""
        compiled = self._compiled
        start = time.perf_counter()
        stored, target = self._read(key.index)
        self._seconds[READ] += time.perf_counter() - start
        self._read_bytes += len(stored) if isinstance(stored, bytes) else 0
        is_for_user = compiled.tail is not None and self._plan.convert is None
        if is_for_user and not isinstance(stored, np.ndarray):
            image = self._image_for_user_code(stored, key)
        else:
            image = self._image(stored, key)
        if compiled.tail is None and compiled.target_transform is None:
            return image, target
        start = time.perf_counter()
        with contextlib.nullcontext() if self._in_worker else preserved_generators():
            seed_generators(key, self.seeding)
            if compiled.tail is not None:
                image = run_listed(compiled.tail, image) if is_for_user else compiled.tail(image)
            if compiled.target_transform is not None:
                target = compiled.target_transform(target)
        self._seconds[PYTHON] += time.perf_counter() - start
        return image, target

    def _read(self, index: Any) -> tuple[bytes | npt.NDArray[np.uint8], Any]:
        if self._compiled.kind != "pixels":
            return self._compiled.read(index)
        if self._arrays is None:  # once, since checking a list of targets takes long
            self._arrays = self._compiled.arrays()
        return np.ascontiguousarray(self._arrays.images[index]), self._arrays.target(index)

    def take_spent(self) -> Spent:
        """Returns the time and the bytes read since the last call."""
        if self._made is None:
            return Spent()
        spent = Spent(self._made.take_part_seconds(), self._read_bytes)
        for part, seconds in self._seconds.items():
            spent.part_seconds[part] += seconds
            self._seconds[part] = 0.0
        self._read_bytes = 0
        return spent

    @property
    def _executor(self) -> Executor:
        if self._made is None:
            self._made = make_executor(self._plan)
        self._made.max_pixels = Image.MAX_IMAGE_PIXELS  # the user may change it at any time
        return self._made

    def _image_for_user_code(self, stored: bytes, key: SampleKey) -> Image.Image:
        """Returns the PIL image that the native stages make, with the ``info`` it has after them.

        If deferral is active it is a deferred image, so that user code continues natively.
        """
        with Image.open(io.BytesIO(stored)) as file:
            if not self._plan.stages and self._plan.decode == "exact" and self._plan.strict:
                core = deferred_core(file.convert("RGB")) if activity.is_active() else None
                if core is not None:
                    return make_image(core, _read_info(file))
            draws = (key.seed, key.epoch, key.key, key.occurrence)
            pixels = self._pixels(stored, draws, key.group)
            operations = self._executor.draw(*draws, *file.size, key.group)
            has_info = not self._pads and keeps_info(operations, *file.size, pixels.shape[2] == 3)
            info = _read_info(file) if has_info else {}
            if activity.is_active() and pixels.shape[2] == 3:
                return wrap_pixels(pixels, info)
            image = _as_image(pixels)
            image.info = info
            return image

    def _image(self, stored: bytes | npt.NDArray[np.uint8], key: SampleKey) -> Any:
        draws = (key.seed, key.epoch, key.key, key.occurrence)
        group = key.group
        convert = self._plan.convert
        if convert is None:
            return _as_image(self._pixels(stored, draws, group))
        if not self._sized and self._plan.works_on_floats:
            return torch.from_numpy(self._pixels(stored, draws, group).copy())
        if not self._sized:
            return converted(_as_image(self._pixels(stored, draws, group)), self._plan)
        image = result_like(self._plan)
        out = image.view(torch.uint8).numpy().reshape(-1).data
        if isinstance(stored, np.ndarray):
            self._executor.run_pixels(stored.data, *draws, out, group)
        elif self._executor.run(stored, *draws, out, group) is not RunStatus.OK:
            self._executor.run_pixels(decode_with_pillow(stored).data, *draws, out, group)
        return image

    def _pixels(
        self, stored: bytes | npt.NDArray[np.uint8], draws: tuple[int, int, int, int], group: int
    ) -> npt.NDArray[Any]:
        """Returns the result of the stages as ``result_array`` does."""
        done = None
        if not isinstance(stored, np.ndarray):
            done = self._executor.pixels(stored, *draws, group)
        if done is None:
            pixels = stored if isinstance(stored, np.ndarray) else decode_with_pillow(stored)
            done = self._executor.pixels_of_pixels(pixels.data, *draws, group)
        result, size = done
        return result_array(result, size, self._plan)


class JoinedSource(_CompiledSource):
    """Makes samples of datasets that have a plan each."""

    def __init__(self, dataset: Dataset, compiled: Compiled, in_worker: bool = True) -> None:
        super().__init__(dataset, compiled, in_worker)
        self._sources = [PlanSource(dataset, part, in_worker) for part in compiled.parts]
        leaves = find_leaves(compiled.images)
        self._by_leaf = {id(leaf): each for leaf, each in zip(leaves, self._sources, strict=True)}

    @property
    def seeding(self) -> Seeding:
        return self._sources[0].seeding

    @seeding.setter
    def seeding(self, seeding: Seeding) -> None:
        for source in self._sources:
            source.seeding = seeding

    def load(self, key: SampleKey) -> Any:
        """Returns ``(image, target)`` like ``dataset[index]``."""
        leaf, index = find_leaf(self._compiled.images, key.index)
        return self._by_leaf[id(leaf)].load(key.replaced(index))

    def take_spent(self) -> Spent:
        """Returns the time and the bytes read since the last call, of all parts."""
        spent = sum((source.take_spent() for source in self._sources), Spent())
        # Stages have other numbers in each plan, so that their time is counted with the passes'.
        rest = spent.part_seconds[FIRST_STAGE:]
        if rest:
            spent.part_seconds = spent.part_seconds[:FIRST_STAGE]
            spent.part_seconds[PASSES] += sum(rest)
        return spent


PlannedSource = PlanSource | JoinedSource


def make_source(dataset: Dataset, compiled: Compiled, in_worker: bool = True) -> PlannedSource:
    """Returns the source of a compiled dataset's samples."""
    if compiled.parts:
        return JoinedSource(dataset, compiled, in_worker)
    return PlanSource(dataset, compiled, in_worker)


def _as_image(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    height, width, channels = pixels.shape
    mode = "L" if channels == 1 else "RGB"
    return Image.frombytes(mode, (width, height), pixels.reshape(-1).data)


def _read_info(file: Image.Image) -> dict[str | tuple[int, int], Any]:
    """Returns Pillow's ``info`` of an open file: EXIF, resolution, color profile."""
    # Formats other than JPEG may have entries after the pixels, and conversion may drop some.
    source = file if file.format == "JPEG" else file.convert("RGB")
    return dict(source.info)


def decode_with_pillow(encoded: bytes) -> npt.NDArray[np.uint8]:
    """Returns uint8 pixels, height x width x 3, like torchvision's default loader.

    Raises:
        PIL.UnidentifiedImageError: the bytes are not an image.
        OSError: the image is truncated.
        PIL.Image.DecompressionBombError: the image is larger than Pillow accepts.
    """
    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image.convert("RGB"))
