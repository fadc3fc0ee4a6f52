"""Digests of user code: equal for equal code in other processes, and different for other code."""

import functools
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from fusionloader.sharing.compatibility import digest_code

SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
import test_code_digest as made
print(made.digest_code(made.Own(), made.LAMBDA))
"""


class Base:
    factor = 2

    def scaled(self, value):
        return value * self.factor


class Own(Base):
    def __init__(self):
        self.names = {f"name {number}" for number in range(50)}
        self.paths = ["".join(["a", "b"]), "ab"]  # equal, and not the same object
        self.weights = torch.arange(4.0)
        self.mean = np.ones(3)
        self.transform = v2.Compose([v2.RandomCrop(8), v2.Lambda(lambda image: image + 1)])
        self.steps = [self.scaled, self]

    def __getitem__(self, index):
        return self.scaled(helper(index))


def helper(index):
    return index + LIMIT


LIMIT = 3
LAMBDA = lambda samples: samples[0]  # noqa: E731


def test_it_is_the_same_in_another_process():
    here = Path(__file__)
    command = [sys.executable, "-c", SCRIPT, str(here.parent), str(here.parents[2])]
    seeded = os.environ | {"PYTHONHASHSEED": "1"}  # which sets are ordered by
    found = subprocess.run(command, env=seeded, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == digest_code(Own(), LAMBDA)


def compiled(text, **names):
    """What a module has that a script defines."""
    module = types.ModuleType("some_script")
    module.__dict__.update(names)
    exec(compile(text, "some_script.py", "exec"), module.__dict__)
    return module.Own if "class Own" in text else module.f


CHANGES = {
    "a constant": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "an operation": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "a default": ("def f(x, y=1): return x", "def f(x, y=2): return x"),
    "an inner function": ("def f(x): return (lambda: x)()", "def f(x): return (lambda: -x)()"),
    "a helper": (
        "def g(): return 1\ndef f(x): return g()",
        "def g(): return 2\ndef f(x): return g()",
    ),
    "a global constant": ("N = 1\ndef f(x): return x + N", "N = 2\ndef f(x): return x + N"),
    "a method": ("class Own:\n def m(self): return 1", "class Own:\n def m(self): return 2"),
    "an attribute": ("class Own:\n size = 1", "class Own:\n size = 2"),
    "a method under a decorator of torch": (
        "import torch\nclass Own:\n @torch.no_grad()\n def m(self): return 1",
        "import torch\nclass Own:\n @torch.no_grad()\n def m(self): return 2",
    ),
    "a list of a class": ("class Own:\n sizes = [1]", "class Own:\n sizes = [2]"),
    "a cached property": (
        "import functools\nclass Own:\n @functools.cached_property\n def m(self): return 1",
        "import functools\nclass Own:\n @functools.cached_property\n def m(self): return 2",
    ),
    "a property that can be set": (
        "class Own:\n m = property(None, lambda self, to: 1)",
        "class Own:\n m = property(None, lambda self, to: 2)",
    ),
    "a cached function": (
        "import functools\n@functools.cache\ndef g(): return 1\ndef f(x): return g()",
        "import functools\n@functools.cache\ndef g(): return 2\ndef f(x): return g()",
    ),
    "a global partial function": (
        "import functools\ng = functools.partial(max, 1)\ndef f(x): return g(x)",
        "import functools\ng = functools.partial(max, 2)\ndef f(x): return g(x)",
    ),
    "a global list": ("N = [1]\ndef f(x): return N[0]", "N = [2]\ndef f(x): return N[0]"),
    "a module of the user": (
        "import types\nown = types.ModuleType('own')\nown.__file__ = 'own.py'\nown.g = 1\n"
        "def f(x): return own.g",
        "import types\nown = types.ModuleType('own')\nown.__file__ = 'own.py'\nown.g = 2\n"
        "def f(x): return own.g",
    ),
    "a module in a user's module": (
        "import types\nown = types.ModuleType('own')\nown.part = types.ModuleType('own.part')\n"
        "own.part.g = 1\ndef f(x): return own.part.g",
        "import types\nown = types.ModuleType('own')\nown.part = types.ModuleType('own.part')\n"
        "own.part.g = 2\ndef f(x): return own.part.g",
    ),
    "what a parameter takes": ("def f(x): return x", "def f(*x): return x"),
    "a field of a data class": (
        "import dataclasses\n@dataclasses.dataclass\nclass Own:\n size: int = 1",
        "import dataclasses\n@dataclasses.dataclass\nclass Own:\n size: int = 2",
    ),
    "a default factory": (
        "import dataclasses\n@dataclasses.dataclass\nclass Own:\n"
        " sizes: list = dataclasses.field(default_factory=list)",
        "import dataclasses\n@dataclasses.dataclass\nclass Own:\n"
        " sizes: tuple = dataclasses.field(default_factory=tuple)",
    ),
    "a base": (
        "class B:\n size = 1\nclass Own(B): pass",
        "class B:\n size = 2\nclass Own(B): pass",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_code_has_another_digest(name):
    first, again, other = (compiled(text) for text in (*CHANGES[name][:1] * 2, CHANGES[name][1]))
    assert digest_code(first) == digest_code(again)
    assert digest_code(first) != digest_code(other)


ONE = []
VALUES = {
    "numbers": (1, 2),
    "types": (1, 1.0),
    "tensors": (torch.zeros(2), torch.ones(2)),
    "subclasses": (tv_tensors.Image(torch.zeros(2, 2)), tv_tensors.Mask(torch.zeros(2, 2))),
    "gradients": (torch.zeros(2), torch.zeros(2, requires_grad=True)),
    "formats": tuple(
        tv_tensors.BoundingBoxes(torch.zeros(1, 4), format=name, canvas_size=(9, 9))
        for name in ("XYXY", "XYWH")
    ),
    "shapes": (torch.zeros(2, 2), torch.zeros(4)),
    "arrays": (np.zeros(2), np.ones(2)),
    "sets": ({"a", "b"}, {"a", "c"}),
    "lists that are one": ([ONE, ONE], [[], []]),
    "partial functions": (functools.partial(max, 1), functools.partial(max, 2)),
    "functions of Python": (max, min),
}


@pytest.mark.parametrize("name", VALUES)
def test_other_values_have_another_digest(name):
    first, other = VALUES[name]
    assert digest_code(first) != digest_code(other)


def test_what_the_environment_sets_does_not_count(monkeypatch):
    function = compiled("from os import environ\ndef f(x): return environ['HOME']")
    before = digest_code(function)
    monkeypatch.setenv("SOME_RANK", "1")
    assert digest_code(function) == before


def test_what_cannot_be_pickled_has_none():
    with open(os.devnull) as file, pytest.raises(TypeError, match="pickle"):
        digest_code(file)
