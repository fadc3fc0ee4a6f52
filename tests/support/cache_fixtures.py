"""A runtime folder of each test's own, and jobs that end with it."""

import pytest

from support.cache_jobs import Job, kill_holder


@pytest.fixture
def runtime_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path / "fusionloader"
    kill_holder()


@pytest.fixture
def cache_job(runtime_folder):
    made = []

    def make():
        made.append(Job())
        return made[-1]

    yield make
    for each in made:
        each.kill()
