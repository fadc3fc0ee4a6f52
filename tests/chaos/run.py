"""One run: training processes of a kind, faults at seeded moments, and every batch compared."""

from __future__ import annotations

import contextlib
import random
import secrets
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from support.memory_groups import memory_group
from support.torchrun import environment
from support.waiting import wait_until

from chaos.checks import Checks, Course, Excuse
from chaos.disk import SmallDisk
from chaos.kinds.setting import SKIPS, EpochKind, Setting
from chaos.shim import FaultySystem
from chaos.tally import Tally
from chaos.trainer import Hang, Trainer, role_of
from chaos.traps import FAULTS, disarm, set_trap

STRIKES = 0.35  # how likely a fault is before a batch
_LET_GO_SECONDS = 0.25  # who waits so long has those go on that were stopped
# A signal handler that raises as one of these returns makes Python drop the number it has returned.
_MAKE_DESCRIPTORS = tuple(f"c_return {call}" for call in ("memfd_create", "eventfd", "pipe"))
# What an iterator says after an exception in training, if it does not go on.
NO_MORE = (
    "while the epoch was begun, and this iterator cannot go on|draws no more batches|"
    "this Preprocessor cannot go on"
)


class Failed(AssertionError):
    """A run has failed; the message has what was done, and the command that does it again."""


Rows = list[list[list[list[str]]]]  # by part, epoch and batch


@dataclass(slots=True)
class Laboratory:
    """What all runs use.

    Attributes:
        disk: to which runs write; its processes have the library of ``system``.
        images: of which each run has a copy.
        folder: for the runs.
        ended: training processes, of which no memory may be left.
        epochs: of a part at most, whose batches are made by undisturbed training.
        known: what it has made, by kind and rank.
    """

    disk: SmallDisk
    system: FaultySystem
    images: Path
    folder: Path
    epochs: int
    ended: list[int] = field(default_factory=list)
    known: dict[tuple[str, int], Rows] = field(default_factory=dict)


class Run:
    """Trains, and is struck.

    Attributes:
        chance: of all that is drawn at random.
        step: which batch comes next, of all.
        log: what was done, in words.
    """

    def __init__(self, laboratory: Laboratory, kind: EpochKind, seed: int) -> None:
        self.laboratory, self.kind, self.seed = laboratory, kind, seed
        self.chance = random.Random(seed)
        self.log: list[str] = []
        self._clock = time.monotonic()
        self._afterwards: list[tuple[int, Callable[[], None]]] = []
        self._stopped: list[psutil.Process] = []
        self.step = 0
        self._calls: Counter[tuple[int, int]] = Counter()  # of `next`, likewise
        self._stack = contextlib.ExitStack()
        self._group: Path | None = None
        self._without_group = False
        self._traps = self._interruptions = 0
        self._lost_descriptors = 0
        self._planted: tuple[str, str, int] | None = None
        self._moments: list[Callable[[], None]] = []
        self._begun: Counter[tuple[int, int]] = Counter()  # epochs, by trainer and part
        on_error = self.chance.choice(["raise", "skip"] if SKIPS in kind.subject_to else ["raise"])
        in_order = not kind.any_order or self.chance.random() < 0.5
        word = secrets.token_hex(6)
        self.folder = laboratory.folder / f"run-{word}"
        room = kind.make.__module__
        self.setting = Setting(
            kind.name,
            room,
            str(self.folder),
            str(laboratory.disk.path),
            on_error=on_error,
            in_order=in_order,
            word=word,
        )
        self.checks = Checks(self.folder)
        self.tally = self.checks.tally
        self.trainers: list[Trainer] = []
        self.complaints = ""  # what they had written to standard error when all was ended
        self.images = self.folder / "images"

    # ---- the processes -------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts the training processes; finds out once per kind what they should make."""
        shutil.copytree(self.laboratory.images, self.images)
        self.laboratory.system.watch(self.setting.written)
        (self.folder / "runtime").mkdir(mode=0o700)
        for rank in range(self.kind.processes):
            self._find_out(rank)
        for rank, ranks in enumerate(environment(self.kind.processes)):
            self.trainers.append(self._start(replace(self.setting, rank=rank), ranks))
        for trainer in self.trainers:
            trainer.hello()
            for number, part in enumerate(trainer.parts):
                rank = trainer.setting.rank
                known = self.laboratory.known[self.kind.name, rank][number]
                self.checks.courses[rank, number] = Course(
                    part["order"], known, self.setting.in_order
                )

    def _start(self, setting: Setting, ranks: dict[str, str]) -> Trainer:
        system = self.laboratory.system.environment
        own = {
            "XDG_RUNTIME_DIR": str(self.folder / "runtime"),
            "XDG_CACHE_HOME": self.setting.written,
        }
        if not self.kind.ranks:
            ranks = {}
        job = {"TORCHELASTIC_RUN_ID": f"chaos-{setting.word}"}
        return Trainer(self.laboratory.disk.starter, setting, {**system, **own, **job, **ranks})

    def _find_out(self, rank: int) -> None:
        if (self.kind.name, rank) in self.laboratory.known:
            return
        setting = replace(self.setting, plain=True, rank=rank, on_error="raise", in_order=True)
        trainer = self._start(setting, {})
        try:
            trainer.hello()
            self.laboratory.known[self.kind.name, rank] = trainer.ask("all", self.laboratory.epochs)
        finally:
            trainer.kill()  # how it would end is no part of the run, and takes seconds

    def victims(self) -> list[psutil.Process]:
        """Processes that may be struck."""
        return [process for trainer in self.trainers for process in trainer.processes()]

    def signal(self, victim: psutil.Process, number: signal.Signals) -> bool:
        """Sends a signal; returns whether there was somebody to get it."""
        role = role_of(victim)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
            if number == signal.SIGSTOP:
                self._stopped.append(victim)
            else:
                self.tally.kills[role] += 1
            self.note(f"{number.name} to {role} {victim.pid}")
            return True
        return False

    def note(self, text: str) -> None:
        """Notes what is done."""
        self.log.append(f"{time.monotonic() - self._clock:6.2f} s, batch {self.step}: {text}")

    def set_trap(self, place: str, what: str, argument: str = "") -> int:
        """Sets a trap in user code; returns its number."""
        self._traps += 1
        set_trap(str(self.folder), place, what, self._traps, argument)
        self.note(f"trap {self._traps} in the {place} that {what}")
        return self._traps

    def interrupt(self, kind: str, step: int) -> None:
        """Has the next ``next`` raise at a step that the loader makes in it."""
        self._interruptions += 1
        text = f"interruption {self._interruptions}"
        self._planted = kind, text, step
        self.note(f"{text}: {kind} at step {step}")
        self.checks.excuse(Excuse(rf"\b{text}\b" + self.of_sample, takes=False, times=1))

    @property
    def of_sample(self) -> str:
        """End of the pattern of an error of training, which may be a sample's that it makes."""
        return r"(?:.*\bSample: index (?P<index>\d+)\b)?" if self.kind.in_training else ""

    def for_a_moment(self, end: Callable[[], None]) -> None:
        """Does something when the batch under way has come, or takes long."""
        self._moments.append(end)

    def later(self, steps: int, what: Callable[[], None]) -> None:
        """Does something before the batch after so many."""
        self._afterwards.append((self.step + steps, what))

    # ---- the schedule --------------------------------------------------------------------------

    def go(self, steps: int, faults: list[Any]) -> None:
        """Takes so many batches, or all of all epochs, and has faults before some of them."""
        turn = None
        for self.step in range(steps):
            self._come_due(self.step)
            open_parts = self._open_parts()
            if not open_parts:
                break
            # A rank that is ahead for a while has idle workers, which others borrow.
            if not self.kind.ranks or turn not in open_parts or self.chance.random() < 0.1:
                turn = self.chance.choice(open_parts)
            trainer, part = turn
            strike = None
            if self.chance.random() < STRIKES:
                strike = self.chance.choice(faults)
            if strike is not None and self.chance.random() < 0.5:
                strike.strike(self, trainer, part)
                strike = None
                if (trainer, part) not in self._open_parts():  # ended, or ahead of other jobs
                    continue
            trainer.tell("next", part, self.chance.random() < 0.1, self._planted)
            self._planted = None
            others = [each for each, _ in open_parts if self.kind.jobs and each is not trainer]
            for other in others:
                other.tell("next", part)
            if strike is not None and not strike.asks:  # while training waits
                strike.strike(self, trainer, part)
                strike = None
            for each in (trainer, *others):
                self._take(each, part)
            if strike is not None:
                strike.strike(self, trainer, part)
        self._come_due(None)

    def _open_parts(self) -> list[tuple[Trainer, int]]:
        """Returns whose next batch is known; of jobs those that are behind, to begin together."""
        parts = [
            (trainer, part)
            for trainer in self.trainers
            for part in range(len(trainer.parts))
            if self._begun[trainer.setting.rank, part] < self.laboratory.epochs
        ]
        if not self.kind.jobs:
            return parts
        begun = [self._begun[trainer.setting.rank, part] for trainer, part in parts]
        return [each for each, epochs in zip(parts, begun, strict=True) if epochs == min(begun)]

    def _come_due(self, step: int | None) -> None:
        due = [what for at, what in self._afterwards if step is None or at <= step]
        self._afterwards = [
            each for each in self._afterwards if step is not None and each[0] > step
        ]
        for what in due:
            what()

    def _waiting(self, seconds: float) -> None:
        if seconds > _LET_GO_SECONDS:
            self.let_go()

    def let_go(self) -> None:
        """Has those go on that were stopped, and ends what is for a moment."""
        while self._moments:
            self._moments.pop()()
        while self._stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._stopped.pop().resume()

    def ask(self, trainer: Trainer, name: str, *arguments: Any) -> Any:
        """Has a training process do something, while stopped processes may go on."""
        return trainer.ask(name, *arguments, waiting=self._waiting)

    def leave(self, trainer: Trainer, part: int) -> None:
        """Drops an iterator; the next batch is one of another epoch."""
        key = trainer.setting.rank, part
        was_under_way = self.ask(trainer, "leave", part)
        self._begun[key] += was_under_way
        self.checks.courses[key].is_over |= was_under_way

    def pause(self, trainer: Trainer, cpu_seconds: float) -> None:
        """Takes nothing until workers have worked so long, or do nothing any more."""
        before = last = trainer.cpu_seconds()
        while True:
            time.sleep(0.02)
            now = trainer.cpu_seconds()
            if now - before > cpu_seconds or now <= last:
                return
            last = now

    def may_begin_anew(self, trainer: Trainer, part: int) -> bool:
        """Whether there is another epoch after the one under way."""
        return self._begun[trainer.setting.rank, part] + 1 < self.laboratory.epochs

    def whole_epoch(self, trainer: Trainer, part: int, bad: int) -> None:
        """Takes an epoch from its beginning, none of whose batches may have a bad sample."""
        self.leave(trainer, part)
        self.checks.bad = bad
        over = False
        while not over:
            trainer.tell("next", part)
            over = self._take(trainer, part)
        self.checks.bad = None

    def look(self, trainer: Trainer) -> None:
        """Has the children that training has forked look at their batches."""
        self.checks.kept(sum(self.ask(trainer, "children")))

    def memory_group(self, nbytes: int) -> Path | None:
        """Returns a control group of the run with little memory; ``None`` where there is none."""
        if self._group is None and not self._without_group:
            try:
                self._group = self._stack.enter_context(memory_group(nbytes)).folder
            except OSError:
                self._without_group = True
        return self._group

    def _take(self, trainer: Trainer, part: int) -> bool:
        """Compares what ``next`` has given; returns whether the epoch is over."""
        found = trainer.answer(self._waiting)
        while self._moments:
            self._moments.pop()()
        if found["interrupted"]:
            self.interrupted(found["interrupted"])
        key = trainer.setting.rank, part
        epoch, course = found["epoch"], self.checks.courses[key]
        self._calls[key] += 1
        assert found["calls"] == self._calls[key], f"call {found['calls']}, not {self._calls[key]}"
        # One that has ended, or never began, counts as the next one, which would begin.
        self._begun[key] = epoch + (not found["under_way"])
        course.begin(epoch)
        skipped = [(index, text) for index, text in found["skipped"]]
        if "end" in found:
            self.checks.end(course, skipped)
            self.ask(trainer, "recover")
            return True
        if "error" in found:
            self.note(f"error: {found['error'].splitlines()[0][:100]} at {found['raised']}")
            excused = self.checks.error(course, found["error"], skipped)
            if not found["under_way"]:
                self.checks.not_begun(course)
            elif excused.ends:
                self.leave(trainer, part)
        else:
            self.checks.batch(course, found["rows"], skipped)
            assert found["under_way"], f"epoch {epoch} is dropped behind a batch"
        return self._begun[key] > epoch

    def interrupted(self, place: str) -> None:
        """Notes an exception that was raised there, of ``Steps.place``, and what it explains."""
        self.tally.faults["an exception in training"] += 1
        self.note(f"raised at {place}")
        self.checks.excuse(Excuse(NO_MORE, ends=True, takes=False, times=1))
        self._lost_descriptors += place.endswith(_MAKE_DESCRIPTORS)

    # ---- the end -------------------------------------------------------------------------------

    def closed(self, opened: list[str]) -> None:
        """Checks what training has open after it has closed all.

        Raises:
            AssertionError: there are more descriptors than libraries leave and Python loses.
        """
        more = len(opened) - self.kind.leaves * len(self.trainers) - self._lost_descriptors
        self.tally.left_behind += max(more, 0)
        assert more <= 0, f"descriptors are left: {opened}"

    def finish(self) -> None:
        """Ends all; nothing may be left.

        Raises:
            AssertionError: something is.
        """
        self.laboratory.system.heal()
        self.laboratory.disk.clear()
        disarm(str(self.folder))
        self.tally.faults.update(FAULTS[what] for _, what, _ in self.checks.traps())
        self.let_go()
        for trainer in self.trainers:
            self.look(trainer)
            self.checks.kept(self.ask(trainer, "kept"))
            self.tally.made_by.update(self.ask(trainer, "made_by"))
            trainer.processes()
        opened = []
        for trainer in self.trainers:  # ranks end together
            trainer.tell("close")
        for trainer in self.trainers:
            opened += trainer.answer(self._waiting)
        for trainer in self.trainers:
            trainer.end()
        wait_until(
            lambda: not any(trainer.left() for trainer in self.trainers), "processes are left"
        )
        self.laboratory.ended += [trainer.script.pid for trainer in self.trainers]
        self.closed(opened)

    def clean(self) -> None:
        """Ends whatever is left after a failure."""
        self.complaints = "".join(trainer.complaints[-2500:] for trainer in self.trainers)
        self.let_go()
        for trainer in self.trainers:
            trainer.kill()
        self._stack.close()
        self.laboratory.system.heal()
        self.laboratory.disk.clear()
        self.laboratory.disk.remove(self.setting.written)
        shutil.rmtree(self.folder, ignore_errors=True)


def replayed(kind: EpochKind, seed: int, steps: int) -> str:
    """Returns the command that does a run again."""
    return (
        f"cd tests && python -m chaos --kind {kind.name!r} --seed {seed} --steps {steps} --runs 1"
    )


def run(laboratory: Laboratory, kind: EpochKind, seed: int, steps: int, faults: list[Any]) -> Tally:
    """Does one run.

    Raises:
        Failed: something was lost, doubled, altered, left behind, or hangs, or the campaign has a
            fault; it says how to do it again.
    """
    made = Run(laboratory, kind, seed)
    try:
        try:
            made.begin()
            made.note("training begins")
            made.go(steps, faults)
            made.note("all ends")
            made.finish()
        finally:
            made.clean()
    except Exception as error:
        made.tally.hangs += isinstance(error, Hang)
        done = "\n  ".join(made.log)
        setting = made.setting
        raise Failed(
            f"{error if isinstance(error, AssertionError) else repr(error)}\n{kind.name}, "
            f"on_error={setting.on_error!r}, in_order={setting.in_order}, step {made.step}:\n"
            f"  {done}\n{made.complaints}\nagain: {replayed(kind, seed, steps)}"
        ) from error
    return made.tally
