"""Mistakes in the native code are noticed: each mutant fails the test that is there for it.

The tests run in a process of their own, against a package whose extension was built of the sources
with one passage replaced.
"""

import os
import re
import signal
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pybind11
import pytest
from support.fake_cuda import CSRC, compile_with
from support.waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="mutants are built without sanitizers"
)

HERE = Path(__file__).parent
TESTS_FAILED = 1
PLUGINS = ("no:cacheprovider", "pytest_timeout", "support.fake_cuda", "support.lending_fixtures")
KILLERS = [HERE / f"test_{name}.py" for name in ("loans", "overdue", "bad_input")]
KILLERS.append(HERE.parent / "cuda" / "test_retired.py")
PACKAGE = HERE.parents[1] / "fusionloader"
SOURCES = [
    *sorted((CSRC / "cuda").glob("*.cpp")),
    CSRC / "queue" / "identity.cpp",
    CSRC / "queue" / "mapping.cpp",
    *sorted((CSRC / "bindings").glob("cuda*.cpp")),
    HERE / "native_alone.cpp",
]


@dataclass(frozen=True)
class Mutant:
    source: str
    right: str
    wrong: str
    killers: str  # names of tests, as for pytest -k


MUTANTS = {
    "return before sync": Mutant(
        "borrower.cpp", "    else\n      here.synchronize();\n", "", "a_return_waits and everything"
    ),
    "dropped offset": Mutant(
        "borrower.cpp",
        "opened->second.base + offer.offset",
        "opened->second.base",
        "in_the_middle_of_an_allocation",
    ),
    "no generation": Mutant(
        "lender_ledger.cpp",
        "LoanWord::generation(word) + 1",
        "LoanWord::generation(word)",
        "what_an_earlier_loan_left",
    ),
    "publish out of order": Mutant(
        "lender.cpp",
        "here.call_after(*stream, &publish, publication.get());",
        "publish(publication.get());",
        "on_offer_when_its_stream",
    ),
    "never close": Mutant(
        "borrower.cpp",
        "OnDevice(place.first).close(base);",
        "static_cast<void>(base);",
        "in_the_middle_of_an_allocation",
    ),
    "reclaim from the living": Mutant(
        "lender_ledger.cpp",
        "if (!ended(holder(word))) return false;",
        "",
        "quarantined_block_stays_out",
    ),
    "the dead are not looked for": Mutant(
        "lender_ledger.cpp",
        "if (!ended(holder(word))) return false;",
        "return false;",
        "overdue_child_is_killed",
    ),
    "close after return": Mutant(
        "borrower.cpp",
        "  close(place);\n  held_.erase(held);\n  ledger_.give_back(ticket);\n",
        "  held_.erase(held);\n  ledger_.give_back(ticket);\n  close(place);\n",
        "has_closed_a_block",
    ),
    "any device will do": Mutant(
        "driver.cpp",
        "if (this->uuid(device) == uuid) return device;",
        "return device;",
        "devices_are_matched",
    ),
    "free before the device was waited for": Mutant(
        "pool.cpp",
        "for (const int device : devices) OnDevice(device).synchronize();",
        "",
        "its_room_is_given_again",
    ),
    "forgotten where waiting failed": Mutant(
        "pool.cpp",
        "retired_.insert(retired_.end(), settled.begin(), settled.end());",
        "",
        "of_a_lost_device",
    ),
}


def compile_source(source, target):
    command = ["g++", "-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden", f"-I{CSRC}"]
    command += [f"-I{pybind11.get_include()}", f"-I{sysconfig.get_paths()['include']}"]
    compile_with([*command, "-c", str(source), "-o", str(target)])


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects")
    made = {source.name: folder / f"{number}.o" for number, source in enumerate(SOURCES)}
    assert len(made) == len(SOURCES)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_source, SOURCES, made.values()))
    return made


# An editable install is found by a finder of its own, before any path.
SITE = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in type(each).__module__]
"""


def make_package(folder, objects):
    """The package with another extension: nothing but what fusionloader.system.gpu_memory needs."""
    (folder / "sitecustomize.py").write_text(SITE)
    package = folder / "fusionloader"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "system").symlink_to(PACKAGE / "system")
    library = package / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = ["g++", "-shared", *map(str, objects), "-o", str(library), "-pthread", "-ldl"]
    compile_with(command)


def run_tests(folder, killers):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=150"]
    for plugin in PLUGINS:
        command += ["-p", plugin]
    command += ["--noconftest", "-k", killers]
    command += map(str, KILLERS)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (folder, HERE.parent))),
        "PYTHONSAFEPATH": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    said = {"cwd": HERE.parents[1], "env": env, "capture_output": True, "text": True}
    where = [sys.executable, "-c", "import fusionloader; print(fusionloader.__file__)"]
    assert Path(subprocess.run(where, **said).stdout.strip()).parents[1] == folder
    return subprocess.run(command, **said, timeout=PATIENCE)


def changed(mutant):
    text = (CSRC / "cuda" / mutant.source).read_text()
    assert text.count(mutant.right) == 1, "the source has changed: write the mutant anew"
    return text.replace(mutant.right, mutant.wrong)


def test_mutants_are_of_the_sources_as_they_are_and_have_tests_that_may_find_them():
    names = [
        name
        for file in KILLERS
        for name in re.findall(r"^def test_(\w+)", file.read_text(), re.MULTILINE)
    ]
    for mutant in MUTANTS.values():
        changed(mutant)
        named = mutant.killers.partition(" and ")[0]  # a parameter may follow
        assert any(named in name for name in names), mutant.killers


@pytest.mark.mutants
@pytest.mark.timeout(600)
def test_the_tests_that_find_mutants_pass_without_one(tmp_path, objects, fake_library):
    make_package(tmp_path, objects.values())
    done = run_tests(tmp_path, " or ".join(f"({m.killers})" for m in MUTANTS.values()))
    assert done.returncode == 0, done.stdout
    passed = int(done.stdout.splitlines()[-1].split()[0])
    assert passed >= len(MUTANTS), done.stdout


@pytest.mark.mutants
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(tmp_path, objects, fake_library, name):
    mutant = MUTANTS[name]
    source = tmp_path / mutant.source
    source.write_text(changed(mutant))
    compile_source(source, tmp_path / "changed.o")
    others = [made for source, made in objects.items() if source != mutant.source]
    make_package(tmp_path, [*others, tmp_path / "changed.o"])
    done = run_tests(tmp_path, mutant.killers)
    found = done.returncode in (TESTS_FAILED, -signal.SIGABRT)  # or the fake driver stopped it
    assert found, f"nobody noticed: {done.stdout}"
