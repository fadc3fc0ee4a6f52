"""``OverlappedValidation`` validates a model while the next epoch trains (ol.data §III)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from fusionloader.addons.validation.replica import ModelReplica
from fusionloader.addons.validation.results import ValidationResult, ValidationStats
from fusionloader.addons.validation.run import Run, ThreadTeam
from fusionloader.addons.validation.runs import Runs, abandon
from fusionloader.addons.validation.settings import (
    Evaluate,
    Replica,
    ValidationOptions,
    WhenBusy,
    device_of,
)
from fusionloader.addons.validation.streams import computing_device
from fusionloader.options.aliases import AnyLoader, Batch
from fusionloader.system.finalizers import ExitFinalizer


class OverlappedValidation:
    """Validates a copy of a model in the background, while training goes on.

        validation = OverlappedValidation(evaluate, val_loader, parts=2)
        for epoch in range(epochs):
            train(model)
            validation.start(model, epoch)
            for result in validation.results():
                print(result.epoch, result.metrics)
        for result in validation.finish():
            print(result.epoch, result.metrics)

    ``start`` copies the model's parameters and buffers (ol.data §III-A) and returns. Batch *i* of
    ``val_loader`` goes to part *i* modulo ``parts``. Parts run concurrently, in threads (§III-B).
    Their sums are added in the order of parts; the paper averages the parts' averages. A result
    depends on the model, the loader and ``parts`` alone: ``validate`` returns the same.

    All methods have to be called by one thread, in the process that made the object.

    Args:
        evaluate: ``evaluate(model, batches)`` reads all batches from an iterator, without
            gradients, and returns names with (sum, count) pairs or totals, or a torchmetrics
            ``Metric`` or ``MetricCollection`` that it made. Each part calls it once.
        val_loader: a ``FusionLoader``, any ``DataLoader``, or another iterable that can be iterated
            again. It is iterated once for each ``start``.
        device: device of batches and replica; ``None`` leaves both where they are.
        parts: number of threads that evaluate.
        when_busy: what ``start`` does while a validation runs: ``"wait"`` for its end, as in the
            paper, or ``"skip"`` the new one.
        threads_per_part: number of threads that torch uses in each part, on the CPU.
        replica: a module that the model is copied into, or a function that makes one, instead of a
            deep copy of the first model. Sharded models (FSDP2) need one.
        timeout: time limit of a validation, in seconds; ``None`` for no limit.

    Raises:
        TypeError: an argument is not callable, or ``val_loader`` cannot be iterated again.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        val_loader: AnyLoader | Iterable[Batch],
        *,
        device: torch.device | str | int | None = None,
        parts: int = 1,
        when_busy: WhenBusy = "wait",
        threads_per_part: int = 1,
        replica: Replica | None = None,
        timeout: float | None = None,
    ) -> None:
        self._options = ValidationOptions(
            evaluate=evaluate,
            loader=val_loader,
            device=device_of(device),
            parts=parts,
            when_busy=when_busy,
            threads_per_part=threads_per_part,
            replica=replica,
            timeout=timeout,
        )
        self._replica = ModelReplica(replica, self._options.device)
        self._runs = Runs()
        self._pid = os.getpid()
        self._skipped = self._copies = self._waits = 0
        self._copy_seconds = self._wait_seconds = 0.0
        ExitFinalizer(self, abandon, self._runs)

    def start(self, model: nn.Module, epoch: int) -> bool:
        """Copies a model and begins to validate it; returns whether it did.

        With ``when_busy="skip"`` it returns ``False`` while another validation runs, and
        ``results`` yields a skipped result. DDP and ``torch.compile`` are unwrapped. For a model
        sharded by FSDP2 this is a collective: all ranks have to call it.

        Raises:
            BaseException: the error of an earlier validation, before anything is copied; its epoch
                is a note of the error (Python 3.11).
            TimeoutError: the previous validation has not ended in time.
            ValueError: the model has another structure than the first one.
            TypeError: the model cannot be copied.
            RuntimeError: a validation that was given up has not ended, or this process is a fork of
                the one that made the object.
        """
        self._check_process()
        self._raise_failure()
        running = self._runs.running
        if running is not None:
            if self._options.when_busy == "skip" and running.remaining() != 0.0:
                self._skipped += 1
                self._runs.unread.append(ValidationResult(epoch, skipped=True))
                return False
            began = time.monotonic()
            try:
                self._wait(running)
            finally:
                self._waits += 1
                self._wait_seconds += time.monotonic() - began
            self._raise_failure()
        self._runs.check_free()
        began = time.monotonic()
        replica = self._replica.copy(model)
        self._copies += 1
        self._copy_seconds += time.monotonic() - began
        team = self._runs.team
        if team is None:
            compute_on = computing_device(self._options.device, replica)
            team = self._runs.team = ThreadTeam(self._options, compute_on)
        # Here and not in the reader, because loaders draw from torch's global generator when they
        # begin: training then draws the same numbers as with a serial validation.
        batches = iter(self._options.loader)
        self._runs.begin(Run(epoch, replica, batches, self._options, team))
        return True

    def results(self) -> Iterator[ValidationResult]:
        """Yields the finished results in the order of epochs, each once, without waiting.

        Raises:
            BaseException: the error of a validation, in its place among the results.
            TimeoutError: a validation has not ended in time.
        """
        self._check_process()
        unread = self._runs.unread
        while unread:
            entry = unread[0]
            if isinstance(entry, Run) and not entry.ended.is_set():
                if entry.remaining() != 0.0:
                    return
                self._wait(entry)
            yield self._read(unread.popleft())

    def finish(self) -> list[ValidationResult]:
        """Waits for all validations; returns the unread results, in their order.

        Raises:
            BaseException: the error of a validation. The other results can still be read.
            TimeoutError: a validation has not ended in time.
        """
        self._check_process()
        if self._runs.running is not None:
            self._wait(self._runs.running)
        self._raise_failure()
        return list(self.results())

    def close(self) -> None:
        """Gives up the running validation, and ends the threads; finished results can be read.

        ``evaluate`` gets no more batches. The next ``start`` makes new threads.
        """
        if os.getpid() == self._pid:
            self._runs.close()

    def stats(self) -> ValidationStats:
        """Returns a snapshot of the counters."""
        runs = self._runs
        finished, running = runs.totals(), runs.running
        return ValidationStats(
            started=runs.started,
            finished=runs.started - (running is not None),
            skipped=self._skipped,
            copies=self._copies,
            copy_seconds=self._copy_seconds,
            waits=self._waits,
            wait_seconds=self._wait_seconds,
            batches=sum(part.batches for part in finished),
            samples=sum(part.samples for part in finished),
            seconds_by_part=tuple(part.seconds for part in finished),
        )

    def explain(self) -> str:
        """Returns the settings, and the cost for training so far, in words."""
        options, stats = self._options, self.stats()
        threads = options.threads_per_part
        what = "the one given" if options.replica is not None else "a copy of the first model"
        lines = [
            f"parts: {options.parts}, in threads that compute with {threads} thread"
            f"{'s' if threads > 1 else ''} each on the CPU",
            f"replica: {what}; while busy: {options.when_busy}",
            f"validations: {stats.finished} of {stats.started} ended, {stats.skipped} skipped",
        ]
        if stats.copies:
            lines.append(
                f"training spent {stats.copy_seconds / stats.copies * 1e3:.1f} ms on each of "
                f"{stats.copies} copies, and waited {stats.wait_seconds:.1f} s in {stats.waits} "
                "times"
            )
        return "\n".join(lines)

    def __enter__(self) -> OverlappedValidation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for all validations, unless an exception ends the block; results stay."""
        try:
            if kind is None:
                self._check_process()
                if self._runs.running is not None:
                    self._wait(self._runs.running)
                self._raise_failure()
        finally:
            self.close()

    # ---- runs ----------------------------------------------------------------------------------

    def _wait(self, run: Run) -> None:
        try:
            run.wait()
        except TimeoutError:
            self._runs.give_up(run)
            raise

    def _raise_failure(self) -> None:
        """Raises the error of the first failed validation that was not read."""
        for entry in self._runs.unread:
            if isinstance(entry, Run) and entry.failed:
                self._runs.unread.remove(entry)
                self._read(entry)

    def _read(self, entry: Run | ValidationResult) -> ValidationResult:
        if isinstance(entry, ValidationResult):
            return entry
        if entry.failed:
            self._replica.drop()  # evaluate may have changed it
        return entry.result()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this OverlappedValidation belongs to process {self._pid}, and its threads are "
                "not in a fork of it: make another one here"
            )
