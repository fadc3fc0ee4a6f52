"""Files that are damaged, replaced or gone, or that cannot be read, while training goes on."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from chaos.checks import Excuse
from chaos.faults.fault import Fault
from chaos.kinds.setting import DISK, FILES

if TYPE_CHECKING:
    from chaos.run import Run
    from chaos.trainer import Trainer

_PAGE = 4096


def _truncate(run: Run, path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def _empty(run: Run, path: str) -> None:
    os.truncate(path, 0)


def _overwrite(run: Run, path: str) -> None:
    """In place, while somebody may be reading."""
    with open(path, "r+b") as file:
        file.write(b"this is not an image" * 10)


def _replace(run: Run, path: str) -> None:
    with open(f"{path}.new", "wb") as file:
        file.write(b"neither is this")
    os.replace(f"{path}.new", path)


def _unlink(run: Run, path: str) -> None:
    os.unlink(path)


def _fail_reading(run: Run, path: str) -> None:
    run.laboratory.system.fail(path, reading=errno.EIO)


def _fail_opening(run: Run, path: str) -> None:
    run.laboratory.system.fail(path, opening=errno.EIO)


def _renewed(run: Run, trainer: Trainer, part: int) -> bool:
    """Another file of the same bytes under the same name."""
    path = run.chance.choice(trainer.parts[part]["paths"])
    shutil.copyfile(_original(run, path), f"{path}.new")
    os.replace(f"{path}.new", path)
    return True


def _original(run: Run, path: str) -> str:
    return str(run.laboratory.images / os.path.relpath(path, run.images))


def _for_a_while(damage: Callable[[Run, str], None]):
    """Of one file, and then it is as before."""

    def strike(run: Run, trainer: Trainer, part: int) -> bool:
        paths = trainer.parts[part]["paths"]
        index = run.chance.randrange(len(paths))
        path = paths[index]
        if not os.path.exists(path):  # it is gone already
            return False
        damage(run, path)
        excuse = run.checks.excuse(Excuse(re.escape(path), index))

        def heal() -> None:
            run.laboratory.system.heal()
            shutil.copyfile(_original(run, path), f"{path}.new")
            os.replace(f"{path}.new", path)
            run.checks.mended(excuse)

        run.later(run.chance.randint(1, 20), heal)
        return True

    return strike


def _for_an_epoch(run: Run, trainer: Trainer, part: int) -> bool:
    """Of one file, for a whole epoch, which has to tell of it wherever the sample comes."""
    paths = trainer.parts[part]["paths"]
    index = run.chance.randrange(len(paths))
    path = paths[index]
    if not os.path.exists(path) or not run.may_begin_anew(trainer, part):
        return False
    _truncate(run, path)
    excuse = run.checks.excuse(Excuse(re.escape(path), index))
    run.whole_epoch(trainer, part, index)
    shutil.copyfile(_original(run, path), f"{path}.new")
    os.replace(f"{path}.new", path)
    run.checks.mended(excuse)
    return True


def _fill(run: Run, trainer: Trainer, part: int) -> bool:
    """The disk has no room for some batches, or only a little, or takes no more files."""
    disk = run.laboratory.disk
    if not disk.is_real:
        return False
    left, files = run.chance.choice([(0, False), (_PAGE, False), (3 * _PAGE, False), (0, True)])
    disk.fill(left=left, files=files)
    run.later(run.chance.randint(1, 20), disk.clear)
    return True


def _fail_writing(run: Run, trainer: Trainer, part: int) -> bool:
    """Nothing more can be written for some batches."""
    system = run.laboratory.system
    system.fill()

    def heal() -> None:
        if system.hits:
            run.tally.faults["ENOSPC from write"] += 1
        system.heal()

    run.later(run.chance.randint(1, 20), heal)
    return False


FAULTS = (
    *(
        Fault(name, _for_a_while(damage), FILES)
        for name, damage in (
            ("a file is truncated", _truncate),
            ("a file is emptied", _empty),
            ("a file is overwritten", _overwrite),
            ("a file is replaced", _replace),
            ("a file vanishes", _unlink),
            ("EIO from read", _fail_reading),
            ("EIO from open", _fail_opening),
        )
    ),
    Fault("the disk is full", _fill, DISK, weight=3),
    Fault("ENOSPC from write", _fail_writing, DISK, weight=2),
    Fault("a file is written again", _renewed, FILES),
    Fault("a bad file for an epoch", _for_an_epoch, FILES, asks=True),
)
