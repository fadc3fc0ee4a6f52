"""What the jobs of a group have to agree on, and why some loaders cannot share."""

from __future__ import annotations

import os
from collections.abc import Sized
from dataclasses import dataclass

from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.epochs.identity import describe_loader
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.sharing.compatibility import digest_repr, pillow_settings
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import Fields
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.plan.stages import Plan


@dataclass(frozen=True, slots=True)
class Agreement:
    """What has to be equal in all jobs of a group.

    Attributes:
        equal: values that are compared, by the names that error messages use.
        rows: the fields of ``RowSettings``.
    """

    equal: dict[str, str]
    rows: Fields

    @classmethod
    def of(
        cls, options: LoaderOptions, plan: Plan, layout: Layout, table: DatasetTable
    ) -> Agreement:
        """Returns the agreement of a loader with native workers."""
        identity = describe_loader(options)
        has_paths = len(table) > 0 and table.image_shape is None and not table.is_remote
        relative = has_paths and not os.path.isabs(table.path(0))
        equal = {
            "fusionloader": fd_messages.package_version(),
            "dataset": f"{len(table)} samples, {table.digest()[:12]}",
            "working directory": os.getcwd() if relative else "any",
            "transforms": f"{len(plan.stages)} stages, {digest_repr(plan, nbytes=6)}",
            "decode": options.decode,
            "strict": str(options.strict),
            "Pillow": str(pillow_settings()),
            "batch_size": str(identity["batch_size"]),
            "drop_last": str(options.drop_last),
            "sampler": _sampler(options),
            "seed": str(options.seed),
            "tiny_batch_size": str(options.tiny_batch_size),
            "augment_per": options.augment_per,
            "on_error": options.on_error,
        }
        size = options.tiny_batch_size
        group_size = size if options.augment_per == "tiny_batch" else 0
        leaves = [leaf.nbytes for leaf in layout.leaves]
        return cls(equal, {"tiny_size": size, "group_size": group_size, "leaves": leaves})


def check_shareable(options: LoaderOptions, why_not: str) -> None:
    """Raises ``ValueError`` if a loader has ``share`` set and cannot share.

    ``why_not`` says why native workers cannot make its samples; it is empty if they can.
    """
    if options.share is None:
        return
    if options.worker_init_fn is not None:
        why_not = "worker_init_fn may change what one job's workers make"
    if options.num_workers == 0:
        why_not = "num_workers=0 leaves it without workers to share"
    if why_not:
        raise ValueError(
            f"this loader cannot share its preparation (share={options.share!r}): {why_not}. Jobs "
            "share what native workers make of a compiled plan, of image folders and of pixels; "
            "leave share out, or see docs/scale/coordinated_prep.md"
        )


def total_batches(options: LoaderOptions) -> int:
    """Returns the number of mini-batches of an epoch, -1 if the sampler does not tell."""
    sampler = options.index_sampler
    try:
        return len(sampler) if isinstance(sampler, Sized) else -1
    except (TypeError, NotImplementedError):
        return -1


def _sampler(options: LoaderOptions) -> str:
    kinds = (options.batch_sampler, options.inner_sampler)
    names = [type(each).__qualname__ for each in kinds if each is not None]
    return f"{' of '.join(names)}, {total_batches(options)} mini-batches"
