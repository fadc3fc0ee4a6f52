"""CPU time of a plan per sample, by the vector instructions that it may use."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from benchmarks.study import interleaved, parser_of, publish
from fusionloader import _native
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.workloads import pil_transform
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.transforms import compile_transform


def pass_over(
    executor: _native.Executor, files: list[bytes], out: np.ndarray
) -> Callable[[], float]:
    """Returns a measurement: milliseconds of one thread's CPU time per sample, for equal draws."""

    def once() -> float:
        start = time.thread_time()
        for index, data in enumerate(files):
            if executor.run(data, 1, 0, index, 0, out) is not _native.RunStatus.OK:
                raise SystemExit("vectors: a file is not for the native decoder")
        return (time.thread_time() - start) / len(files) * 1e3

    return once


def main() -> None:
    parser = parser_of(__doc__, rounds=7)
    parser.add_argument("--files", type=int, default=300, help="files of the corpus to use (300)")
    options = parser.parse_args()
    levels = _native.simd_levels()
    rows, figures = [], {}
    for workload in ("default", "randaugment"):
        setting, corpus = setting_of(options, workload)
        if setting.root is None:
            raise SystemExit("vectors: no images")
        files = [path.read_bytes() for path in sorted(setting.root.glob("*/*"))[: options.files]]
        plan = compile_transform(pil_transform(workload)).plan
        executors = {level: make_executor(plan, simd=level) for level in levels}
        out = np.empty(executors["scalar"].result_bytes, np.uint8)
        passes = {level: pass_over(each, files, out) for level, each in executors.items()}
        times = interleaved(passes, options.rounds)
        widest = times[levels[-1]]
        rows += [
            (
                workload,
                level,
                f"{median(values):.3f}",
                f"{median(w / v for w, v in zip(widest, values, strict=True)):.2f}",
            )
            for level, values in times.items()
        ]
        figures[workload] = {"corpus": corpus, "times": times}
    header = ("workload", "vectors", "median ms/sample", "speed of the widest")
    publish(options, header, rows, workloads=figures)


if __name__ == "__main__":
    main()
