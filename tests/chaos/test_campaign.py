"""The campaign's own rules: whom it strikes, which limits it lifts, and when a run is over."""

import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from support.raised_at import Steps
from support.waiting import wait_until

import fusionloader
from chaos.campaign import missing
from chaos.checks import Course, Excuse
from chaos.faults.fault import Fault
from chaos.kinds.image_plans import KINDS as PLANS
from chaos.kinds.jobs import job
from chaos.kinds.setting import BATCH, EpochKind
from chaos.registry import KINDS as REGISTRY
from chaos.run import Laboratory, Run
from chaos.trainer import ROLES
from fusionloader.engine.manager import publications
from fusionloader.system.shm.objects import SharedPage

NO_FAULT = Fault("none", lambda run, trainer, part: False)
PACKAGE = Path(fusionloader.__file__).parent


def modules_that_are_started():
    """Modules that the package names in a text, and that have a ``main``."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for name in re.findall(r'"(fusionloader(?:\.\w+)+)"', file.read_text()):
            module = PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
            if module.exists() and re.search(r"^def main\(", module.read_text(), re.MULTILINE):
                found.add(name)
    return found


def test_every_role_is_that_of_a_process_and_every_process_has_one():
    assert modules_that_are_started() == set(ROLES)


# ---- kinds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if kind.in_suite else pytest.mark.matrix)
        for name, kind in REGISTRY.items()
        if kind.made_by
    ],
)
def test_without_faults_a_kind_does_what_it_is_about(place, name):
    kind = REGISTRY[name]
    if lacking := missing(kind):
        pytest.skip(f"not installed: {', '.join(lacking)}")
    run = Run(place, kind, 0)
    try:
        run.begin()
        run.go(200, [NO_FAULT])
        run.finish()
    finally:
        run.clean()
    assert run.tally.made_by[kind.made_by] > 0


# ---- limits --------------------------------------------------------------------------------------

_KILLER = b"KILLER:"


def _kill_worker(file, filename=""):
    """Opens an image of a format of its own, which names a folder: counts there, and dies."""
    folder = Path(file.read()[len(_KILLER) :].decode())
    (folder / f"death-{os.getpid()}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def _jobs(setting):
    Image.register_open("KILLER", _kill_worker, lambda prefix: prefix.startswith(_KILLER))
    return job(setting)


KINDS = (EpochKind("jobs with an image that kills", _jobs, processes=2),)


# ---- the end of a run ----------------------------------------------------------------------------

_BATCHES, _EPOCHS = 5, 3


class Scripted:
    """A training process that gives all batches of all epochs, but for what a script changes.

    ``script`` has answers, or parts of them, by epoch and number of the call in it.
    """

    parts = ({"paths": []},)
    setting = SimpleNamespace(rank=0)

    def __init__(self, script):
        self.script, self.calls = script, 0
        self.epoch = self.at = 0

    def tell(self, name, *arguments):
        assert name == "next" and self.epoch < _EPOCHS, "an epoch is begun that is not known"

    def answer(self, waiting=None):
        self.calls += 1
        found = {"epoch": self.epoch, "calls": self.calls, "under_way": True, "skipped": []}
        found |= {"interrupted": None, "raised": "somewhere"}
        change = self.script.get((self.epoch, self.at), {})
        if "error" not in change and "end" not in change and self.at < _BATCHES:
            found["rows"] = rows_of(self.epoch, self.at)
        elif not change.keys() & {"error", "rows"}:
            found |= {"end": True, "under_way": False}
        found |= change
        if found["under_way"]:
            self.at += 1
        else:
            self.epoch, self.at = self.epoch + 1, 0
        return found

    def ask(self, name, *arguments, waiting=None):
        assert name in ("leave", "recover")
        if name == "leave" and (was_under_way := self.at > 0):
            self.epoch, self.at = self.epoch + 1, 0
            return was_under_way
        return name == "recover"


def rows_of(epoch, batch):
    return [f"{epoch}-{batch}-{row}" for row in range(BATCH)]


def ran(tmp_path, script, fault=NO_FAULT):
    """A run of all epochs, which was not over before."""
    disk = SimpleNamespace(path=tmp_path)
    run = Run(Laboratory(disk, None, tmp_path, tmp_path, _EPOCHS), PLANS[0], 0)
    run.trainers = [Scripted(script)]
    epochs = [[rows_of(epoch, batch) for batch in range(_BATCHES)] for epoch in range(_EPOCHS)]
    run.checks.courses[0, 0] = Course(list(range(_BATCHES * BATCH)), epochs, True)
    run.checks.excuse(Excuse("excused", takes=False))
    run.checks.excuse(Excuse("this one ends", ends=True))
    run.go(10 * _EPOCHS * _BATCHES, [fault])
    return run


def test_a_run_is_over_when_all_epochs_have_come(tmp_path):
    run = ran(tmp_path, {})
    assert (run.tally.epochs, run.tally.batches) == (_EPOCHS, _EPOCHS * _BATCHES)
    assert run.step == _EPOCHS * (_BATCHES + 1)


def test_an_epoch_may_be_left_at_its_begin_or_by_an_error_that_ends_it(tmp_path):
    script = {(0, 0): {"error": "excused", "under_way": False}, (1, 2): {"error": "this one ends"}}
    run = ran(tmp_path, script)
    assert (run.tally.epochs, run.tally.batches) == (1, 2 + _BATCHES)


@pytest.mark.parametrize(
    "script",
    [
        {(1, 4): {"end": True, "under_way": False}},
        {(_EPOCHS - 1, 2): {"under_way": False}},  # a batch, and nothing behind it
        {(1, 2): {"error": "excused", "under_way": False}},
        {(1, 2): {"epoch": 2}},
        {(1, 2): {"calls": 7}},
        {(1, _BATCHES): {"rows": rows_of(1, 4)}},
    ],
    ids=["ends early", "is dropped", "is dropped by an error", "is skipped", "answer", "too long"],
)
def test_an_epoch_that_is_not_over_properly_is_found(tmp_path, script):
    with pytest.raises(AssertionError):
        ran(tmp_path, script)


def test_behind_a_fault_that_takes_the_last_epoch_nothing_is_asked_for(tmp_path):
    def take_epoch(run, trainer, part):
        if not run.may_begin_anew(trainer, part):
            return False
        run.whole_epoch(trainer, part, -1)
        return True

    run = ran(tmp_path, {}, Fault("an epoch", take_epoch, asks=True))
    assert run.tally.faults["an epoch"] and run.trainers[0].epoch == _EPOCHS


# ---- interruptions -------------------------------------------------------------------------------


def test_an_interruption_comes_behind_a_finalizer_where_python_would_drop_it():
    def close_two():
        SharedPage(SharedPage._made("dropped"))  # its finalizer closes it
        SharedPage(SharedPage._made("closed")).close()

    steps = Steps("system/shm/descriptor.py")
    with pytest.raises(KeyboardInterrupt):
        steps.raise_at(0, KeyboardInterrupt(), close_two)
    assert steps.made > 1


@pytest.mark.matrix
def test_more_workers_may_die_at_a_sample_of_several_jobs_than_the_loader_takes(place, tmp_path):
    run = Run(place, KINDS[0], 0)
    try:
        run.begin()
        (course, _) = run.checks.courses.values()
        path = run.trainers[0].parts[0]["paths"][course.indices(0)[0]]
        original = Path(path).read_bytes()
        Path(path).write_bytes(_KILLER + os.fsencode(tmp_path))
        for trainer in run.trainers:
            trainer.tell("next", 0)
        # Several mini-batches that have the sample may be under way.
        enough = 4 * publications.MOST_DEATHS
        wait_until(lambda: len(os.listdir(tmp_path)) > enough or run.trainers[0].answered(0))
        Path(path).with_suffix(".new").write_bytes(original)
        Path(path).with_suffix(".new").replace(path)
        for trainer in run.trainers:
            run._take(trainer, 0)
        assert run.tally.batches == len(run.trainers)
        assert run.ask(run.trainers[0], "made_by")["batches by jobs together"]
        run.finish()
    finally:
        run.clean()
