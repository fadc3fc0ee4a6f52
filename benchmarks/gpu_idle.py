"""Cost of an idle GPU worker: the same loader with and without one."""

from __future__ import annotations

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader, GpuWorker
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import Setting, start_loader
from fusionloader.cli.measure.protocol import Contender, Running, measure, per_round_ratios
from fusionloader.cli.measure.report import announce, summary
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.gpu.control import GpuControl
from fusionloader.scheduler.sharing import Mode


def start(setting: Setting, gpu_worker: GpuWorker | None) -> Running:
    dataset = pil_dataset(setting.folder(), setting.workload)
    return start_loader(FusionLoader, dataset, setting, gpu_worker=gpu_worker)


def main() -> None:
    options = parser_of(__doc__, rounds=7).parse_args()
    setting, corpus = setting_of(options, "default")
    # As after the sharing choice has switched the worker off, without its trials.
    GpuControl._mode = property(lambda self: Mode.OFF)  # type: ignore[assignment,method-assign]
    idle = GpuWorker(device="cpu", sharing="spatial")
    results, _ = measure(
        [
            Contender("without", "no GPU worker", lambda: start(setting, None)),
            Contender("idle", "a GPU worker that is off", lambda: start(setting, idle)),
        ],
        options.rounds,
        announce=announce,
    )
    rows = []
    for result in results:
        ratios = sorted(per_round_ratios(result, results[0]))
        cpu = result.median(lambda e: e.cpu_per_1000)
        rows.append(
            (
                result.contender.name,
                f"{result.median(lambda e: e.rate):,.0f}",
                f"{ratios[len(ratios) // 2]:.3f}",
                f"{result.spread:.0%}",
                f"{cpu:.3f}",
            )
        )
    header = ("contender", "samples/s", "ratio", "spread", "CPU s/1000")
    figures = [summary(result, results[0]) for result in results]
    publish(options, header, rows, contenders=figures, corpus=corpus)


if __name__ == "__main__":
    main()
