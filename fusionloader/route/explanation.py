"""The text of ``explain()``: what was compiled and what was not, and why."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.data import MapDataPipe

from fusionloader.cache import loader_cache
from fusionloader.data.read_ahead.looking_ahead import explain_reading
from fusionloader.data.samplers.epoch_sampler import EpochSampler
from fusionloader.engine.delivery import level_rows
from fusionloader.engine.iterators.deferral import defers
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.route.route import Route, SampleFiles, find_sample_files
from fusionloader.sharing.ranks.discovery import ranks_here

_LEFT_OUT = "; not where user code asks for its rank, or worker_init_fn seeds in a way of its own"


def explained(
    options: LoaderOptions,
    route: Route,
    part_seconds: Sequence[float] = (),
    why_code_is_alone: str = "",
) -> str:
    """Returns how a loader's samples are made, and why, a line per stage.

    With ``part_seconds``, the time spent on each part of a plan, lines have its share, too.
    ``why_code_is_alone`` is why user code could not be offered to other ranks.
    """
    lines, compiled = [_first(options, route)], route.compiled
    if compiled is not None and not route.why_whole:
        lines.append(compiled.explain(part_seconds))
        if route.why_python and (compiled.complete or compiled.parts):
            lines.append(f"in Python workers: {route.why_python}")
        if compiled.is_remote:
            why = "there are no workers (num_workers=0)" if options.num_workers == 0 else ""
            one_by_one = why if route.is_native or why else "Python makes the samples"
            images, chosen = compiled.ranged()
            sampler = _inner_sampler(options)
            lines.append(explain_reading(images, chosen is None, sampler, one_by_one))
    lines += _explain_files(find_sample_files(options, route))
    has_workers = options.num_workers > 0 and route.way != "gathered"
    if has_workers and (seconds := options.stalled_after(route.is_native)):
        lines.append(f"a worker without progress for {seconds:g} s is replaced (stall_timeout)")
    if isinstance(options.batch_sampler, EpochSampler):
        lines.append(options.batch_sampler.explain())
    are_remote = compiled is not None and compiled.is_remote
    lines += loader_cache.explain(options, _why_nothing_is_cached(options, route), are_remote)
    is_split = route.gpu.split is not None
    if _is_cuda(options) and options.num_workers > 0 and not (route.why_whole or is_split):
        plan = compiled.plan if compiled is not None and compiled.complete else None
        lines.append(level_rows.explain(plan))
    if options.deferred_images == "tensors" and defers(options) and not route.is_native:
        lines.append("tensors of image decoders are made when they are needed (deferred_images)")
    if gpu := route.gpu.explain():
        lines.append(gpu)
    if has_workers and options.share is None and (ranks := ranks_here()) is not None:
        why_own = _why_not_shared(options, route) or (not route.is_native and why_code_is_alone)
        line = f"workers are not shared with other ranks: {why_own}"
        shared = f"idle workers also serve other ranks with the same data, of {ranks.count} here"
        shared += "" if route.is_native else _LEFT_OUT
        lines.append(line if why_own else shared)
    if options.remote is not None and (why_local := _why_local(options, route)):
        lines.append(f"remote workers have no part: {why_local}")
    return "\n".join(lines)


def _explain_files(files: SampleFiles | str) -> list[str]:
    if files == "":
        return []
    if isinstance(files, str):
        return [f"workers do not keep to files of their own (sample_file): {files}"]
    return ["each worker begins with files of its own, and helps with others' (sample_file)"]


def _first(options: LoaderOptions, route: Route) -> str:
    plural, ending = ("", "s") if options.num_workers == 1 else ("s", "")
    of_pool = " of a pool" if options.pool is not None else ""
    workers = f"{options.num_workers} worker{plural}{of_pool}"
    if route.way == "torch's loop" and route.why_whole:
        return f"whole batches in torch's own loop: {route.why_whole}"
    if route.way == "gathered":
        none = (
            "" if options.num_workers == 0 else f"; none of {options.num_workers} workers is needed"
        )
        return f"gathered from tensors in memory, in the training process{none}"
    if options.num_workers == 0:
        return "in the training process, because num_workers=0"
    if route.why_whole:
        return f"{workers} make{ending} whole batches: {route.why_whole}"
    return f"{workers} write{ending} samples into shared batches"


def _inner_sampler(options: LoaderOptions) -> object:
    return options.sampler if options.inner_sampler is None else options.inner_sampler


def _why_local(options: LoaderOptions, route: Route) -> str:
    """Returns why workers on other machines cannot make samples; ``""`` if they can."""
    if not route.is_native:
        why = _why_code_is_local(options, route)
        if why:
            return why
    if options.worker_init_fn is not None:
        return "worker_init_fn may change what workers make"
    if route.compiled is not None and route.compiled.is_remote:
        return "samples at URLs are read by this machine's workers"
    return ""


def _why_code_is_local(options: LoaderOptions, route: Route) -> str:
    assert options.remote is not None
    if not options.remote.user_code:
        why = "they run plans, and these samples are made by Python code"
        if route.why_whole or options.worker_init_fn is not None:
            return why
        return f"{why}; with Remote(user_code=True) the workers that Ray starts run it, too"
    if route.why_whole:
        return "they make samples one by one, and these batches are made whole"
    if isinstance(options.dataset, MapDataPipe):
        return "a DataPipe may be sharded among this machine's workers"
    return ""


def _why_not_shared(options: LoaderOptions, route: Route) -> str:
    """Returns why workers are not shared with other ranks; ``""`` if they may be."""
    if options.global_manager == "off":
        return "global_manager is 'off'"
    if route.way == "own passes":
        return "each iterates over the dataset on its own"
    if options.global_manager == "auto" and not route.is_native:
        return "they run user code (global_manager='all' shares them, too)"
    return ""


def _is_cuda(options: LoaderOptions) -> bool:
    return options.device is not None and torch.device(options.device).type == "cuda"


def _why_nothing_is_cached(options: LoaderOptions, route: Route) -> str:
    """Returns why workers cache nothing of files; ``""`` if they may."""
    if options.num_workers == 0:
        return "samples are not made by workers (num_workers=0)"
    if route.way == "gathered":
        return "the samples are in memory"
    if (route.why_whole or route.plan is None) and defers(options):
        return ""  # the files that user code opens are cached
    if route.why_whole:
        return "samples are not made by workers of a plan"
    if route.plan is None or route.plan.kind not in ("folder", "ranges", "parts"):
        return "the samples are not read from image files by a plan"
    return route.why_python
