"""One validation under way: a reader, and the parts that evaluate."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from fusionloader.addons.validation.dealing import Dealer, Stopped
from fusionloader.addons.validation.part_batches import PartBatches, PartProgress
from fusionloader.addons.validation.results import ValidationResult
from fusionloader.addons.validation.settings import ValidationOptions
from fusionloader.addons.validation.streams import Isolation, isolation_on, mark
from fusionloader.addons.validation.sums import Sums, merged, metrics_of, read
from fusionloader.addons.validation.threads import ValidationThread, limited
from fusionloader.addons.validation.unchanged import ModelWatch

_END_SECONDS = 5.0


class Crew:
    """The threads of validations, one after the other: a reader, and one for each part."""

    def __init__(self, options: ValidationOptions, compute_on: torch.device | None) -> None:
        names = [f"fusionloader-validation-{part}" for part in range(options.parts)]
        reader, *self.parts = limited(
            ["fusionloader-validation-reader", *names], options.threads_per_part
        )
        self.reader: ValidationThread = reader
        self.isolations: list[Isolation] = [isolation_on(compute_on) for _ in names]
        self.compute_on = compute_on

    def close(self) -> None:
        """Ends the threads; waits a moment for those that are still evaluating."""
        deadline = time.monotonic() + _END_SECONDS
        for worker in (self.reader, *self.parts):
            worker.end()
        for worker in (self.reader, *self.parts):
            worker.join(max(0.0, deadline - time.monotonic()))


class Run:
    """A validation: begins when it is made, and has ended when ``ended`` is set.

    Attributes:
        epoch: the number of it.
        parts: what each part has done so far.
        ended: set when no thread works on it any more.
    """

    def __init__(
        self,
        epoch: int,
        model: nn.Module,
        batches: Iterator[Any],
        options: ValidationOptions,
        crew: Crew,
        alternating: bool = False,
    ) -> None:
        """``alternating`` has one part compute at a time."""
        self.epoch = epoch
        self.parts = [PartProgress() for _ in crew.parts]
        self.ended = threading.Event()
        self._options, self._crew, self._model = options, crew, model
        self._began = time.monotonic()
        self._turn: AbstractContextManager[object] = (
            threading.Lock() if alternating else nullcontext()
        )
        self._watch = ModelWatch(model)
        self._copied = mark(crew.compute_on)
        self._dealer = Dealer(len(crew.parts))
        self._sums: list[Sums | None] = [None] * len(crew.parts)
        self._left = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._errors = threading.Lock()
        self._result: ValidationResult | None = None
        for number, part in enumerate(crew.parts):
            part.submit(_bound(self._evaluate_part, number))
        crew.reader.submit(_bound(self._read, batches))

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error."""
        return self.ended.is_set() and self._error is not None

    def remaining(self) -> float | None:
        """Returns the seconds until its timeout, ``None`` without one."""
        if self._options.timeout is None:
            return None
        return max(0.0, self._began + self._options.timeout - time.monotonic())

    def wait(self) -> None:
        """Waits for the end.

        Raises:
            TimeoutError: it takes longer than it may; with the epoch, and what parts have done.
        """
        if not self.ended.wait(self.remaining()):
            self.stop()
            taken = [f"part {n} took {part.batches}" for n, part in enumerate(self.parts)]
            raise TimeoutError(
                f"the validation of epoch {self.epoch} has not ended after "
                f"{self._options.timeout:g} s: of its batches {', '.join(taken)}. Does evaluate "
                "end when its batches do, and does val_loader? Or give a longer timeout"
            )

    def result(self) -> ValidationResult:
        """Returns what was found, after the end; raises what was raised."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """Gives it up: ``evaluate`` gets no more batches."""
        self._dealer.stop()

    # ---- the reader ----------------------------------------------------------------------------

    def _read(self, batches: Iterator[Any]) -> None:
        try:
            for number, batch in enumerate(batches):
                self._dealer.give(number, (batch, mark(self._crew.compute_on)))
            self._dealer.end()
        except BaseException as error:
            self._fail(error)
        finally:
            del batches
        for _ in self.parts:
            self._left.acquire()
        try:
            if self._error is None:
                self._result = self._merged()
        except BaseException as error:
            self._fail(error)
        del self._model, self._watch
        self.ended.set()

    def _merged(self) -> ValidationResult:
        self._watch.check()
        sums = merged([part for part in self._sums if part is not None])
        return ValidationResult(
            self.epoch,
            metrics_of(sums),
            sums,
            sum(part.batches for part in self.parts),
            sum(part.samples for part in self.parts),
            time.monotonic() - self._began,
        )

    def _fail(self, error: BaseException) -> None:
        with self._errors:
            if self._error is None:
                if hasattr(error, "add_note") and not isinstance(error, Stopped):  # Python 3.11
                    error.add_note(f"In the validation of epoch {self.epoch}.")
                self._error = error
        self._dealer.stop()

    # ---- a part --------------------------------------------------------------------------------

    def _evaluate_part(self, number: int) -> None:
        try:
            isolation = self._crew.isolations[number]
            with torch.no_grad(), isolation.entered(self._copied):
                batches = PartBatches(
                    self._dealer.take(number),
                    self.parts[number],
                    isolation,
                    self._options.device,
                    self._turn,
                )
                if batches.peek():
                    self._sums[number] = self._evaluated(number, batches)
                isolation.synchronize()
        except BaseException as error:
            self._fail(error)
        finally:
            self._left.release()

    def _evaluated(self, number: int, batches: PartBatches) -> Sums:
        with batches.computing():
            sums = read(self._options.evaluate(self._model, batches))
        if batches.peek():
            taken = self.parts[number].batches
            raise RuntimeError(
                f"evaluate returned after {taken} batches of part {number}, and there are more: "
                "its result would be of a part of the data. It should read all; to validate on "
                "less, give a val_loader that has fewer batches"
            )
        return sums


def _bound(method: Any, argument: Any) -> Any:
    """Returns a job that keeps its argument no longer than it runs."""
    arguments: list[Any] = [argument]
    return lambda: method(arguments.pop())
