"""When a member is expected to begin an epoch."""

from fusionloader.sharing.jobs.member import MemberProgress


def progress(**changes):
    return MemberProgress(
        **{"epoch": 3, "total": 100, "began": 10.0, "first": 0, "delivered": 50} | changes
    )


def test_it_goes_on_at_the_rate_it_has():
    assert progress().seconds_until(4, now=20.0) == 10.0
    assert progress().seconds_until(5, now=20.0) == 30.0
    assert progress(first=40).seconds_until(4, now=20.0) == 50.0  # it has resumed there


def test_epochs_that_it_has_begun_are_not_waited_for():
    assert progress().seconds_until(3, now=20.0) is None


def test_a_rate_that_is_not_known_yet_may_be_any():
    assert progress(delivered=0).seconds_until(4, now=10.5) == 0.0
    assert progress(delivered=0).seconds_until(4, now=12.0) is None
    assert progress(total=-1).seconds_until(4, now=20.0) is None
