"""What workers on other machines are given of a loader's plan and dataset."""

from __future__ import annotations

import hashlib
import json
import os
import sys

import PIL

from fusionloader.delivery.level_rows import plan_of_levels
from fusionloader.executors.layout import Layout
from fusionloader.options import LoaderOptions
from fusionloader.plan.exchange import plan_to_data
from fusionloader.plan.stages import Plan
from fusionloader.remote.link import RemoteLink, RemoteTask
from fusionloader.remote.offload_metrics import MetricKeys
from fusionloader.remote.proxy.work import RemoteWork
from fusionloader.remote.worker.known_files import some_of
from fusionloader.shm.dataset_table import DatasetTable
from fusionloader.sources.tables import layout_of


def remote_task(
    options: LoaderOptions, link: RemoteLink, plan: Plan, table: DatasetTable
) -> RemoteTask:
    """Returns what the proxy of an iterator is given.

    Workers send 8-bit levels where results are elements that each depend on one alone: a quarter
    of float32's bytes.
    """
    settings = options.remote
    assert settings is not None
    levels = plan_of_levels(plan)
    wanted = plan if isinstance(levels, str) else levels
    layout = layout_of(wanted)
    assert isinstance(layout, Layout)
    convert = None
    if wanted is not plan and plan.convert is not None:
        convert = plan.convert.element_type, plan.convert.table
    image = table.image_shape
    work = RemoteWork(
        plan=wanted,
        row_bytes=layout.leaves[0].nbytes,
        convert=convert,
        pillow=PIL.__version__,
        image=image,
        known_files=() if image is not None else some_of(len(table), table.path),
        data=settings.data,
        offload=settings.offload,
        tiny_size=options.tiny_batch_size,
        in_flight=options.in_flight,
    )
    keys = _metric_keys(options, work)
    return RemoteTask(link, work, keys, plan.result_channels, table.fd, table.nbytes)


def _metric_keys(options: LoaderOptions, work: RemoteWork) -> MetricKeys:
    """The script stands for the model, which a loader does not see."""
    script = os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else "interactive"
    plan = json.dumps(plan_to_data(work.plan), sort_keys=True)
    return MetricKeys(
        model=f"{script}, batch size {options.batch_size}, device {options.device}",
        plan=hashlib.blake2b(f"{plan} {work.data}".encode(), digest_size=16).hexdigest(),
        local_workers=options.num_workers,
        nodes=(),
    )
