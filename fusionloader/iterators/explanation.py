"""What ``explain()`` says: what was compiled and what was not, and why."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusionloader.cache import kept_files
from fusionloader.delivery import level_rows
from fusionloader.gpu import eligibility
from fusionloader.iterators.deferral import defers
from fusionloader.options import LoaderOptions
from fusionloader.samplers.epoch_sampler import EpochSampler
from fusionloader.sources.datasets import Compiled
from fusionloader.sources.tables import is_for_native_workers, layout_of
from fusionloader.streams import explanation as reading_urls


def explained(
    options: LoaderOptions,
    compiled: Compiled | None,
    why_not: str | None,
    part_seconds: Sequence[float] = (),
) -> str:
    """Returns how a loader's samples are made, and why, a line per stage.

    ``why_not`` says why batches cannot be written sample by sample. With ``part_seconds``, the time
    spent on each part of a plan, also its share.
    """
    whose = " of a pool" if options.pool is not None else ""
    here = options.num_workers == 0
    if why_not and here and options.on_error == "raise":
        lines = [f"whole batches in torch's own loop: {why_not}"]
    elif why_not and not here:
        lines = [f"{options.num_workers} workers{whose} make whole batches: {why_not}"]
    elif here:
        lines = ["in the training process, because num_workers=0"]
    else:
        lines = [f"{options.num_workers} workers{whose} write samples into shared batches"]
    if not why_not:
        assert compiled is not None
        lines.append(compiled.explain(part_seconds))
        if compiled.is_remote:
            one_by_one = _why_one_by_one(options, compiled)
            lines.append(reading_urls.explain(options.dataset, _inner_sampler(options), one_by_one))
    if seconds := _stalled_after(options, compiled):
        lines.append(f"a worker without progress for {seconds:g} s is replaced (stall_timeout)")
    if isinstance(options.batch_sampler, EpochSampler):
        lines.append(options.batch_sampler.explain())
    are_remote = compiled is not None and compiled.is_remote
    why_not_kept = _why_nothing_is_kept(options, compiled, why_not)
    lines += kept_files.explain(options, why_not_kept, are_remote)
    if _is_cuda(options) and options.num_workers > 0 and not why_not:
        plan = compiled.plan if compiled is not None and compiled.complete else None
        lines.append(level_rows.explain(plan))
    if gpu := eligibility.choose(options, None if why_not else compiled).explain():
        lines.append(gpu)
    if options.remote is not None and (why_local := _why_local(options, compiled, why_not)):
        lines.append(f"remote workers have no part: {why_local}")
    return "\n".join(lines)


def _stalled_after(options: LoaderOptions, compiled: Compiled | None) -> float:
    if options.num_workers == 0:
        return 0
    return options.stalled_after(compiled is not None and is_for_native_workers(compiled))


def _why_one_by_one(options: LoaderOptions, compiled: Compiled) -> str:
    """Returns why no process reads URLs ahead; empty where one does."""
    if options.num_workers == 0:
        return "there are no workers (num_workers=0)"
    return "" if is_for_native_workers(compiled) else "Python makes the samples"


def _inner_sampler(options: LoaderOptions) -> object:
    return options.sampler if options.inner_sampler is None else options.inner_sampler


def _why_local(options: LoaderOptions, compiled: Compiled | None, why_not: str | None) -> str:
    """Returns why workers on other machines cannot make samples; empty where they can."""
    if why_not or compiled is None or not is_for_native_workers(compiled):
        why = _why_code_is_local(options, why_not)
        if why:
            return why
    if options.worker_init_fn is not None:
        return "worker_init_fn may change what workers make"
    if compiled is not None and compiled.is_remote:
        return "samples at URLs are read by this machine's workers"
    return ""


def _why_code_is_local(options: LoaderOptions, why_not: str | None) -> str:
    assert options.remote is not None
    if not options.remote.user_code:
        why = "they run plans, and these samples are made by Python code"
        if why_not or options.worker_init_fn is not None:
            return why
        return f"{why}; with Remote(user_code=True) the workers that Ray starts run it, too"
    return "they make samples one by one, and these batches are made whole" if why_not else ""


def _is_cuda(options: LoaderOptions) -> bool:
    return options.device is not None and torch.device(options.device).type == "cuda"


def _why_nothing_is_kept(
    options: LoaderOptions, compiled: Compiled | None, why_not: str | None
) -> str:
    """Returns why workers keep nothing of files; empty where they may."""
    if options.num_workers == 0:
        return "samples are not made by workers (num_workers=0)"
    if (why_not or compiled is None or compiled.plan is None) and defers(options):
        return ""  # of the files that user code opens
    if why_not:
        return "samples are not made by workers of a plan"
    if compiled is None or compiled.plan is None or compiled.kind not in ("folder", "ranges"):
        return "the samples are not read from image files by a plan"
    assert compiled.plan is not None
    if not compiled.complete or isinstance(layout_of(compiled.plan), str):
        return "a part of the plan runs in Python"
    return ""
