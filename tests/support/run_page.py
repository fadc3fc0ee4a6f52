"""Runs the code of a page as a reader would: block by block, in one namespace.

    python -m support.run_page docs/guide/samplers.md

What the page speaks of and does not make itself (``dataset``, ``transform``, files of a name) is
made before, in the current folder, which should be empty.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from contextlib import ExitStack

from support import page_names
from support.page_code import ROOT, Block, python_blocks


def main() -> None:
    (page,) = sys.argv[1:]
    sys.path.append(str(ROOT / "examples"))
    names = sys.modules["__main__"].__dict__
    names.update(page_names.common())
    with ExitStack() as until_the_end:  # servers that the page speaks of
        names.update(page_names.of_page(page, names, until_the_end))
        for block in python_blocks(page):
            if block.reason is None:
                print(f"{block.place} runs", flush=True)
                _run(block, names)


def _run(block: Block, names: dict[str, object]) -> None:
    text = "\n" * block.line + block.code  # tracebacks show the page's lines
    code = compile(text, str(ROOT / block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waiting = eval(code, names)
    if inspect.iscoroutine(waiting):
        asyncio.run(waiting)


if __name__ == "__main__":
    main()
