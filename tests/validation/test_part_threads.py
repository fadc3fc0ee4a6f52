"""Parts compute with so many threads, and training with as many as before."""

import threading

import torch

from fusionloader.addons.validation.threads import limited


def in_worker(worker):
    found, done = [], threading.Event()
    worker.submit(lambda: (found.append(torch.get_num_threads()), done.set()))
    assert done.wait(100)
    return found[0]


def test_a_device_that_has_failed_stops_no_thread(monkeypatch):
    def fails(device):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", fails)
    (worker,) = limited(["a"], 1)
    assert in_worker(worker) == 1
    worker.end()
    worker.join(100)


def in_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_a_limit_holds_for_its_threads_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    workers = limited(["a", "b"], 1) + limited(["c"], 2)
    try:
        assert [in_worker(worker) for worker in workers] == [1, 1, 2]
        assert torch.get_num_threads() == in_new_thread() == 3
    finally:
        torch.set_num_threads(before)
        for worker in workers:
            worker.end()
            worker.join(100)
    assert not any(worker.is_alive() for worker in workers)
