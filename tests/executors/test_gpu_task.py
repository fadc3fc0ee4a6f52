"""The GPU worker's task: rows of CPU workers, and warmed up with rows that it is given later."""

import io
from pathlib import Path

import dali_or_skip  # noqa: F401
import numpy as np
import pytest
from PIL import Image
from support import encoded_images
from support.bad_decoders import PillowDecoder
from support.images import photo, train_transform

from benchmarks.fidelity import page
from benchmarks.fidelity.cases import images
from benchmarks.fidelity.gpu_worker import TRANSFORMS, worker_rows
from fusionloader.transforms.executors.decoders.decoder_head import DecoderHead
from fusionloader.transforms.executors.device.fused_augment import FusedAugment
from fusionloader.transforms.executors.device.launchers import HostLauncher
from fusionloader.transforms.executors.device.make_task import HeadOptions, make_task
from fusionloader.transforms.executors.device.memory import Memory, allocate_on_host
from fusionloader.transforms.executors.device.task import EncodedSample, GpuTask, rows_in
from fusionloader.transforms.executors.device_errors import FileRefused
from fusionloader.transforms.plan.transforms import compile_transform

PAGE = (Path(__file__).parents[2] / "docs" / "how/fidelity.md").read_text()


def encoded(**options):
    return encoded_images.encoded(photo(np.random.default_rng(4), 90, 70), **options)


def test_a_task_is_warmed_up_with_rows_as_it_gets_them(monkeypatch):
    plan = compile_transform(train_transform(24)).plan
    seen = []
    run = FusedAugment.run

    def observed(self, images, operations, rows):
        seen.append([(type(row), row.nbytes) for row in rows])
        return run(self, images, operations, rows)

    monkeypatch.setattr(FusedAugment, "run", observed)
    task = make_task(plan, None, 4, HeadOptions(hw_decoder_load=0.0))
    row_bytes = 3 * 24 * 24 * 4
    assert seen == [[(Memory, row_bytes)] * 4]
    memory, content = allocate_on_host(3 * row_bytes), encoded()
    samples = [
        EncodedSample(content, 1, 0, n, 0, 0, row, n) for n, row in enumerate(rows_in(memory, 3))
    ]
    assert task.run(samples) == [None] * 3
    for values in np.asarray(memory.owner).view(np.float32)[: 3 * row_bytes // 4].reshape(3, -1):
        assert np.isfinite(values).all() and values.std() > 0.1


@pytest.mark.parametrize("row", ["window", "resize, lanczos", "RandAugment"])
def test_rows_of_whole_plans_keep_to_the_page(row):
    written = page.figures(PAGE, page.WORKER_TITLE)
    assert set(written) == set(TRANSFORMS)
    assert all(cells[1:4] == ["0", "0", "0"] for cells in written.values())
    chosen = images()
    few = {name: chosen[name] for name in ("larger leaves", "noise", "one row", "grey leaves")}
    assert worker_rows(few, names=[row])[row].kernel.most == 0


def test_rows_have_addresses_and_nothing_that_the_host_could_read():
    augment = FusedAugment(compile_transform(train_transform(24)).plan, HostLauncher())
    (row,) = augment.rows(1, 64)
    with pytest.raises(TypeError):
        memoryview(row)


class Noting(PillowDecoder):
    """Notes what it is given."""

    def start(self, device, capacity):
        super().start(device, capacity)
        self.files = []

    def submit(self, commands):
        self.files += [command.encoded for command in commands]
        super().submit(commands)


def test_what_libjpeg_may_refuse_for_its_markers_gets_to_no_decoder():
    good = encoded(progressive=True)
    frame = good.index(b"\xff\xc2")
    scan = good.rindex(b"\xff\xda")  # header and end of the file are as they should
    second_frame = good[:scan] + good[frame : frame + 19] + good[scan:]
    with pytest.raises(OSError, match="broken data stream"):
        Image.open(io.BytesIO(second_frame)).convert("RGB")
    plan = compile_transform(train_transform(24)).plan
    decoder, augment = Noting(), FusedAugment(plan, HostLauncher())
    task = GpuTask(plan, DecoderHead(decoder, None, 4, 60), augment, 4)
    rows = augment.rows(3, 3 * 24 * 24 * 4)
    files = [good, second_frame, good]
    samples = [
        EncodedSample(file, 1, 0, n, 0, 0, row, n)
        for n, (file, row) in enumerate(zip(files, rows, strict=True))
    ]
    first, refused, last = task.run(samples)
    assert (first, last) == (None, None)
    assert isinstance(refused, FileRefused)
    assert "libjpeg may refuse" in refused
    assert decoder.files == [good, good]
