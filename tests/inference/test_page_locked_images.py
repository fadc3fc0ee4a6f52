"""With a device, images lie in page-locked memory, which is unlocked before it is unmapped."""

import gc

import pytest
import torch
from support.encoded_images import expected
from support.fake_device import FakeDevice
from support.images import eval_transform
from support.page_locks import Driver, mapped

from fusionloader.addons.inference import preprocessor


def test_tensors_for_a_device_are_page_locked_until_they_are_dropped(make, jpegs, monkeypatch):
    driver = Driver()
    monkeypatch.setattr(preprocessor, "CudaPageLocking", lambda device, needed: driver)
    prepare = make(device="cuda:0", max_batch=4)
    batch, row = prepare(jpegs), prepare.submit(jpegs[0]).result()
    assert torch.equal(row, expected(eval_transform(), jpegs[0])) and torch.equal(batch[0], row)
    address = row.data_ptr()
    assert driver.has(batch.data_ptr()) and driver.has(address)
    prepare.close()
    assert mapped(address)
    del batch
    gc.collect()
    assert driver.has(address)


def test_tensors_are_pageable_where_the_driver_refuses(make, jpegs, monkeypatch, fake_cuda):
    monkeypatch.setattr(preprocessor, "CudaDevice", lambda _: FakeDevice(fake_cuda))
    fake_cuda.refuse("cuMemHostRegister_v2")
    prepare = make(device="cuda:0", max_batch=4)
    with pytest.warns(RuntimeWarning, match="device= needs: cuMemHostRegister failed: CUDA_ERROR"):
        row = prepare.submit(jpegs[0]).result()
    assert torch.equal(row, expected(eval_transform(), jpegs[0]))
