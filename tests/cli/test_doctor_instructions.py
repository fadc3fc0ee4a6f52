"""What the doctor says of a processor's instruction set."""

import pytest

from fusionloader.cli import doctor, environment


@pytest.mark.parametrize(
    ("key", "flags", "level", "advice"),
    [
        ("flags", "sse2 sse4_1 avx avx2 avx512bw", "AVX-512", None),
        ("flags", "sse2 sse4_1 avx avx2", "AVX2", None),
        ("flags", "sse2 sse4_1 avx", "SSE4.1", "the processor has SSE4.1, with which images are"),
        ("Features", "fp asimd evtstrm", "NEON", "the processor has NEON, with which images are"),
        ("flags", "sse2", "none known", "the processor has no AVX2, SSE4.1 or NEON"),
    ],
)
def test_it_says_what_runs_without_vectors(key, flags, level, advice, monkeypatch):
    monkeypatch.setattr(environment, "_cpuinfo", {key: flags}.get)
    assert doctor.facts()["instruction set"] == level
    said = [text for text in doctor.warnings() if text.startswith("the processor has")]
    assert len(said) == (advice is not None)
    assert all(text.startswith(str(advice)) for text in said)
