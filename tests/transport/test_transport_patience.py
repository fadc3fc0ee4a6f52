"""How long answers are waited for, and when peers that failed are tried again."""

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.system.transport.patience import Absence, AnswerTimes

SECONDS = st.floats(0, 100)


@given(st.lists(SECONDS, min_size=16, max_size=400))
def test_the_deadline_follows_the_slowest_of_the_last_answers(seconds):
    times = AnswerTimes(0.5)
    for each in seconds:
        times.add(each)
    told = seconds[: len(seconds) // 16 * 16][-128:]
    late = sum(10 * each > times.deadline for each in told)
    assert late <= 0.05 * len(told)
    assert times.deadline in [0.5, *(10 * each for each in told)]


def test_few_answers_say_nothing():
    times = AnswerTimes(0.5)
    for _ in range(15):
        times.add(9.0)
    assert times.deadline == 0.5
    times.add(9.0)
    assert times.deadline == 90.0


def test_a_peer_that_fails_again_is_left_alone_for_longer_up_to_a_minute():
    absence, now, waited = Absence(1.0), 100.0, []
    for _ in range(8):
        waited.append(absence.failed(now))
        assert not absence.is_over(now + 0.99 * waited[-1])
        now += waited[-1]
        assert absence.is_over(now)
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60]
    absence.answered()
    assert absence.failed(now) == 1.0
