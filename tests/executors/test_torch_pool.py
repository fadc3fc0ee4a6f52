"""On which device torch's pool over borrowed blocks is made: torch is scripted."""

from types import SimpleNamespace

import torch

from fusionloader.transforms.executors.device import launch_memory


class ScriptedCuda:
    """The current device of a thread, and what is made on it."""

    def __init__(self):
        self.current = 0
        self.made_on = []

    def device(self, number):
        return _Current(self, number)

    def pool(self, allocator):
        self.made_on.append(self.current)


class _Current:
    def __init__(self, cuda, number):
        self._cuda, self._number = cuda, number

    def __enter__(self):
        self._cuda.current, self._number = self._number, self._cuda.current

    def __exit__(self, *_):
        self._cuda.current = self._number


def test_a_pool_is_made_on_the_device_of_the_loader(monkeypatch):
    cuda = ScriptedCuda()
    monkeypatch.setattr(launch_memory.borrowing, "install", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", cuda.device)
    monkeypatch.setattr(torch.cuda, "MemPool", cuda.pool)
    made = SimpleNamespace(allocator=lambda: None)
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", lambda *_: made)
    launch_memory.TorchPool(3).begin([])
    assert cuda.made_on == [3]
    assert cuda.current == 0
