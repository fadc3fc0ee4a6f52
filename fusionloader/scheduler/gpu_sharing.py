"""Off, temporal or spatial sharing of the device: measured once, and again after a change."""

from __future__ import annotations

from collections import Counter
from enum import Enum

from fusionloader.scheduler.changes import RateWatch

# CPU workers keep up if training waits for batches no more than this fraction of its time.
_WAITS = 0.02


class Mode(Enum):
    """How the GPU worker shares the device with training."""

    OFF = "off"
    TEMPORAL = "temporal"
    SPATIAL = "spatial"


_ROUNDS = 2  # turns of each mode
_ITERATIONS = 4  # training iterations that count in a turn
_WARM_UP = 2  # iterations before them: a launch of the mode before may still be running
_MARGIN = 0.05  # fraction by which another mode must be faster than off
_WINDOW = 16  # iterations that a rate is measured over after the decision


class SharingChoice:
    """Chooses the mode with the highest throughput, and off unless another one clearly wins.

    A profiling phase begins with a turn of off. If training waits for no batch in it, CPU workers
    keep up, and off is chosen. Otherwise every mode has two turns. The rate of a turn leaves
    out samples from the backlog of the turn before, or off would look as fast as the mode that has
    filled the backlog. A turn can therefore be shorter than the mini-batches in flight last. The
    best turn of each mode counts: a checkpoint makes a turn slow, but nothing makes one too fast.
    Another mode must beat off by 5 %, so that off wins ties.

    Profiling starts again when the number of CPU workers changes, when the rate moves by more than
    20 %, when it falls below the rate of off, or when CPU workers no longer keep up.

    Attributes:
        mode: the mode to use now.
        profiling: whether the modes are still being measured.
        rates: samples per second by mode, as last measured; empty before the first decision.
        decisions: number of decisions so far.
    """

    def __init__(self) -> None:
        """Starts the first profiling phase."""
        self._modes = list(Mode)
        self._turns: list[tuple[Mode, float]] = []
        self._workers: int | None = None
        self._watch = RateWatch(window=3)
        self.rates: dict[Mode, float] = {}
        self.decisions = 0
        self._start()

    def forbid(self, mode: Mode) -> None:
        """Never uses ``mode`` again, because it lacks memory; keeps the rates of other modes."""
        if mode is Mode.OFF or mode not in self._modes:
            return
        self._modes.remove(mode)
        if not self.profiling:
            if self.mode is mode:
                self._start()
            return
        self._turns = [turn for turn in self._turns if turn[0] is not mode]
        if self.mode is mode:
            self._begin_turn()
            self._next()

    def allows(self, mode: Mode) -> bool:
        return mode in self._modes

    def _start(self) -> None:
        self.profiling = len(self._modes) > 1
        self.mode = Mode.OFF
        self._turns = []
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._seen = 0
        self._seconds = 0.0
        self._waited = 0.0
        self._samples = 0
        self._backlog_before: int | None = None

    def iteration(
        self, seconds: float, samples: int, cpu_workers: int, backlog: int, waited: float
    ) -> None:
        """Adds a training iteration; may change the mode.

        Args:
            seconds: time since the iteration before.
            samples: number of samples that training took.
            cpu_workers: number of CPU workers now.
            backlog: number of samples that are complete and not delivered now.
            waited: part of ``seconds`` that training waited for the batch.
        """
        if self._workers not in (None, cpu_workers):
            self._start()
        self._workers = cpu_workers
        self._seen += 1
        if self._seen <= _WARM_UP or self._backlog_before is None:
            self._backlog_before = backlog
            return
        self._seconds += seconds
        self._waited += waited
        self._samples += samples
        counted = _ITERATIONS if self.profiling else _WINDOW
        if self._seen < _WARM_UP + counted:
            return
        from_backlog = max(self._backlog_before - backlog, 0)
        rate = (self._samples - from_backlog) / max(self._seconds, 1e-9)
        waits = self._waited > _WAITS * self._seconds
        self._begin_turn()
        if self.profiling:
            self._end_turn(rate, waits)
        else:  # the mode stays the same: no warm-up
            self._seen, self._backlog_before = _WARM_UP, backlog
            self._check(rate, waits)

    def _end_turn(self, rate: float, waits: bool) -> None:
        self._turns.append((self.mode, rate))
        if len(self._turns) == 1 and not waits:
            self._decided(Mode.OFF, {Mode.OFF: rate})
        else:
            self._next()

    def _next(self) -> None:
        """Begins a turn of the mode with the fewest turns, or decides."""
        turns = Counter(mode for mode, _ in self._turns)
        self.mode = min(self._modes, key=turns.__getitem__)
        if turns[self.mode] == _ROUNDS:
            self._decide()

    def _decide(self) -> None:
        rates = {mode: max(r for m, r in self._turns if m is mode) for mode in self._modes}
        bar = rates[Mode.OFF] * (1 + _MARGIN)
        best = max(self._modes, key=rates.__getitem__)
        self._decided(best if rates[best] > bar else Mode.OFF, rates)

    def _decided(self, mode: Mode, rates: dict[Mode, float]) -> None:
        self.mode, self.rates = mode, rates
        self.profiling = False
        self.decisions += 1
        self._watch.forget()

    @property
    def _cpu_keeps_up(self) -> bool:
        """Whether the decision was off because CPU workers keep up: no other mode was measured."""
        return len(self.rates) == 1

    def _check(self, rate: float, waits: bool) -> None:
        moved = self._watch.moved(rate)
        now = self._watch.current
        worse = self.mode is not Mode.OFF and now is not None and now < self.rates[Mode.OFF]
        late = self._cpu_keeps_up and waits
        if len(self._modes) > 1 and (moved or worse or late):
            self._start()

    def describe(self) -> str:
        """One line for the log: the decision and the rates behind it."""
        if not self.rates:
            return "GPU worker: still profiling"
        rates = ", ".join(f"{mode.value} {rate:,.0f}" for mode, rate in self.rates.items())
        state = "profiling again" if self.profiling else self.mode.value
        if not self.profiling and self._cpu_keeps_up:
            state = "off, since CPU workers keep up"
        return f"GPU worker: {state} (samples/s: {rates})"
