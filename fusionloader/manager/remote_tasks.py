"""What workers on other machines are given of a loader's plan and dataset."""

from __future__ import annotations

import PIL

from fusionloader.delivery.level_rows import plan_of_levels
from fusionloader.executors.layout import Layout
from fusionloader.plan.stages import Plan
from fusionloader.remote.known_files import some_of
from fusionloader.remote.link import RemoteLink, RemoteTask
from fusionloader.remote.work import RemoteWork
from fusionloader.remote_settings import Remote
from fusionloader.shm.dataset_table import DatasetTable
from fusionloader.sources.tables import layout_of


def remote_task(settings: Remote, link: RemoteLink, plan: Plan, table: DatasetTable) -> RemoteTask:
    """Returns what the proxy of an iterator is given.

    Workers send 8-bit levels where results are elements that each depend on one alone: a quarter
    of float32's bytes.
    """
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
    )
    return RemoteTask(link, work, plan.result_channels, table.fd, table.nbytes)
