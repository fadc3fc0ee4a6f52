"""Signals and handlers of training scripts: batch systems send them to all processes of a job."""

import os

import pytest
from served import run
from support import warm_start

BEGIN = """
import os, signal, sys, threading, time
from served import KINDS, loader, samples

root = sys.argv[1]

def begin(kind, **arguments):
    made = loader(kind, root, **arguments)
    iterator = iter(made)
    return made, iterator, [process.pid for process in iterator._workers]
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_handler_runs_in_training_alone(name, image_folder, tmp_path):
    script = """
    number, training = getattr(signal, sys.argv[2]), os.getpid()

    def note(*_):
        with open(sys.argv[3], "a") as file:
            file.write("training " if os.getpid() == training else "worker ")

    signal.signal(number, note)
    for kind in KINDS:
        made, iterator, pids = begin(kind)
        found = samples([next(iterator)])
        for pid in [*pids, training]:
            os.kill(pid, number)
        try:
            found += samples(iterator)
            assert found == samples(made) == 40
            del iterator
            made.close()
        except RuntimeError as error:  # as torch's, whose handler raises at any moment
            assert (kind, number) == ("stream", signal.SIGTERM), kind
            assert "DataLoader worker" in str(error), error
    print(open(sys.argv[3]).read())
    """
    said = run(script, image_folder, name, tmp_path / "notes", begin=BEGIN)
    assert said == ["training"] * 3


def test_workers_take_signals_that_training_blocks(image_folder):
    script = """
    blocked = {signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    for kind in KINDS:
        made, iterator, pids = begin(kind)
        assert samples(iterator) == 40
        for pid in pids:
            for _ in range(200):  # all are blocked for a moment where a thread is started
                mask = open(f"/proc/{pid}/status").read().split("SigBlk:")[1].split()[0]
                if int(mask, 16) == 0:
                    break
                time.sleep(0.01)
            assert int(mask, 16) == 0, mask
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


REAPING = """
def reap(options):
    try:
        while os.waitpid(-1, options)[0]:
            pass
    except ChildProcessError:
        pass

def reap_for_ever():
    while True:
        reap(0)
        time.sleep(0.001)
"""
WAITERS = {
    "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "handler": "signal.signal(signal.SIGCHLD, lambda *_: reap(os.WNOHANG))",
    "thread": "threading.Thread(target=reap_for_ever, daemon=True).start()",
}


@pytest.mark.parametrize("waiter", WAITERS)
@pytest.mark.few(1)
def test_dead_workers_are_noticed_whoever_waits_for_them(waiter, image_folder, capfd):
    script = f"""
    def check(kind, method):
        made, iterator, pids = begin(kind, multiprocessing_context=method)
        found = samples([next(iterator)])
        try:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            while any(os.path.exists(f"/proc/{{pid}}") for pid in pids):
                time.sleep(0.001)
            found += samples(iterator)
        except RuntimeError as error:  # as torch's, whose handler of SIGCHLD may have raised it
            assert kind == "stream" and "DataLoader worker" in str(error), error
            return
        assert found == samples(made) == 40
        made.close()

    {WAITERS[waiter]}
    for kind, method in [("plan", "fork"), ("plan", "spawn"), ("rows", "fork"), (KINDS[2], "fork")]:
        check(kind, method)
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN + REAPING) == ["all"]
    said = capfd.readouterr().err
    assert said.count("its exit status was taken by waitpid(-1)") == 6, said


def test_an_interrupted_notebook_iterates_anew(tmp_path):
    script = """
    from served import Rows, Stream
    from fusionloader import FusionLoader

    interrupt = sys.argv[2]

    class InterruptedRows(Rows):
        def __getitem__(self, index):
            if index == 20:
                ask(self)
            return super().__getitem__(index)

    class InterruptedStream(Stream):
        def __iter__(self):
            for image, index in super().__iter__():
                if index == 20:
                    ask(self)
                yield image, index

    def ask(dataset):
        try:
            os.unlink(interrupt)
        except FileNotFoundError:
            return
        os.killpg(os.getpgrp(), signal.SIGINT)  # as Jupyter signals the kernel's group

    signal.signal(signal.SIGINT, signal.default_int_handler)
    ways = [(InterruptedRows(), True), (InterruptedRows(), False), (InterruptedStream(), False)]
    for dataset, persistent in ways:
        made = FusionLoader(dataset, 4, num_workers=2, persistent_workers=persistent)
        for _ in range(2):
            open(interrupt, "w").close()
            try:
                samples(made)
            except KeyboardInterrupt:
                print("interrupted")
        assert samples(made) == 40
        made.close()
    """
    said = run(script, tmp_path, tmp_path / "interrupt", begin=BEGIN)
    assert said == ["interrupted"] * 6


FIRST_LOADER = """
import os, signal, sys, threading
import torch
from torch.utils.data import TensorDataset
from fusionloader import FusionLoader

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
struck = []

def strike(frame, *_):  # in the Python code that the extension's initialization calls
    begun = "fusionloader._native" in sys.modules
    if begun and frame.f_code.co_filename.endswith("enum.py") and not struck:
        struck.append(not hasattr(sys.modules["fusionloader._native"], "Executor"))
        sys.setprofile(None)
        threading.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

threading.setprofile(strike)
sys.setprofile(strike)
said = []
for attempt in range(2):
    try:
        loader = FusionLoader(TensorDataset(torch.arange(8)), 4, num_workers=1)
        said += [len(list(loader)), "torch's" in loader.explain()]
    except KeyboardInterrupt:
        said += ["interrupted"]
print(struck, said)
"""


def test_ctrl_c_while_the_native_part_is_loaded_is_not_lost():
    path = {**os.environ, "PYTHONPATH": os.getcwd()}
    found = warm_start.completed("-c", FIRST_LOADER, env=path)
    # Either thread may be the one that is struck.
    assert found.stdout.endswith("] ['interrupted', 2, False]\n"), found.stderr
