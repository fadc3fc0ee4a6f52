"""The index command: reads tar shards once and writes their indexes beside them."""

from __future__ import annotations

import argparse
import json
import sys

from fusionloader.cli.counts import at_least
from fusionloader.cli.progress import Progress
from fusionloader.data.sources.shards.shard_paths import expand_urls
from fusionloader.data.sources.shards.tar_index import SUFFIX
from fusionloader.data.sources.shards.tar_members import ShardError
from fusionloader.data.sources.shards.tar_samples import INLINE_EXTENSIONS
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.data.sources.streams.shard_indexes import write_indexes
from fusionloader.data.sources.url_errors import UrlUnreadable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("urls", nargs="+", help="s3://bucket/train-{000..146}.tar, file:///...")
    parser.add_argument(
        "--target", action="append", default=[], help="an extension whose content the index keeps"
    )
    parser.add_argument("--storage-options", default="{}", help="fsspec's, as JSON")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds of one request")
    parser.add_argument(
        "--retries", type=at_least(0), default=5, help="attempts after the first one"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the indexes; returns 1 where a shard cannot be read or is damaged."""
    try:
        urls = expand_urls(options.urls)
        given = json.loads(options.storage_options)
        if not isinstance(given, dict):
            raise ValueError(f"--storage-options should be a JSON object, not {given!r}")
        settings = ReadSettings(
            storage_options=given, timeout=options.timeout, retries=options.retries
        )
        inline = INLINE_EXTENSIONS | {name.lstrip(".").lower().encode() for name in options.target}
        with Progress("indexing", len(urls)) as progress:
            made = write_indexes(urls, settings, inline, lambda url: progress.advance())
    except (UrlUnreadable, ShardError, ValueError, ImportError) as error:
        print(f"fusionloader index: {error}", file=sys.stderr)
        return 1
    members = sum(len(index.offset) for index in made)
    print(f"{len(urls)} indexes written (*.tar{SUFFIX}), of {members:,} members")
    return 0
