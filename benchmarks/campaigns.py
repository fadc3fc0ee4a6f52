"""Runs campaigns one after the other, keeps what each has said, and writes the page that shows it.

    make campaigns                        # all, which takes about two days on two cores
    make campaigns ONLY="chaos soak"
    python -m benchmarks.campaigns --page # writes docs/how/campaigns.md again

Each is a process of ``make`` with a limit of time. One that fails, or is ended at its limit, does
not keep the next one from running. One whose recipe exits with 77 cannot run on this machine, which
is no failure: its line that begins with "fusionloader:" says why. Each adds a line of JSON to
``results/campaigns.ndjson``: what was run, on which code and machine, with which seed, for how
long, with which exit status, and the last line that it printed, which has its counts. All that it
printed is in ``build/campaigns`` until its next run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from fusionloader.cli.environment import provenance

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "campaigns.ndjson"
PRINTED = ROOT / "build" / "campaigns"
PAGE = ROOT / "docs" / "how" / "campaigns.md"
ENDED = "ended at its limit"
CANNOT_RUN = "cannot run here"
Run = dict[str, Any]
_SUMMARY = re.compile(r"\d+ (passed|failed|skipped)\b")


@dataclass(frozen=True, slots=True)
class Campaign:
    """A target of the Makefile.

    Attributes:
        name: what it is called here; the target, unless ``command`` names another.
        hours: its limit.
        command: targets and variables for ``make``.
        tries: what it tries; empty if the Makefile says so behind the target.
        python: release that it needs, which ``.ci/pythons`` has to find; empty for any.
    """

    name: str
    hours: float = 1.0
    command: Sequence[str] = ()
    tries: str = ""
    python: str = ""


def _suite(version: str) -> Campaign:
    command = ("test", f"VENV=build/python{version}")
    return Campaign(f"python{version}", 1.0, command, f"the suite on Python {version}", version)


ALL = (
    Campaign("chaos", 2.5, ("chaos", "CHAOS_SECONDS=7200")),
    Campaign("kills", 4.0),
    Campaign("ends"),
    Campaign("corrupt", 2.0),
    Campaign("soak", 4.0),
    Campaign("matrix", 4.0),
    Campaign("mutants"),
    Campaign("draws"),
    Campaign("asan", 2.0),
    Campaign("fuzz", 2.0, ("fuzz", "FUZZ_SECONDS=600")),
    Campaign("neon"),
    Campaign("architectures"),
    Campaign("ray"),
    Campaign("servers"),
    Campaign("studies", 2.0),
    Campaign("scripts", 3.0),
    Campaign("compliance", 2.0),
    Campaign("examples"),
    Campaign("docs"),
    Campaign("wheel", 2.0),
    *map(_suite, ("3.10", "3.12", "3.13")),
    Campaign("oldest"),
    Campaign("repeated", 4.0),
    Campaign("audit", 0.2),
)


def main() -> int:
    """Runs what is asked for; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="of campaigns (all)")
    parser.add_argument("--page", action="store_true", help="run none, write the page alone")
    options = parser.parse_args()
    if unknown := set(options.names) - {each.name for each in ALL}:
        parser.error(f"no campaign is called {', '.join(sorted(unknown))}")
    chosen = [each for each in ALL if not options.names or each.name in options.names]
    failed = 0
    for campaign in [] if options.page else chosen:
        found = run(campaign)
        with RECORD.open("a") as record:
            record.write(json.dumps(found) + "\n")
        PAGE.write_text(page(read(RECORD)))  # a test compares it: the next may be a suite
        print(f"{campaign.name}: {found['said']} ({result(found)})", flush=True)
        failed += found["status"] not in (0, CANNOT_RUN)
    PAGE.write_text(page(read(RECORD)))
    return int(failed > 0)


def run(campaign: Campaign) -> Run:
    """Runs a campaign to its end or its limit; returns its line."""
    seed = int(f"{date.today():%Y%m%d}")
    command = ["make", *(campaign.command or [campaign.name])]
    if campaign.python:
        command.append(f"PYTHON={_python(campaign.python)}")
    known = provenance()
    began = time.monotonic()
    PRINTED.mkdir(parents=True, exist_ok=True)
    # Not a pipe, which daemons may keep open.
    with (PRINTED / f"{campaign.name}.txt").open("w+b") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "FUSIONLOADER_SEED": str(seed)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | str = ENDED
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(campaign.hours * 3600)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        said = output.read().decode(errors="replace")
    words = last_words(said)
    # make itself exits with 2, whatever the status of a recipe.
    if status == 2 and re.search(r"^make.* Error 77$", said, re.MULTILINE):
        status, words = CANNOT_RUN, _reason(said)
    seconds = round(time.monotonic() - began)
    facts = {"campaign": campaign.name, "command": campaign.command, "seed": seed, **known}
    return {**facts, "seconds": seconds, "status": status, "said": words}


def _reason(said: str) -> str:
    """Returns why a campaign cannot run, as its recipe says."""
    reasons = re.findall(r"^fusionloader: (.*)$", said, re.MULTILINE)
    return reasons[-1][:200] if reasons else last_words(said)


def _python(version: str) -> str:
    """Returns the path of a release of Python; its name if there is none, which ``make`` says."""
    found = subprocess.run(ROOT / ".ci" / "pythons", capture_output=True, text=True)
    for path in found.stdout.split():
        told = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
        if told.split()[-1].startswith(f"{version}."):
            return path
    return f"python{version}"


def last_words(said: str) -> str:
    """Returns the line with the counts: pytest's summary if there is one, else the last line."""
    lines = [line.strip(" =") for line in said.splitlines() if line.strip(" =")]
    counts = [line for line in lines if _SUMMARY.match(line)]
    lines = [line for line in counts or lines if not line.startswith("make")]
    return lines[-1][:200] if lines else ""


def result(found: Run) -> str:
    """Returns how a run ended, in a word or two."""
    status = found["status"]
    return status if isinstance(status, str) else "failed" if status else "passed"


def read(record: Path) -> list[Run]:
    """Returns the runs of a file, the latest last; an empty list if there is none."""
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def page(runs: Iterable[Run]) -> str:
    """Returns the page: a row for each campaign, with its latest run."""
    latest = {found["campaign"]: found for found in runs}
    rows = [_row(campaign, latest.get(campaign.name)) for campaign in ALL]
    return _PAGE.format(rows="\n".join(rows))


def _row(campaign: Campaign, found: Run | None) -> str:
    cells = [f"`{campaign.name}`", campaign.tries or tries(campaign.name), "", "", "", ""]
    if found is not None:
        source = found["source"]
        code = f"{source['commit'][:8]}{' and changes' if source['uncommitted'] else ''}"
        duration = f"{found['seconds'] / 60:.0f} min"
        cells[2:] = [found["date"][:10], code, duration, _outcome(found)]
    return f"| {' | '.join(cells)} |"


def _outcome(found: Run) -> str:
    """Returns how a run ended, with its last words; of pytest's, the counts of tests that ran."""
    said = found["said"].replace("|", "/")
    if _SUMMARY.match(said):
        counts = said.partition(" in ")[0].split(", ")
        said = ", ".join(c for c in counts if not c.endswith(("deselected", "warning", "warnings")))
        if found["status"] == 0:
            return said
    return f"{result(found)}: {said}"


def tries(name: str) -> str:
    """Returns what the Makefile says of a target, without its variables."""
    text = (ROOT / "Makefile").read_text()
    found = re.search(rf"^{name}:.*## ?(.*)$|^{name}:.*#: (.*)$", text, re.MULTILINE)
    assert found is not None, f"the Makefile has no words on {name}"
    return (found[1] or found[2]).split(";")[0].strip()


_PAGE = """\
# Campaigns

You can see here what was tried for longer than a test suite may take, and what came of it.
`make campaigns` runs all of it, one after the other, and writes this page; `make campaigns
ONLY="chaos soak"` runs some. Each row is the latest run, with the last line that it printed;
[the record](../../benchmarks/results/campaigns.ndjson) has all runs, with machine and seed. A row
is empty until the campaign has been run.

| campaign | what it tries | on | code | took | result |
|---|---|---|---|---|---|
{rows}
"""


if __name__ == "__main__":
    raise SystemExit(main())
