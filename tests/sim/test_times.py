"""Files of service times: what is read, what is refused, what is drawn."""

import json
import random
from pathlib import Path

import pytest

from fusionloader.cli.simulator.times import load

COMMITTED = sorted((Path(__file__).parents[2] / "benchmarks" / "service_times").glob("*.json"))


def contents(**changes):
    found = {
        "format": 1,
        "cpu": {"source": "measured", "bytes": [1000, 3000], "milliseconds": [1.0, 4.0]},
        "gpu": {
            "source": "assumed",
            "launch_milliseconds": 0.5,
            "build_milliseconds": 5.0,
            "milliseconds_per_sample": 0.1,
            "nanoseconds_per_byte": 2.0,
            "speed_beside_training": 0.5,
            "training_speed_beside": 0.75,
        },
        "models": {"source": "assumed", "samples_per_second": {"net": 2560}},
    }
    for path, value in changes.items():
        part, _, name = path.partition("__")
        if name:
            found[part][name] = value
        else:
            found[part] = value
    return found


def written(tmp_path, text):
    path = tmp_path / "times.json"
    path.write_text(text)
    return path


def test_size_and_time_of_a_sample_stay_together(tmp_path):
    times = load(written(tmp_path, json.dumps(contents())))
    drawn = times.draw(random.Random(0), 200)
    assert {(s.nbytes, s.cpu_seconds) for s in drawn} == {(1000, 0.001), (3000, 0.004)}
    small = next(sample for sample in drawn if sample.nbytes == 1000)
    assert small.gpu_seconds == pytest.approx(0.1e-3 + 1000 * 2e-9)
    assert times.models == {"net": 2560}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "no file of service times"),
        (json.dumps(contents(format=2)), "format 2, expected 1"),
        (json.dumps(contents(cpu__bytes=[1])), "as many entries"),
        (json.dumps(contents(cpu__bytes=[], cpu__milliseconds=[])), "at least one"),
        (json.dumps(contents(cpu__milliseconds=[1.0, 0])), "above 0, not 0"),
        (json.dumps(contents(gpu__speed_beside_training=0)), "gpu.speed_beside_training"),
        (json.dumps(contents(gpu={})), "launch_milliseconds"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_reason(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        load(written(tmp_path, text))
    assert "times.json" in str(caught.value)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_the_committed_files_say_what_is_measured_and_what_is_assumed(path):
    assert load(path).measured
    found = json.loads(path.read_text())
    assert found["cpu"]["source"] == "measured"
    assert found["gpu"]["source"] == found["models"]["source"] == "assumed"
    assert len(COMMITTED) == 2
