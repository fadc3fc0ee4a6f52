"""Memory of the device that runs out: torch's error, as of any tensor, and then whole epochs."""

import pytest
import torch
from support.batches import same_batches
from support.fake_device import FakeDevice, read_epoch

from fusionloader import FusionLoader


@pytest.mark.parametrize("call", ["upload", "empty"])
@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.few(2)
def test_training_gets_the_error_and_the_loader_goes_on(
    train_set, to_fake_device, monkeypatch, call, persistent_workers
):
    expected = list(FusionLoader(train_set, 4, num_workers=2, seed=1))
    made = to_fake_device()
    room, real = [], getattr(FakeDevice, call)

    def allocate(self, *given):
        if not room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(self, *given)

    monkeypatch.setattr(FakeDevice, call, allocate)
    options = {"num_workers": 2, "seed": 1, "persistent_workers": persistent_workers}
    with FusionLoader(train_set, 4, **options) as loader:
        for _ in range(2):
            loader.set_epoch(0)
            with pytest.raises(torch.cuda.OutOfMemoryError):
                list(loader)
        room.append(True)
        loader.set_epoch(0)
        assert same_batches(read_epoch(loader, made), expected)
