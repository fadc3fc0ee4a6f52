"""What the jobs of a group have to agree on, and why some loaders cannot share."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.epochs.identity import describe_loader
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.sharing.compatibility import digest_code, digest_repr, pillow_settings
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import Fields
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.executors.python import find_length
from fusionloader.transforms.plan.stages import Plan

WHOLE = (1 << 31) - 1
"""Samples in a tiny-batch if a worker makes a mini-batch whole."""


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
        has_paths = len(table) > 0 and table.image_shape is None and not table.is_remote
        relative = has_paths and not os.path.isabs(table.path(0))
        plans = plan, plan.convert and plan.convert.table  # which is not in the plan's ``repr``
        equal = {
            "dataset": f"{len(table)} samples, {table.digest()[:12]}",
            "working directory": os.getcwd() if relative else "any",
            "transforms": f"{len(plan.stages)} stages, {digest_repr(plans, nbytes=6)}",
            **_of_all(options),
            "tiny_batch_size": str(options.tiny_batch_size),
            "augment_per": options.augment_per,
        }
        size = options.tiny_batch_size
        group_size = size if options.augment_per == "tiny_batch" else 0
        leaves = [leaf.nbytes for leaf in layout.leaves]
        return cls(equal, {"tiny_size": size, "group_size": group_size, "leaves": leaves})

    @classmethod
    def of_code(cls, options: LoaderOptions, code: CodeDigests) -> Agreement:
        """Returns the agreement of a loader whose workers run user code, and make whole batches."""
        relative = _names_relative_path(options.dataset)
        equal = {
            "dataset": code.dataset,
            "working directory": os.getcwd() if relative else "any",
            "collate_fn": code.collate_fn,
            "versions": _versions(),
            **_of_all(options),
        }
        return cls(equal, {"tiny_size": WHOLE, "group_size": 0, "leaves": []})


@dataclass(frozen=True, slots=True)
class CodeDigests:
    """Names and digests of a loader's user code."""

    dataset: str
    collate_fn: str

    @classmethod
    def of(cls, options: LoaderOptions) -> CodeDigests:
        """Returns those of a loader's dataset and ``collate_fn``.

        Raises:
            ValueError: they cannot be compared between jobs.
        """
        dataset, collate = options.dataset, options.collate_fn
        samples, kind = find_length(dataset), type(dataset).__qualname__
        name = getattr(collate, "__qualname__", type(collate).__qualname__)
        try:
            digests = digest_code(dataset), digest_code(collate)
        except TypeError as error:
            raise ValueError(
                f"this loader cannot share its preparation (share={options.share!r}), because its "
                f"dataset or its collate_fn cannot be compared between jobs: {error}. Leave what "
                "cannot be pickled out of them until a worker needs it (__getstate__), or leave "
                "share out"
            ) from error
        return cls(f"{kind} of {samples} samples, {digests[0]}", f"{name}, {digests[1]}")


def _of_all(options: LoaderOptions) -> dict[str, str]:
    """Returns what jobs have to agree on, whatever makes their samples."""
    identity = describe_loader(options)
    return {
        "fusionloader": fd_messages.package_version(),
        "decode": options.decode,
        "strict": str(options.strict),
        "Pillow": str(pillow_settings()),
        "batch_size": str(identity["batch_size"]),
        "drop_last": str(options.drop_last),
        "sampler": _sampler(options),
        "seed": str(options.seed),
        "on_error": options.on_error,
    }


def _versions() -> str:
    """Returns the versions of what user code mostly runs on."""
    found = [f"Python {platform.python_version()}"]
    for name in ("numpy", "torch", "torchvision"):
        if name in sys.modules:
            found.append(f"{name} {sys.modules[name].__version__}")
    return ", ".join(found)


def _names_relative_path(value: Any, depth: int = 3) -> bool:
    """Whether a dataset has the relative path of an existing file in its attributes or lists."""
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        return bool(path) and not os.path.isabs(path) and os.path.exists(path)
    if depth == 0:
        return False
    parts = (
        value[:1] if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).values()
    )
    return any(_names_relative_path(each, depth - 1) for each in parts)


def check_shareable(options: LoaderOptions, why_not: str) -> None:
    """Raises ``ValueError`` if a loader has ``share`` set and cannot share.

    ``why_not`` says why no worker can make any of its mini-batches; it is empty if they can.
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
            "share mini-batches that any worker can make: leave share out, or see "
            "docs/scale/coordinated_prep.md"
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
