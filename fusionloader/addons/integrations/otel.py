"""OpenTelemetry: ``export`` makes the counters of loaders observable instruments of a meter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from fusionloader.addons.integrations.exported import ExportedLoaders, Loaders
from fusionloader.addons.integrations.extras import extra
from fusionloader.observe.statistics.counters import COUNTERS, WAIT_HELP, WAIT_HISTOGRAM, Counter

__all__ = ["export"]

with extra("otel"):
    from opentelemetry.metrics import (
        CallbackOptions,
        MeterProvider,
        Observation,
        get_meter_provider,
    )

_PREFIX = "fusionloader."
# The instruments of a meter are made once, and stay.
_exported: WeakKeyDictionary[MeterProvider, ExportedLoaders] = WeakKeyDictionary()
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "samples/second": "{sample}/s"}


def export(loaders: Loaders, *, meter_provider: MeterProvider | None = None) -> None:
    """Exports the counters of a loader, or of several by name, while they exist.

    The metrics are those of the Prometheus exporter, named ``fusionloader.wait_ratio`` and so on.
    Waits are percentiles and the counters ``wait_seconds`` and ``waits``, because histograms cannot
    be observed.

    Args:
        loaders: a loader, which is named ``"train"``, or a mapping from names to loaders. Further
            calls add loaders; a loader replaces one of the same name.
        meter_provider: provider of the meter; ``None`` for the global one.

    Raises:
        TypeError: an object is not a FusionLoader.
        ValueError: there are no loaders.
    """
    provider = meter_provider if meter_provider is not None else get_meter_provider()
    known = _exported.get(provider)
    if known is not None:
        known.add(loaders)
        return
    exported = ExportedLoaders(loaders)
    meter = provider.get_meter("fusionloader")
    for counter in (*_WAITS, *COUNTERS):
        is_sum = counter.kind == "sum"
        create = meter.create_observable_counter if is_sum else meter.create_observable_gauge
        unit = _UNITS.get(counter.unit, f"{{{counter.unit}}}")
        create(_PREFIX + counter.name, [_observer(counter, exported)], unit, counter.help)
    _exported[provider] = exported


_WAITS = (
    Counter(WAIT_HISTOGRAM, "seconds", "sum", WAIT_HELP, "waits.seconds"),
    Counter("waits", "waits", "sum", WAIT_HELP, "waits.steps"),
)


def _observer(
    counter: Counter, exported: ExportedLoaders
) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def observe(options: CallbackOptions) -> Iterator[Observation]:
        for loader, stats in exported.read():
            for labels, value in counter.readings(stats):
                yield Observation(value, loader | labels)

    return observe
