"""Whether two peaks fit on one device."""

from fusionloader.scheduler.memory_peaks import MemoryPeaks


def test_peaks_fit_up_to_the_last_byte():
    peaks = MemoryPeaks()
    peaks.saw(free=500, total=1000, reserved=300)
    assert peaks.fit(800, 1000)
    assert not peaks.fit(801, 1000)


def test_what_was_given_back_since_still_counts():
    peaks = MemoryPeaks()
    peaks.saw(free=100, total=1000, reserved=300)
    peaks.saw(free=700, total=1000, reserved=300)
    assert peaks.others == 600
    assert not peaks.fit(500, 1000)
