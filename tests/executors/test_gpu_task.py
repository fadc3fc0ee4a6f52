"""The GPU worker's task: warmed up with the rows that it is given later."""

import io

import dali_or_skip  # noqa: F401
import numpy as np
import pytest
from support.images import photo, train_transform

from fusionloader.executors.device.dali_augment import DaliAugment
from fusionloader.executors.device.fused_augment import FusedAugment
from fusionloader.executors.device.launchers import HostLauncher
from fusionloader.executors.device.make_task import make_task
from fusionloader.executors.device.memory import Memory, allocate_on_host
from fusionloader.executors.device.task import EncodedSample, rows_in
from fusionloader.plan.transforms import compile_transform


def encoded():
    file = io.BytesIO()
    photo(np.random.default_rng(4), 90, 70).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize("prebuilt", ["fused", "families"])
def test_a_task_is_warmed_up_with_rows_as_it_gets_them(prebuilt, monkeypatch):
    plan = compile_transform(train_transform(24)).plan
    kind = FusedAugment if prebuilt == "fused" else DaliAugment
    seen = []
    run = kind.run

    def observed(self, images, operations, rows):
        seen.append([(type(row), row.nbytes) for row in rows])
        return run(self, images, operations, rows)

    monkeypatch.setattr(kind, "run", observed)
    task = make_task(plan, None, prebuilt, 4, 1, 0.0)
    row_bytes = 3 * 24 * 24 * 4
    assert seen == [[(Memory, row_bytes)] * 4]
    memory, content = allocate_on_host(3 * row_bytes), encoded()
    samples = [
        EncodedSample(content, 1, 0, n, 0, 0, row, n) for n, row in enumerate(rows_in(memory, 3))
    ]
    assert task.run(samples) == [None] * 3
    for values in np.asarray(memory.owner).view(np.float32)[: 3 * row_bytes // 4].reshape(3, -1):
        assert np.isfinite(values).all() and values.std() > 0.1


def test_rows_have_addresses_and_nothing_that_the_host_could_read():
    augment = FusedAugment(compile_transform(train_transform(24)).plan, HostLauncher())
    (row,) = augment.rows(1, 64)
    with pytest.raises(TypeError):
        memoryview(row)
