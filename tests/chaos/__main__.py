"""The campaign by itself: ``make chaos``, and how a run is done again by its seed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from chaos.campaign import campaign, chosen, laboratory
from chaos.registry import KINDS
from chaos.tally import Tally

_SEVERAL = 5  # runs, in at least one of which it has to happen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="to begin runs for")
    parser.add_argument("--kills", type=float, default=float("inf"), help="until so many")
    parser.add_argument("--runs", type=float, default=float("inf"), help="so many")
    parser.add_argument("--steps", type=int, default=80, help="batches of a run (80)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=list(KINDS), help="one kind alone")
    parser.add_argument("--only-kills", action="store_true", help="no other fault than SIGKILL")
    parser.add_argument("--json", type=Path, help="file for the counts")
    options = parser.parse_args()
    limits = {"seconds": options.seconds, "kills": options.kills, "runs": options.runs}
    if all(limit == float("inf") for limit in limits.values()):
        parser.error("give one of --seconds, --kills and --runs")
    with laboratory(options.steps) as place:
        tallies = campaign(
            place,
            chosen(options.kind),
            options.seed,
            options.steps,
            **limits,
            only_kills=options.only_kills,
            say=True,
        )
    whole = Tally()
    for tally in tallies.values():
        whole.add(tally)
    found = {"seed": options.seed, "all": whole.as_dict()}
    found["kinds"] = {name: tally.as_dict() for name, tally in tallies.items()}
    print(json.dumps(found["all"], indent=2))
    print(whole.in_words())
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if untried := [name for name, tally in tallies.items() if _is_untried(name, tally)]:
        print(f"what it is about has not happened in: {', '.join(untried)}")
    return int(bool(untried))


def _is_untried(name: str, tally: Tally) -> bool:
    """Whether what a kind is about has not happened in several runs."""
    made_by = KINDS[name].made_by
    return bool(made_by) and tally.runs >= _SEVERAL and not tally.made_by[made_by]


if __name__ == "__main__":
    sys.exit(main())
