"""Remote workers, and the process that speaks to them, end in every way: each batch comes once."""

import gc
import os
import resource
import signal
import socket
from pathlib import Path

import psutil
import pytest
from support import warm_start
from support.limits import limited
from support.remote_trials import trial
from support.remote_workers import GO_ON, STOP, remote_loader
from support.waiting import PATIENCE, children_that_run, gone, is_stopped, wait_until

from fusionloader import Remote
from fusionloader.observe.statistics.waits import Waits
from fusionloader.sharing.remote import remote_proxy, remote_workers
from fusionloader.sharing.remote.fleet import Fleet

TESTS = Path(__file__).parents[1]


@pytest.fixture
def start(image_folder, expected, token_file, start_worker):
    """Returns a trial with some workers of its own, which serve."""
    running = []

    def begin(*workers, **options):
        workers = workers or [start_worker()]
        context = trial(image_folder, expected, workers, token_file, **options)
        running.append(context)
        begun = context.__enter__()
        begun.serves()
        return begun

    yield begin
    for context in running:
        context.__exit__(None, None, None)


# ---- remote workers -----------------------------------------------------------------------------


def test_what_a_killed_worker_had_is_made_by_others(start, start_worker):
    doomed, survivor = start_worker(), start_worker()
    trained = start(doomed, survivor)
    trained.until(lambda: len({w.samples for w in trained.remote.workers} - {0}) == 2)
    doomed.send(STOP)  # so that it has requests that it does not answer
    wait_until(lambda: is_stopped(doomed.pid))
    lost = trained.remote.leases_lost
    trained.steps(2)
    doomed.send(signal.SIGKILL)
    trained.until(lambda: trained.remote.leases_lost > lost)
    trained.until(lambda: states(trained)[doomed.address] == "away")
    trained.serves()
    trained.finish()
    assert states(trained)[survivor.address] == "serving"


def states(trained):
    return {each.address: each.state for each in trained.remote.workers}


def test_late_answers_of_a_stopped_worker_change_nothing(start, start_worker):
    worker = start_worker()
    trained = start(worker)
    worker.send(STOP)
    trained.until(lambda: trained.remote.leases_lost)
    trained.finish()
    worker.send(GO_ON)
    trained.serves()
    trained.finish()


def test_a_worker_that_ends_has_another_at_its_port(start, start_worker):
    worker = start_worker()
    trained = start(worker)
    worker.send(signal.SIGTERM)
    trained.until(lambda: worker.process.poll() is not None)
    assert worker.process.returncode == 0
    trained.until(lambda: states(trained)[worker.address] == "away")
    trained.finish()
    start_worker(worker.address, cores=1)
    trained.serves()
    trained.finish()


def test_a_worker_may_come_later(start, start_worker):
    with socket.create_server(("127.0.0.3", 0)) as taken:
        address = f"127.0.0.3:{taken.getsockname()[1]}"
    trained = start(start_worker(), address)
    trained.finish()
    assert states(trained)[address] == "away"
    later = start_worker(address)
    trained.until(lambda: made_by(trained, later))
    trained.finish()


def made_by(trained, worker):
    return next(each.samples for each in trained.remote.workers if each.address == worker.address)


def test_training_goes_on_without_any_worker(start, start_worker):
    workers = [start_worker(), start_worker()]
    trained = start(*workers)
    for worker in workers:
        worker.end()
    trained.until(lambda: set(states(trained).values()) == {"away"})
    made = trained.remote.samples
    trained.finish()
    trained.steps(10)
    trained.finish()
    assert trained.remote.samples == made


# ---- this machine's processes -------------------------------------------------------------------


def test_a_killed_proxy_is_replaced_as_long_as_it_is_of_use(start, caplog):
    trained = start()
    for _ in range(3):
        (proxy,) = trained.live_proxies
        os.kill(proxy, signal.SIGKILL)
        trained.until(lambda proxy=proxy: trained.live_proxies - {proxy})
        trained.serves()
    trained.finish()
    assert caplog.text.count("it is replaced") == 3


def test_a_proxy_that_cannot_be_replaced_at_once_is_replaced_later(start, caplog):
    trained = start()
    (proxy,) = trained.live_proxies
    opened = len(os.listdir("/proc/self/fd"))
    with limited(resource.RLIMIT_NOFILE, 3):
        os.kill(proxy, signal.SIGKILL)
        trained.until(lambda: "tried again" in caplog.text)
    trained.until(lambda: trained.live_proxies - {proxy})
    assert len(os.listdir("/proc/self/fd")) <= opened
    trained.serves()
    trained.finish()


def test_a_proxy_that_dies_thrice_for_nothing_is_given_up(start, start_worker, caplog):
    worker = start_worker()
    trained = start(worker)
    worker.send(STOP)
    while "goes on without them" not in caplog.text:
        before = caplog.text.count("it is replaced")
        for proxy in remote_proxies():
            proxy.kill()
        trained.until(lambda b=before: caplog.text.count("it is replaced") > b or given_up(caplog))
    worker.send(GO_ON)
    made = trained.remote.samples
    trained.finish()
    trained.steps(10)
    assert trained.remote.samples == made
    assert states(trained)[worker.address] == "away"


def given_up(caplog):
    return "goes on without them" in caplog.text


def remote_proxies():
    """This process's children that speak to remote workers."""
    return children_that_run("remote.proxy")


def test_local_workers_come_and_go_while_remote_ones_work(start):
    trained = start(num_workers=2)
    for count in (1, 3, 2):
        trained.loader.resize_workers(count)
        trained.serves()
    trained.finish()


def test_nothing_is_left_of_training_that_ends(image_folder, token_file, start_worker, tmp_path):
    """Beside it runs a process that it has forked, and that has its descriptors."""
    worker, script = start_worker(), tmp_path / "train.py"
    script.write_text(_SCRIPT)
    for end in ("SIGKILL", "close"):
        check_end(end, worker, script, image_folder, token_file)


def check_end(end, worker, script, folder, token_file):
    arguments = (str(folder), worker.address, str(token_file), end)
    training = warm_start.start(script, *arguments, path=[str(TESTS.parent), str(TESTS)])
    forked, *processes = map(int, training.stdout.readline().split())
    try:
        if end == "SIGKILL":
            training.send_signal(signal.SIGKILL)
        else:
            assert "ended with 0" in training.stdout.readline()
        wait_until(lambda: all(map(gone, processes)))
        wait_until(lambda: not connections_of(worker), "the worker has still a connection")
        assert not gone(forked)
    finally:
        os.kill(forked, signal.SIGKILL)
    wait_until(lambda: training.poll() is not None)


def connections_of(worker):
    found = psutil.Process(worker.pid).net_connections("tcp")
    return [each for each in found if each.status != psutil.CONN_LISTEN]


_SCRIPT = """
import os, signal, sys
from support.remote_workers import remote_loader
from support.waiting import PATIENCE
from fusionloader.sharing.remote import remote_proxy
from fusionloader.workers import worker_set
remote_proxy._PATIENCE_SECONDS = worker_set._PATIENCE_SECONDS = PATIENCE
folder, worker, token_file, end = sys.argv[1:]
loader = remote_loader(folder, [worker], token_file)
while not (loader.stats().remote and loader.stats().remote.samples):
    for batch in loader:
        pass
iterator = iter(loader)
next(iterator)
processes = list(iterator._workers)
forked = os.fork()
if forked == 0:
    os.close(1)
    while True:
        signal.pause()
print(forked, *[process.pid for process in processes], flush=True)
if end == "SIGKILL":
    signal.pause()
loader.close()
print("ended with", *{process.exitcode for process in processes}, flush=True)
"""


# ---- loaders ------------------------------------------------------------------------------------


def test_a_loader_is_closed_while_answers_are_awaited(start, start_worker, monkeypatch):
    monkeypatch.setattr(remote_proxy, "_PATIENCE_SECONDS", PATIENCE)
    worker = start_worker()
    trained = start(worker)
    trained.finish()
    trained.steps(2)
    (pid,) = trained.proxies
    (proxy,) = (each for each in trained.processes if each.pid == pid)
    worker.send(STOP)
    wait_until(lambda: is_stopped(worker.pid))
    trained.steps(2)
    trained.leave()
    trained.loader.close()
    assert proxy.exitcode == 0  # it was not waited for in vain, and killed
    worker.send(GO_ON)


def test_an_epoch_is_left_and_another_begun(start):
    trained = start()
    for steps in (3, 1, 7):
        trained.leave()
        trained.steps(steps)
    trained.leave()
    trained.serves()
    trained.finish()


def test_a_closed_loader_starts_no_workers_for_an_iterator_that_goes_on(token_file, monkeypatch):
    settings, made = Remote(servers=["127.0.0.3:1"], token_file=str(token_file)), []
    make_fleet = remote_workers.make_fleet

    def counted(*arguments):
        made.append(make_fleet(*arguments))
        return made[-1]

    monkeypatch.setattr(remote_workers, "make_fleet", counted)
    monkeypatch.setattr(remote_workers, "_REPORT_SECONDS", 0)
    workers = remote_workers.RemoteWorkers(settings, Waits(), 1)
    assert len(workers.addresses()) == 1
    workers.close()
    workers.report_load()
    assert not workers.addresses() and len(made) == 1


def test_workers_serve_two_loaders_at_once_with_more_lanes_than_cores(start, start_worker):
    workers = [start_worker(cores=1), start_worker(cores=1)]
    one, two = start(*workers), start(*workers)
    for _ in range(20):
        one.step()
        two.step()
    for each in (one, two):
        each.serves()
        each.finish()


@pytest.mark.matrix
def test_each_epoch_may_have_processes_of_its_own(image_folder, expected, token_file, start_worker):
    worker, seen = start_worker(), set()
    with trial(image_folder, expected, [worker], token_file, persistent_workers=False) as trained:
        for _ in range(2):
            trained.step()
            wait_until(lambda: len(connections_of(worker)) == 2)
            trained.finish()
            seen |= trained.proxies
            gc.collect()
            wait_until(lambda: not connections_of(worker))
        assert trained.remote.samples
    assert len(seen) == 2


def test_a_forked_child_leaves_the_workers_to_its_parent(image_folder, token_file, monkeypatch):
    closed = []

    class Watched(Fleet):
        def close(self):
            closed.append(os.getpid())

    made = remote_workers.make_fleet(Remote(servers=["127.0.0.3:1"], token_file=str(token_file)), 1)
    watched = Watched(made.addresses(), made.identity)
    monkeypatch.setattr(remote_workers, "make_fleet", lambda *_: watched)
    loader = remote_loader(image_folder, ["127.0.0.3:1"], token_file)
    next(iter(loader))
    child = os.fork()
    if child == 0:
        loader.close()
        os._exit(len(closed))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loader.close()
    assert closed == [os.getpid()]
