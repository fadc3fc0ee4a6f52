"""python -m fusionloader: the commands, each loaded only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from fusionloader import __version__

COMMANDS = {
    "demo": "train a small network with DataLoader and with FusionLoader, and compare",
    "bench": "measure FusionLoader and its peers side by side",
    "show": "show what a transform makes of an image, beside torchvision",
    "analyze": "measure what limits a training script, and predict what would help",
    "sim": "simulate the schedulers: figures of the paper, as tables and pictures",
    "trace": "run a training script, and record what its loaders do",
    "report": "write a page that says where a traced training's time went",
    "doctor": "show what the machine offers a data loader, and advise",
    "cache": "serve one cache to all jobs of the machine, show or drop what is held",
    "index": "write the indexes of tar shards beside them, for streams",
    "worker": "prepare samples for training on other machines",
    "trace-merge": "put a trace of a loader and one of torch.profiler together, by their clocks",
    "build-dali": "build what lets the installed DALI borrow GPU memory of training",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="fusionloader", description=__doc__)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = next((word for word in given if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == asked:
            module = importlib.import_module(f"fusionloader.cli.{name.replace('-', '_')}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    options = parser.parse_args(given)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
