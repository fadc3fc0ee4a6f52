"""The campaign's own rules: whom it strikes, which limits it lifts, and when a run is over."""

import os
import re
import signal
from pathlib import Path

import pytest
from PIL import Image
from support.waiting import wait_until

import fusionloader
from chaos.campaign import laboratory
from chaos.kinds.jobs import job
from chaos.kinds.setting import EpochKind
from chaos.run import Run
from chaos.trainer import ROLES
from fusionloader.engine.manager import publications

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


@pytest.fixture(scope="module")
def place():
    with laboratory(1) as made:
        yield made


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
