"""OpenTelemetry: ``export`` makes the counters of loaders observable instruments of a meter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from fusionloader.addons.integrations.exported import ExportedLoaders, Loaders
from fusionloader.addons.integrations.extras import extra
from fusionloader.observe.statistics.metrics import METRICS, WAIT_HELP, WAIT_HISTOGRAM, Metric
from fusionloader.observe.statistics.readings import one

__all__ = ["export"]

with extra("otel"):
    from opentelemetry.metrics import (
        CallbackOptions,
        MeterProvider,
        Observation,
        get_meter_provider,
    )

_PREFIX = "fusionloader."
# Instruments of a name are made once for a meter, and stay.
_exported: WeakKeyDictionary[MeterProvider, ExportedLoaders] = WeakKeyDictionary()
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "samples/second": "{sample}/s"}


def export(loaders: Loaders, *, meter_provider: MeterProvider | None = None) -> None:
    """Exports the counters of a loader, or of several by name, while they exist.

    The instruments are those of the Prometheus exporter, named ``fusionloader.wait_ratio`` and so
    on. Waits come as percentiles, and as the counters ``wait_seconds`` and ``waits``: histograms
    cannot be observed.

    Args:
        loaders: one, which is called ``"train"``, or a mapping from names to loaders. Later ones
            are added; they take the place of those of the same name.
        meter_provider: of the meter; ``None`` takes the global one.

    Raises:
        TypeError: something is not a FusionLoader.
        ValueError: there are no loaders.
    """
    provider = meter_provider if meter_provider is not None else get_meter_provider()
    known = _exported.get(provider)
    if known is not None:
        known.add(loaders)
        return
    exported = ExportedLoaders(loaders)
    meter = provider.get_meter("fusionloader")
    for metric in (*_WAITS, *METRICS):
        counter = metric.kind == "counter"
        create = meter.create_observable_counter if counter else meter.create_observable_gauge
        unit = _UNITS.get(metric.unit, f"{{{metric.unit}}}")
        create(_PREFIX + metric.name, [_observer(metric, exported)], unit, metric.help)
    _exported[provider] = exported


_WAITS = (
    Metric(WAIT_HISTOGRAM, "counter", "seconds", WAIT_HELP, one("waits.seconds")),
    Metric("waits", "counter", "waits", WAIT_HELP, one("waits.steps")),
)


def _observer(
    metric: Metric, exported: ExportedLoaders
) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def observe(options: CallbackOptions) -> Iterator[Observation]:
        for loader, stats in exported.read():
            for labels, value in metric.known(stats):
                yield Observation(value, loader | labels)

    return observe
