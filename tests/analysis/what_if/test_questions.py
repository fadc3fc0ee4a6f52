"""What-if questions: how they are written, and what is said of those that are not understood."""

import pytest

from fusionloader.cli.analysis.errors import AnalysisError
from fusionloader.cli.analysis.files import FileCacheLimit
from fusionloader.cli.analysis.what_if.questions import Question, questions


def test_all_combinations_are_asked_for():
    asked = questions(["workers=4,8", "cache=0,50%", "gpu=2x"])
    assert asked == [
        Question(4, 0.0, None, 2.0),
        Question(4, 0.5, None, 2.0),
        Question(8, 0.0, None, 2.0),
        Question(8, 0.5, None, 2.0),
    ]


def test_storage_is_bytes_a_second_or_the_file_cache():
    asked = questions(["storage=100MB/s,1.5 GiB/s,memory"])
    assert [each.storage for each in asked] == [100e6, 1.5 * 2**30, 0.0]


def test_a_file_cache_is_bytes_or_a_percentage_of_the_files():
    asked = [each.file_cache for each in questions(["file_cache=0,50%,30GiB"])]
    assert asked == [FileCacheLimit(), FileCacheLimit(share=0.5), FileCacheLimit(30 << 30)]
    assert [str(each) for each in asked] == ["0%", "50%", "30GiB"]


def test_nothing_asked_is_no_question():
    assert questions([]) == [Question()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workers", 'does not understand "workers": there are workers=4,8 cache=0,50%'),
        ("cpus=4", 'does not understand "cpus=4"'),
        ("workers=four", "does not understand workers=four: workers is a number of processes"),
        ("workers=0", "workers=0"),
        ("workers=4,,8", "workers=: workers is"),
        ("cache=120%", "cache=120%: cache is a percentage of the samples, from 0 to 100%"),
        ("storage=fast", "storage=fast: storage is bytes a second, as 100MB/s"),
        ("file_cache=110%", "file_cache=110%: file_cache is bytes of files, as 30GiB, or a perc"),
        ("file_cache=half", "file_cache=half: file_cache is bytes"),
        ("gpu=0x", "gpu=0x: gpu is a factor"),
        ("gpu=-1", "gpu=-1: gpu is a factor"),
        ("workers=" + ",".join(map(str, range(1, 300))), "299 combinations, more than 200"),
    ],
)
def test_a_question_that_is_not_understood_says_what_is(text, message):
    with pytest.raises(AnalysisError) as raised:
        questions([text])
    assert message in str(raised.value)


def test_an_axis_has_all_its_values_at_once():
    with pytest.raises(AnalysisError, match="workers= twice"):
        questions(["workers=4", "workers=8"])
