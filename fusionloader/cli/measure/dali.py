"""DALI as a contender, set up as its documentation advises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fusionloader.cli.measure.protocol import Running
from fusionloader.cli.measure.workloads import MEAN, SIDE, STD


class DaliBatches:
    """DALI's iterator as an iterable of (images, targets), epoch after epoch.

    They are on a CUDA device, or with ``None`` for its index on the CPU.
    """

    def __init__(
        self,
        root: Path,
        workload: str,
        batch_size: int,
        threads: int,
        device_id: int | None,
        drop_last: bool = True,
    ) -> None:
        from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

        pipeline = _pipeline(root, workload, batch_size, threads, device_id)
        pipeline.build()
        policy = LastBatchPolicy.DROP if drop_last else LastBatchPolicy.PARTIAL
        self._iterator = DALIClassificationIterator(
            pipeline, reader_name="files", last_batch_policy=policy, auto_reset=True
        )

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for outputs in self._iterator:
            yield outputs[0]["data"], outputs[0]["label"].squeeze(-1).long()

    def close(self) -> None:
        """Ends its threads, which prefetch."""
        del self._iterator


def start_dali(root: Path, workload: str, batch_size: int, threads: int) -> Running:
    """Starts a pipeline with ROI decode, fused crop-mirror-normalize and DALI's iterator."""
    batches = DaliBatches(root, workload, batch_size, threads, None, drop_last=False)
    return Running(lambda: (len(labels) for _, labels in batches), batches.close)


def _pipeline(
    root: Path, workload: str, batch_size: int, threads: int, device_id: int | None
) -> Any:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug import auto_augment, rand_augment, trivial_augment

    def augmented(images: Any) -> Any:
        if workload == "randaugment":
            return rand_augment.rand_augment(images, n=2, m=9, shape=[SIDE, SIDE])
        if workload == "autoaugment":
            return auto_augment.auto_augment_image_net(images, shape=[SIDE, SIDE])
        if workload == "trivial":
            return trivial_augment.trivial_augment_wide(images, shape=[SIDE, SIDE])
        return images

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=batch_size,
        num_threads=threads,
        device_id=device_id,
        seed=0,
        enable_conditionals=workload != "default",
    )
    def image_pipeline() -> Any:
        encoded, labels = fn.readers.file(
            file_root=str(root), random_shuffle=True, initial_fill=1024, name="files"
        )
        images = fn.decoders.image_random_crop(
            encoded,
            device="cpu" if device_id is None else "mixed",
            output_type=types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            num_attempts=10,
        )
        images = fn.resize(
            images, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR, antialias=True
        )
        mirror = fn.random.coin_flip(probability=0.5)
        if workload == "default":
            flip = mirror
        else:
            # The policies come after the flip, as in torchvision, so it cannot be fused.
            images = augmented(fn.flip(images, horizontal=mirror))
            flip = 0
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[level * 255 for level in MEAN],
            std=[level * 255 for level in STD],
            mirror=flip,
        )
        return images, labels

    return image_pipeline()
