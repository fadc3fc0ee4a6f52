"""The trace command: a script's loaders are recorded without a change to the script."""

import sys

import pytest
from support import warm_start

from fusionloader.__main__ import main
from fusionloader.observe.trace import read_timeline

SCRIPT = """
import sys
from torch import arange
from torch.utils.data import TensorDataset
from fusionloader import FusionLoader

def loader(count):
    return FusionLoader(TensorDataset(arange(count)), 2, num_workers=1, collate_fn=lambda s: s)

train = loader(20)
for epoch in range(2):
    for each in (train, loader(6)):  # the second one is made anew
        for batch in each:
            pass
print(*sys.argv[1:])
sys.exit(int(sys.argv[-1]))
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def steps(path):
    return len(read_timeline(path).steps)


@pytest.mark.parametrize("training", [["train.py"], ["-m", "train"]])
@pytest.mark.parametrize("behind", [False, True])
def test_each_loader_of_a_script_has_a_trace(script, training, behind, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(script), *sys.path])
    output = ["-o", "run.json"]
    own = ["-o", "x", "--status", "3"] if behind else ["--status", "3"]
    given = [*training, *output, *own] if behind else [*output, *training, *own]
    with pytest.raises(SystemExit) as ended:
        main(["trace", *given])
    assert ended.value.code == 3
    found = capsys.readouterr()
    assert found.out.split() == own
    assert steps("run.json") == 20 and steps("run-2.json") == 3
    assert "run.json: 20 steps of TensorDataset (20 samples) at train.py:13" in found.err
    assert "not traced: 1 loaders like it, made later" in found.err


def test_a_script_that_fails_leaves_its_trace(script):
    (script / "train.py").write_text(SCRIPT.replace("pass", "1 / 0"))
    ended = warm_start.completed("-m", "fusionloader", "trace", "--steps", "5", "train.py")
    assert ended.returncode == 1 and "ZeroDivisionError" in ended.stderr
    assert steps("trace.json.gz") == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "give a script that trains"),
        (["missing.py"], "there is no script missing.py"),
        (["-o", "run.txt", "train.py"], "the name of a trace says its format by its end"),
        (["-o", "missing/run.json", "train.py"], "No such file or directory"),
    ],
)
def test_bad_input_is_an_error_of_one_line_before_the_script_runs(script, given, why, capsys):
    assert main(["trace", *given]) == 2
    told = capsys.readouterr()
    assert why in told.err and told.err.count("\n") == 1 and not told.out


def test_a_script_without_a_loader_leaves_no_file(script, capsys):
    (script / "train.py").write_text("print('no loader')")
    assert main(["trace", "train.py"]) == 2
    assert "no FusionLoader was iterated" in capsys.readouterr().err
    assert not (script / "trace.json.gz").exists()
