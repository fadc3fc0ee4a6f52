"""The tasks of proxies: a loader's plan and dataset, as workers on other machines need them."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable

import PIL
from PIL import Image

import fusionloader
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.sources.tables import layout_of
from fusionloader.engine.delivery.level_rows import make_levels_plan
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.sharing.remote.offload_metrics import MetricKeys
from fusionloader.sharing.remote.protocol import CodeSetup
from fusionloader.sharing.remote.proxy.greeting import RemoteWork
from fusionloader.sharing.remote.remote_workers import RemoteTask, RemoteWorkers
from fusionloader.sharing.remote.user_code.bundle import bundle, installed
from fusionloader.sharing.remote.worker.known_files import pick_known_files
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.executors.python import Source
from fusionloader.transforms.plan.exchange import plan_to_data
from fusionloader.transforms.plan.stages import Plan


def remote_task(
    options: LoaderOptions, link: RemoteWorkers, plan: Plan, table: DatasetTable
) -> RemoteTask:
    """Returns the task of an iterator's proxy.

    If each element of a result depends on one 8-bit level alone, workers send the levels, a
    quarter of float32's bytes.
    """
    settings = options.remote
    assert settings is not None
    levels = make_levels_plan(plan)
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
        max_pixels=Image.MAX_IMAGE_PIXELS,
        image=image,
        known_files=() if image is not None else pick_known_files(len(table), table.path),
        data=settings.data,
        offload=settings.offload,
        tiny_size=options.tiny_batch_size,
        in_flight=options.in_flight,
    )
    keys = _metric_keys(options, f"{json.dumps(plan_to_data(wanted), sort_keys=True)} {work.data}")
    return RemoteTask(link, work, keys, plan.result_channels, table.fd, table.nbytes)


def code_task(
    options: LoaderOptions,
    link: Callable[[LoaderOptions], RemoteWorkers | None],
    source: Source,
    base_seed: int,
) -> RemoteTask | None:
    """Returns the task for workers that run a source's user code, which Ray brings to them.

    Returns ``None`` if ``link`` finds no workers.

    Raises:
        ImportError: Ray is not installed.
        PicklingError: the dataset cannot be pickled, see ``bundle``.
        ConnectionError: there is no Ray cluster.
    """
    settings = options.remote
    assert settings is not None
    code = bundle(source)
    made = link(options)
    if made is None:
        return None
    made.fleet.bring(code)
    work = RemoteWork(
        plan=None,
        row_bytes=0,
        convert=None,
        pillow="",
        max_pixels=None,
        image=None,
        known_files=(),
        data=settings.data,
        offload=settings.offload,
        tiny_size=options.tiny_batch_size,
        in_flight=options.in_flight,
        code=CodeSetup(
            fusionloader.__version__, code.digest, installed(), base_seed, options.num_workers
        ),
    )
    kind = type(source.dataset)
    keys = _metric_keys(options, f"{kind.__module__}.{kind.__qualname__}")
    return RemoteTask(made, work, keys, channels=0, table_fd=-1, table_bytes=0)


def _metric_keys(options: LoaderOptions, plan: str) -> MetricKeys:
    """Identifies the model by the script and by what the user says of it: it is not seen here."""
    assert options.remote is not None
    named = options.remote.model
    script = os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else "interactive"
    return MetricKeys(
        model=f"{script}, batch size {options.batch_size}, device {options.device}"
        + (f", model {named}" if named else ""),
        plan=hashlib.blake2b(plan.encode(), digest_size=16).hexdigest(),
        local_workers=options.num_workers,
        nodes=(),
    )
