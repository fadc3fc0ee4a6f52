"""Prometheus: ``export`` serves the counters of loaders, or writes them for a node exporter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from fusionloader.addons.integrations.exported import ExportedLoaders, Loaders
from fusionloader.addons.integrations.extras import extra
from fusionloader.observe.statistics.counters import COUNTERS, WAIT_HELP, WAIT_HISTOGRAM, Counter
from fusionloader.observe.statistics.snapshot import LoaderStats

__all__ = ["Exporter", "export"]

with extra("prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry, start_http_server, write_to_textfile
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.core import Metric as MetricFamily
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString

_PREFIX = "fusionloader_"
_LABELS = ("loader", "rank")
_MOST_PORTS = 65536
_Snapshots = list[tuple[dict[str, str], LoaderStats]]


def export(
    loaders: Loaders,
    *,
    registry: CollectorRegistry = REGISTRY,
    port: int | None = None,
    address: str = "0.0.0.0",  # noqa: S104 - as prometheus_client does
) -> Exporter:
    """Exports the counters of a loader, or of several by name, while they exist.

    Args:
        loaders: a loader, which is named ``"train"``, or a mapping from names to loaders.
        registry: registry that collects the counters; it has one exporter at a time.
        port: port of an HTTP server to start. ``LOCAL_RANK`` is added, so that each rank of a
            machine has its own; 0 takes any free one. ``None`` starts no server.
        address: address that the server listens at.

    Raises:
        OSError: the port is in use.
        TypeError: an object is not a FusionLoader.
        ValueError: there are no loaders, the port is out of range, or the registry has an exporter.
    """
    exporter = Exporter(ExportedLoaders(loaders), registry)
    if port is not None:
        try:
            exporter.serve(port, address)
        except BaseException:
            exporter.close()
            raise
    return exporter


class Exporter:
    """Exports loaders until it is closed. It is a context manager.

    Attributes:
        port: port of the HTTP server; ``None`` without one.
    """

    def __init__(self, loaders: ExportedLoaders, registry: CollectorRegistry) -> None:
        """Use ``export``."""
        self.port: int | None = None
        self._registry = registry
        self._collector: _LoaderCollector | None = _LoaderCollector(loaders)
        self._server: Any = None
        try:
            registry.register(self._collector)
        except ValueError as error:
            raise ValueError(
                "this registry exports FusionLoaders already: pass all of them to one export(), "
                'as {"train": ..., "val": ...}, close() the other one, or use another registry'
            ) from error

    def serve(self, port: int, address: str) -> None:
        """Starts the HTTP server, with the port and address of ``export``."""
        wanted = port + int(os.environ.get("LOCAL_RANK", "0")) if port else 0
        if not 0 <= wanted < _MOST_PORTS:
            raise ValueError(f"port should be in 0 ... {_MOST_PORTS - 1}, not {wanted}")
        self._server, _ = start_http_server(wanted, address, self._registry)
        self.port = self._server.server_port

    def write_textfile(self, path: str | os.PathLike[str]) -> None:
        """Writes a file for the textfile collector of a node exporter, atomically.

        Each rank needs its own file, named ``*.prom``.

        Raises:
            OSError: the file cannot be written.
        """
        write_to_textfile(os.fspath(path), self._registry)

    def close(self) -> None:
        """Ends the export and the HTTP server."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = self.port = None
        if self._collector is not None:
            self._registry.unregister(self._collector)
            self._collector = None

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _LoaderCollector(Collector):
    """Makes families of metrics from a snapshot of each loader, at each request."""

    def __init__(self, loaders: ExportedLoaders) -> None:
        self._loaders = loaders

    def describe(self) -> Iterator[MetricFamily]:
        return _families([])

    def collect(self) -> Iterator[MetricFamily]:
        return _families(list(self._loaders.read()))


def _families(snapshots: _Snapshots) -> Iterator[MetricFamily]:
    yield _wait_family(snapshots)
    for counter in COUNTERS:
        yield _family(counter, snapshots)


def _family(counter: Counter, snapshots: _Snapshots) -> MetricFamily:
    kind = CounterMetricFamily if counter.kind == "sum" else GaugeMetricFamily
    names = (*_LABELS, *counter.labels)
    family = kind(_PREFIX + counter.name, counter.help, labels=names)
    for loader, stats in snapshots:
        for labels, value in counter.readings(stats):
            family.add_metric([(loader | labels)[name] for name in names], value)
    return family


def _wait_family(snapshots: _Snapshots) -> MetricFamily:
    family = HistogramMetricFamily(_PREFIX + WAIT_HISTOGRAM, WAIT_HELP, labels=_LABELS)
    for loader, stats in snapshots:
        buckets = [
            (floatToGoString(bound), count)  # type: ignore[no-untyped-call]
            for bound, count in stats.waits.cumulative()
        ]
        family.add_metric([loader[name] for name in _LABELS], buckets, stats.waits.seconds)
    return family
