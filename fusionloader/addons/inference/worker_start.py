"""How the workers of a ``Preprocessor`` are started."""

from __future__ import annotations

import multiprocessing

import torch
from PIL import Image, ImageFile
from torch.utils.data import TensorDataset

from fusionloader.addons.inference.options import PreprocessorOptions
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.engine.manager.native_start import native_starter
from fusionloader.engine.manager.options import StartWorker
from fusionloader.transforms.plan.stages import Plan
from fusionloader.workers.native_worker import NativeWorkerConfig
from fusionloader.workers.pillow_formats import AddedFormats
from fusionloader.workers.prepared_worker import Info


def starter(options: PreprocessorOptions, plan: Plan, table: DatasetTable) -> StartWorker:
    """Returns a function that starts workers for a plan.

    They are bare interpreters, which a server with threads can start safely, unless a context of
    multiprocessing was given. ``table`` is an empty one, since images come with their requests.
    """
    context = options.context
    method = "spawn" if context is None else str(context.get_start_method())
    formats = AddedFormats() if method == "fork" else AddedFormats.here()
    config = NativeWorkerConfig(
        worker=0,
        parent=0,
        control_fd=-1,
        data_fd=-1,
        table_fd=table.fd,
        table_bytes=table.nbytes,
        message_fd=-1,
        plan=plan,
        on_error="raise",
        load_truncated=ImageFile.LOAD_TRUNCATED_IMAGES,
        max_pixels=Image.MAX_IMAGE_PIXELS,
        formats=formats,
    )
    info: Info | None = None
    if formats.of_script:
        info = options.num_workers, 0, TensorDataset(torch.empty(0)), None
    spawning = multiprocessing.get_context(method) if context is None else context
    return native_starter(config, spawning, method, info)
