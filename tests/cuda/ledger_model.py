"""One record of the ledger, with everything that can happen to it in any order, crashes included.

Each load and each compare-and-swap of csrc/cuda is a step of its own. ``explore`` goes through all
states that the steps reach and says what is wrong with the first bad one. ``FAULTS`` are protocols
with one mistake each: what finds nothing wrong with them finds nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

FREE, ARMED, YIELDED, BORROWED, REVOKING, RETURNED, QUARANTINED = [
    "free",
    "armed",
    "yielded",
    "borrowed",
    "revoking",
    "returned",
    "quarantined",
]
HELD = (BORROWED, REVOKING, QUARANTINED)

FAULTS = {
    "return before sync": "while a borrower's work is under way",
    "close after return": "has it open",
    "store instead of compare-and-swap": "while a borrower",
    "no generation": "before the lender's own work",
    "publish out of order": "before the lender's own work",
    "reclaim from the killed": "while a borrower",
    "reclaim by the clock": "while a borrower",
    "dropped offset": "outside of the block",
    "the dead are not looked for": "never comes back",
}
LOANS = 2
NOBODY = -1


class Word(NamedTuple):
    generation: int
    borrower_slot: int
    state: str


class Borrower(NamedTuple):
    """``at`` is its program counter; ``word`` what it read or wrote last."""

    at: str = "idle"
    word: Word | None = None
    open: bool = False
    writing: str = ""  # where its work on the device writes to
    alive: bool = True
    torn_down: bool = False  # its context on the device is gone


class World(NamedTuple):
    """``stream`` is the lender's: its own work, and publications by generation."""

    word: Word = Word(0, NOBODY, FREE)
    lender: str = "owns"
    read: Word | None = None
    stream: tuple[str | int, ...] = ()
    loans: int = 0
    borrowers: tuple[Borrower, ...] = (Borrower(),)

    def put(self, number: int, **changes: object) -> World:
        changed = self.borrowers[number]._replace(**changes)  # type: ignore[arg-type]
        before, after = self.borrowers[:number], self.borrowers[number + 1 :]
        return self._replace(borrowers=(*before, changed, *after))


Step = tuple[str, World]


def lender_steps(w: World, fault: str) -> Iterator[Step]:
    if w.lender == "owns" and w.loans < LOANS:
        generation = 0 if fault == "no generation" else w.word.generation + 1
        unordered = fault == "publish out of order"
        word = Word(generation, NOBODY, YIELDED if unordered else ARMED)
        stream: tuple[str | int, ...] = (*w.stream, "work")
        if not unordered:
            stream = (*stream, generation)
        yield (
            "lender arms",
            w._replace(word=word, lender="lent", stream=stream, loans=w.loans + 1),
        )
    if w.lender == "lent":
        yield "lender reads to revoke", w._replace(lender="revoking", read=w.word)
    if w.lender == "revoking":
        yield from revoke(w, fault)
    if w.lender == "waiting":
        yield "lender looks", w._replace(lender="taking", read=w.word)
        if w.word.state == REVOKING:  # one compare-and-swap: it fails where the word has changed
            word = w.word._replace(state=QUARANTINED)
            yield "lender quarantines", w._replace(word=word)
    if w.lender == "taking":
        yield from take_back(w, fault)


def revoke(w: World, fault: str) -> Iterator[Step]:
    assert w.read is not None
    state = w.read.state
    if state in (RETURNED, REVOKING, QUARANTINED):
        yield "lender has asked", w._replace(lender="waiting", read=None)
        return
    if w.word != w.read and fault != "store instead of compare-and-swap":
        yield "lender reads again", w._replace(read=w.word)
        return
    if state == BORROWED:
        word = w.read._replace(state=REVOKING)
        yield "lender asks", w._replace(word=word, lender="waiting", read=None)
    else:
        word = Word(w.read.generation, NOBODY, FREE)
        yield "lender takes what nobody has", w._replace(word=word, lender="owns", read=None)


def take_back(w: World, fault: str) -> Iterator[Step]:
    assert w.read is not None
    done = w.read.state == RETURNED
    if w.read.state in HELD:
        owner = w.borrowers[w.read.borrower_slot]
        done = not owner.alive and (owner.torn_down or fault == "reclaim from the killed")
        done = done and fault != "the dead are not looked for"
        done = done or fault == "reclaim by the clock"
    if not done or w.word != w.read:
        yield "lender waits on", w._replace(lender="waiting", read=None)
        return
    word = Word(w.read.generation, NOBODY, FREE)
    yield "lender takes back", w._replace(word=word, lender="owns", read=None)


def device_steps(w: World) -> Iterator[Step]:
    """The lender's stream: its own work on the block, and the publication behind it."""
    if not w.stream:
        return
    first, later = w.stream[0], w._replace(stream=w.stream[1:])
    if first == w.word.generation and w.word.state == ARMED:
        later = later._replace(word=w.word._replace(state=YIELDED))
    yield f"the lender's stream passes {first}", later


def borrower_steps(w: World, number: int, fault: str) -> Iterator[Step]:
    b = w.borrowers[number]
    if b.writing and not b.torn_down:
        yield "its work is done", w.put(number, writing="")
    if not b.alive:
        if not b.torn_down:
            yield "it is torn down", w.put(number, torn_down=True, writing="", open=False)
        return
    yield "it is killed", w.put(number, alive=False, at="dead", word=None)
    if b.at == "idle" and w.word.state == YIELDED:
        yield "it reads an offer", w.put(number, at="borrowing", word=w.word)
    if b.at == "borrowing":
        if w.word == b.word:
            word = Word(w.word.generation, number, BORROWED)
            yield "it borrows", w._replace(word=word).put(number, at="opening", word=word)
        else:
            yield "another was faster", w.put(number, at="idle", word=None)
    if b.at == "opening":
        yield "it opens", w.put(number, at="using", open=True)
    if b.at == "using":
        place = "elsewhere" if fault == "dropped offset" else "the block"
        if not b.writing:
            yield "it launches", w.put(number, writing=place)
        after = "closing" if fault == "return before sync" else "syncing"
        yield "it stops", w.put(number, at=after)
    if b.at == "syncing" and not b.writing:
        yield "it has waited", w.put(number, at="closing")
    if b.at == "closing":
        stays = fault == "close after return"
        yield "it closes", w.put(number, at="returning", open=stays)
    if b.at == "returning":
        held = w.word.borrower_slot == number and w.word.state in HELD
        assert b.word is not None
        if held and w.word.generation == b.word.generation:
            word = Word(w.word.generation, NOBODY, RETURNED)
            after = "closing late" if b.open else "idle"
            yield "it returns", w._replace(word=word).put(number, at=after, word=None)
    if b.at == "closing late":
        yield "it closes late", w.put(number, at="idle", open=False)


def steps(w: World, fault: str) -> Iterator[Step]:
    yield from lender_steps(w, fault)
    yield from device_steps(w)
    for number in range(len(w.borrowers)):
        for name, after in borrower_steps(w, number, fault):
            yield f"borrower {number}: {name}", after


def wrong(w: World) -> str | None:
    for b in w.borrowers:
        if b.writing == "elsewhere":
            return "a borrower writes outside of the block"
        if b.writing and "work" in w.stream:
            return "a borrower writes before the lender's own work is done"
        if w.lender == "owns" and b.writing:
            return "the lender uses the block while a borrower's work is under way"
        if w.lender == "owns" and b.open:
            return "the lender may free the block while a borrower has it open"
    if sum(bool(b.writing) for b in w.borrowers) > 1:
        return "two borrowers write into one block"
    return None


class Found(NamedTuple):
    """``problem`` is ``None`` where nothing is wrong; ``trace`` leads there."""

    states: int
    problem: str | None
    trace: list[str]


def explore(fault: str = "", borrowers: int = 1) -> Found:
    start = World(borrowers=(Borrower(),) * borrowers)
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    before: dict[World, list[World]] = {}
    waiting = deque([start])
    while waiting:
        w = waiting.popleft()  # the shortest way first
        if problem := wrong(w):
            return Found(len(came_from), problem, trace_to(w, came_from))
        for name, after in steps(w, fault):
            before.setdefault(after, []).append(w)
            if after not in came_from:
                came_from[after] = (w, name)
                waiting.append(after)
    traps = len(came_from) - len(reaching(lambda w: w.lender == "owns", came_from, before))
    problem = f"in {traps} states the block never comes back" if traps else None
    return Found(len(came_from), problem, [])


def trace_to(w: World, came_from: dict[World, tuple[World, str] | None]) -> list[str]:
    names = []
    while (origin := came_from[w]) is not None:
        w, name = origin
        names.append(name)
    return names[::-1]


def reaching(
    good: Callable[[World], bool],
    states: dict[World, tuple[World, str] | None],
    before: dict[World, list[World]],
) -> set[World]:
    reached = {w for w in states if good(w)}
    waiting = list(reached)
    while waiting:
        for origin in before.get(waiting.pop(), []):
            if origin not in reached:
                reached.add(origin)
                waiting.append(origin)
    return reached
