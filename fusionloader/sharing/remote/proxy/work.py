"""What remote workers are to make for a loader: described once, the same for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from fusionloader.options.remote_settings import DataPlace, Offload
from fusionloader.sharing.remote.protocol import CodeSetup, RemoteFileKey
from fusionloader.transforms.plan.stages import Plan


@dataclass(frozen=True, slots=True)
class RemoteWork:
    """What the proxy of a loader has made, and how results become rows of its slots.

    Attributes:
        plan: that workers run; where results are 8-bit levels of a plan's elements, one of these.
            ``None`` where they run user code.
        row_bytes: of a result of the plan.
        convert: name and table of the elements that levels become; ``None`` for results that are
            rows as they come.
        pillow: release of Pillow whose pixels are wanted.
        max_pixels: of an image that is not left to Pillow, as its ``MAX_IMAGE_PIXELS``.
        image: height, width and channels of images that a dataset has in memory, else ``None``.
        known_files: of the dataset.
        data: where workers find the data.
        offload: what is left to them.
        tiny_size: samples in a tiny-batch.
        in_flight: mini-batches that are made at a time, at most.
        code: the user code that workers run, if they do.
    """

    plan: Plan | None
    row_bytes: int
    convert: tuple[str, bytes] | None
    pillow: str
    max_pixels: int | None
    image: tuple[int, int, int] | None
    known_files: tuple[RemoteFileKey, ...]
    data: DataPlace
    offload: Offload
    tiny_size: int
    in_flight: int
    code: CodeSetup | None = None
