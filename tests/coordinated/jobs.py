"""Jobs of a group as processes, which take batches when they are told to."""

import contextlib
import hashlib
import multiprocessing
import os
import signal
import traceback

import psutil
import torch
from support.waiting import PATIENCE

from fusionloader import FusionLoader

FORK = multiprocessing.get_context("fork")
# So many mini-batches are staged that nobody comes late to an epoch of ten.
OPTIONS = {"batch_size": 4, "num_workers": 1, "seed": 3, "timeout": PATIENCE, "prefetch_factor": 10}


def coordinators(address):
    """Processes that have the socket of a group."""
    return [c for c in psutil.net_connections("unix") if c.laddr == "@" + address]


def digest(batch):
    images, targets, *_ = batch
    return hashlib.md5(images.numpy().tobytes() + targets.numpy().tobytes()).hexdigest()


def make_loader(dataset, share, options):
    """A loader that shuffles as all jobs do."""
    options = {**OPTIONS, "shuffle": True, **options}
    if "sampler" in options:
        options["shuffle"] = None
    options.setdefault("generator", torch.Generator().manual_seed(7))
    return FusionLoader(dataset, share=share, **options)


def alone(dataset, epochs=1, **options):
    """Digests of the batches that a job makes alone, by epoch."""
    loader = make_loader(dataset, None, options)
    return [[digest(batch) for batch in loader] for _ in range(epochs)]


def together(jobs, count):
    """Has all jobs take the next batches, and returns what each has got."""
    for job in jobs:
        job.tell("take", count)
    return [job.answer() for job in jobs]


def all_rest(jobs):
    for job in jobs:
        job.tell("rest")
    return [job.answer() for job in jobs]


def epoch(jobs):
    """Has all jobs take an epoch together, and returns what each has got."""
    begun = together(jobs, 1)  # nothing is recycled before all have begun
    return [found + rest for found, rest in zip(begun, all_rest(jobs), strict=True)]


class Job:
    """A training process; ``None`` among its batches is the end of an epoch."""

    def __init__(self, dataset, share, **options):
        self._pipe, end = FORK.Pipe()
        self.process = FORK.Process(target=_serve, args=(end, dataset, share, options))
        self.process.start()
        end.close()

    @property
    def pid(self):
        return self.process.pid

    def ask(self, *command):
        self.tell(*command)
        return self.answer()

    def tell(self, *command):
        self._pipe.send(command)

    def answer(self):
        assert self._pipe.poll(PATIENCE), "the job does not answer"
        found = self._pipe.recv()
        if isinstance(found, Exception):
            raise found
        return found

    def take(self, count):
        return self.ask("take", count)

    def rest(self):
        return self.ask("rest")

    def signal(self, number, workers=()):
        for pid in (self.pid, *workers):
            os.kill(pid, number)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        with contextlib.suppress(OSError):
            self._pipe.send(("end",))
        self.process.join(PATIENCE)
        self._pipe.close()


def _serve(pipe, dataset, share, options):
    torch.set_num_threads(1)
    os.environ.update(options.pop("environ", {}))
    loader, iterator, kept, child = make_loader(dataset, share, options), None, [], None
    while True:
        command, *what = pipe.recv()
        try:
            if command == "end":
                loader.close()
                return
            if command in ("take", "rest"):
                iterator = iterator or iter(loader)
                found, iterator = _take(iterator, what[0] if what else None)
                pipe.send(found)
            elif command == "keep":
                kept += [next(iterator) for _ in range(what[0])]
                pipe.send([digest(batch) for batch in kept])
            elif command == "leave":
                iterator = None
                pipe.send(None)
            elif command == "close":
                iterator = None
                loader.close()
                pipe.send(None)
            elif command == "fork":
                child = Child(kept)
                pipe.send(None)
            elif command == "child":
                pipe.send(child.digests())
            elif command == "drop":
                kept.clear()
                pipe.send(None)
            elif command == "workers":
                pipe.send([process.pid for process in iterator._workers])
            elif command == "state":
                pipe.send(loader.state_dict())
            elif command == "load":
                loader.load_state_dict(what[0])
                pipe.send(None)
            else:
                pipe.send(loader.stats().shared_prep)
        except Exception as error:
            traceback.print_exc()
            pipe.send(error)


class Child:
    """A forked child that has batches, too, and looks at them later."""

    def __init__(self, batches):
        self._pipe, end = FORK.Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            end.recv()
            end.send([digest(batch) for batch in batches])
            os._exit(0)

    def digests(self):
        self._pipe.send(None)
        found = self._pipe.recv()
        os.waitpid(self._pid, 0)
        return found


def _take(iterator, count):
    """Digests of some batches, or of all that are left; each is overwritten then."""
    found = []
    while count is None or len(found) < count:
        batch = next(iterator, None)
        if batch is None:
            return found, None
        found.append(digest(batch))
        batch[0].zero_()
    return found, iterator


# Why a job may be alone whose machine is busy with other things.
_TOO_SLOW = ("took no mini-batch", "waited for it", "have begun this epoch before")


def left(jobs):
    """Why jobs had to leave the others, unless the machine was too slow for them."""
    reasons = [stats.why_alone for stats in (job.ask("stats") for job in jobs)]
    return [why for why in reasons if why and not any(text in why for text in _TOO_SLOW)]
