"""Losses that the campaign must find, planted beside each fault that excuses an error."""

import random
import subprocess
from types import SimpleNamespace

import psutil
import pytest

from chaos.checks import AHEAD, Course, Excuse
from chaos.faults import FAULTS
from chaos.kinds.setting import BATCH
from chaos.registry import KINDS
from chaos.run import NO_MORE, Failed, Laboratory, Run, run
from chaos.traps import spring

BATCHES = 40
SAMPLES = BATCHES * BATCH
EPOCHS = [[[f"{e}-{n}-{i}" for i in range(BATCH)] for n in range(BATCHES)] for e in range(3)]
BAD = 137  # a sample whose file is damaged
TOO_MANY = "OSError: [Errno 24] Too many open files"
CAUGHT = f"OSError: Caught OSError in DataLoader worker process 0.\nOriginal {TOO_MANY}"
IN_SAMPLE = CAUGHT.replace("Original", "Sample: index 17 (17.jpg)\nOriginal")


def laboratory(folder, images):
    """One in which no process runs."""
    disk = SimpleNamespace(path=folder, is_real=True, fill=dict, clear=int, remove=str)
    return Laboratory(disk, SimpleNamespace(heal=int), images, folder, 3)


class Planted:
    """A run without training, whose answers are planted, and what can be struck in it."""

    def __init__(self, folder, kind, in_order=True):
        place = laboratory(folder, folder / "images")
        self.run = Run(place, KINDS[kind], 0)
        self.run.folder = self.run.checks.folder = folder
        self.paths = [folder / f"{number}.jpg" for number in range(SAMPLES)]
        self.run.images = place.images = folder
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        victim = psutil.Process(self.process.pid)
        self.trainer = SimpleNamespace(
            parts=[{"paths": [str(path) for path in self.paths]}],
            processes=lambda: [victim],
            script=self.process,
            setting=SimpleNamespace(rank=0),
        )
        self.run.trainers = [self.trainer]
        self.course = Course(list(range(SAMPLES)), EPOCHS, in_order)
        self.checks.courses[0, 0] = self.course

    @property
    def checks(self):
        return self.run.checks

    def strike(self, name):
        """Has a fault strike, as the campaign does."""
        next(fault for fault in FAULTS if fault.name == name).do(self.run, self.trainer, 0)

    def mend(self):
        """Ends all faults."""
        self.run.let_go()
        self.run._come_due(None)

    def take(self, count):
        """Plants the next batches, whole."""
        for _ in range(count):
            self.batch(self.course.to_come[0])

    def batch(self, number, skipped=()):
        """Plants a batch, without some samples."""
        left_out = {index for index, _ in skipped}
        pairs = zip(self.course.wanted(number), self.course.indices(number), strict=True)
        self.checks.batch(self.course, [r for r, i in pairs if i not in left_out], skipped)

    def error(self, text):
        """Plants an error instead of the next batch."""
        return self.checks.error(self.course, text)

    def end(self):
        """Plants the end of the epoch."""
        self.checks.end(self.course)


@pytest.fixture
def planted(tmp_path):
    made = []

    def plant(kind, **options):
        made.append(Planted(tmp_path, kind, **options))
        return made[-1]

    yield plant
    for each in made:
        each.process.kill()
        each.process.communicate()


def assert_found(what, *arguments):
    """Checks that the campaign fails."""
    with pytest.raises(AssertionError):
        what(*arguments)


# ---- what needs no excuse ------------------------------------------------------------------------


def test_a_batch_that_is_lost_doubled_or_altered_is_found(planted):
    made = planted("plan")
    made.take(3)
    assert_found(made.batch, 2)  # again
    assert_found(made.batch, 4)  # without 3
    assert_found(made.checks.batch, made.course, made.course.wanted(3)[:-1])
    assert_found(made.checks.batch, made.course, EPOCHS[1][3])
    assert_found(made.end)


def test_without_an_order_a_batch_that_is_lost_or_doubled_is_found(planted):
    made = planted("plan", in_order=False)
    for number in reversed(range(BATCHES)):
        if number != 7:
            made.batch(number)
    assert_found(made.batch, 3)
    assert made.checks.tally.doubled == BATCH
    assert_found(made.end)
    assert made.checks.tally.lost == BATCH
    made.batch(7)
    made.end()


def test_an_error_without_a_fault_is_found(planted):
    assert_found(planted("plan").error, "RuntimeError: no space")


# ---- files ---------------------------------------------------------------------------------------


def struck_file(made):
    """Damages a file; returns the error of its sample."""
    made.paths[BAD].write_bytes(b"x" * 100)
    made.run.chance = SimpleNamespace(randrange=lambda _: BAD, randint=lambda *_: 1)
    made.strike("a file is emptied")
    return f"Sample: index {BAD} ({made.paths[BAD]}) was left out: OSError"


def test_a_damaged_file_excuses_no_other_sample(planted):
    made = planted("plan")
    text = struck_file(made)
    made.take(BAD // BATCH)
    assert_found(made.error, text.replace(str(made.paths[BAD]), str(made.paths[BAD - 1])))
    made.error(text)
    assert_found(made.error, text)  # of the batch behind it
    made.take(BATCHES - BAD // BATCH - 1)
    made.end()


def test_a_damaged_file_excuses_no_error_long_after_it_was_mended(planted):
    made = planted("plan")
    text = struck_file(made)
    made.take(BAD // BATCH - AHEAD)
    made.mend()
    made.take(AHEAD)
    assert_found(made.error, text)


def test_a_damaged_file_excuses_no_error_in_a_later_epoch(planted):
    made = planted("plan", in_order=False)
    text = struck_file(made)
    made.mend()
    made.course.is_over = True
    made.course.begin(1)
    assert_found(made.error, text)


def test_a_sample_that_is_left_out_without_a_word_is_found(planted):
    made = planted("plan")
    text = struck_file(made)
    number = BAD // BATCH
    made.take(number)
    without = [row for place, row in enumerate(EPOCHS[0][number]) if place != BAD % BATCH]
    assert_found(made.checks.batch, made.course, without)
    assert_found(made.batch, number, [(BAD - 1, text)])  # another one is missing


def test_a_sample_that_is_left_out_for_no_reason_is_found(planted):
    made = planted("plan")
    made.take(1)
    assert_found(made.batch, 1, [(5, "Sample: index 5 (5.jpg) was left out: OSError")])


def test_a_sample_that_is_said_to_be_left_out_and_is_there_is_found(planted):
    made = planted("plan")
    text = struck_file(made)
    made.take(BAD // BATCH)
    assert_found(made.checks.batch, made.course, EPOCHS[0][BAD // BATCH], [(BAD, text)])


def test_a_batch_of_which_nothing_is_left_is_no_loss_and_the_next_one_is(planted):
    made = planted("plan")
    made.checks.excuse(Excuse("a bad file"))
    reasons = [(index, "a bad file") for index in range(BATCH)]
    assert_found(made.batch, 2, reasons)
    made.batch(1, reasons)


def test_without_an_order_any_batch_of_the_same_samples_may_be_left_out_whole(planted):
    made = planted("plan", in_order=False)
    made.course._order[3 * BATCH : 4 * BATCH] = made.course.indices(1)  # batch 3 is as batch 1
    made.strike("too few descriptors")
    samples = made.course.indices(1)
    reason = f"Sample: index %d was left out: {TOO_MANY}"
    skipped = [(index, reason % index) for index in samples]
    made.batch(0, skipped)  # and batch 1 or 3, of which nothing is left
    made.batch(1, skipped[:1])
    assert_found(made.batch, 3)
    assert_found(made.batch, 3, skipped[:1])
    for number in (2, *range(4, BATCHES)):
        made.batch(number)
    made.end()


def test_a_bad_file_in_a_batch_as_if_it_were_good_is_found(planted):
    made = planted("plan")
    made.checks.bad = BATCH
    made.take(1)
    assert_found(made.take, 1)


# ---- disks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["the disk is full", "ENOSPC from write"])
def test_a_full_disk_excuses_no_error_and_no_loss(planted, fault):
    made = planted("trace")
    made.run.laboratory.system.fill = made.run.laboratory.disk.clear
    made.strike(fault)
    made.take(1)
    assert_found(made.error, "OSError: [Errno 28] No space left on device")
    assert_found(made.batch, 2)
    assert_found(made.end)


# ---- user code -----------------------------------------------------------------------------------


def sprung(made, place):
    """Sets a trap at a place and springs it; returns what it raises."""
    made.run.chance = SimpleNamespace(choice=lambda places: place)
    made.strike("an exception in user code")
    with pytest.raises(Exception) as raised:
        spring(str(made.run.folder), place, 5 if place == "sample" else None)
    return f"Sprung: Caught Sprung in a worker. Original chaos.traps.Sprung: {raised.value}"


def test_a_trap_excuses_one_error_of_its_place_and_sample(planted):
    made = planted("pool of two loaders")
    text = sprung(made, "sample")
    assert_found(made.error, text.replace("sample of", "sampler of"))
    assert_found(made.error, text)  # of a batch without the sample
    made.take(1)
    assert not made.error(text).ends
    assert_found(made.error, text)  # again
    assert made.course.to_come[0] == 2


@pytest.mark.parametrize(
    ("kind", "place", "ends"),
    [
        ("pool of two loaders", "sampler", True),
        ("stream", "sample", True),
        ("plan with a Python tail", "transform", False),
        ("own dataset", "worker_init_fn", False),
        ("whole batches", "worker_init_fn", False),
    ],
)
def test_an_epoch_is_left_only_where_nothing_can_come_any_more(planted, kind, place, ends):
    made = planted(kind)
    text = sprung(made, place)
    made.take(1)
    assert made.error(text).ends == ends


def test_a_sample_that_is_left_out_by_a_trap_without_an_index_is_excused_once(planted):
    made = planted("plan with a Python tail")
    text = f"Sample: index 5 was left out: {sprung(made, 'transform')}"
    made.take(1)
    made.batch(1, [(5, text)])
    assert_found(made.batch, 2, [(9, text)])


def test_a_worker_that_cannot_begin_loses_no_batch(planted):
    made = planted("own dataset")
    made.error(sprung(made, "worker_init_fn"))
    assert_found(made.batch, 1)
    made.batch(0)


# ---- processes -----------------------------------------------------------------------------------


def test_an_error_of_a_dead_process_that_is_to_be_replaced_is_found(planted):
    made = planted("plan")
    made.strike("SIGKILL")
    assert_found(made.error, f"RuntimeError: DataLoader worker (pid {made.process.pid}) is killed")


def test_a_worker_without_descriptors_loses_no_more_batches_than_it_has_errors(planted):
    made = planted("plan")
    made.strike("too few descriptors")
    assert_found(made.error, TOO_MANY)  # of training
    assert_found(made.error, IN_SAMPLE)  # of a batch without the sample
    made.error(CAUGHT)
    assert_found(made.batch, 2)
    made.batch(1)
    assert_found(made.batch, 3)  # the error has stood for batch 0
    made.take(2)
    made.error(IN_SAMPLE)
    assert_found(made.batch, 4)
    made.mend()
    made.take(AHEAD)
    assert_found(made.error, CAUGHT)


def test_a_stream_without_descriptors_ends_with_an_error_of_its_worker_alone(planted):
    made = planted("stream")
    made.strike("too few descriptors")
    made.take(1)
    assert_found(made.error, TOO_MANY)  # of training
    assert_found(made.batch, 2)
    assert_found(made.end)
    assert made.error(CAUGHT).ends


def test_training_without_descriptors_loses_no_batch(planted):
    made = planted("plan")
    made.run.chance = SimpleNamespace(random=lambda: 1.0)  # no kill
    made.strike("training may open nothing for a moment")
    made.error(TOO_MANY)
    assert_found(made.batch, 1)
    made.mend()
    assert_found(made.error, TOO_MANY)
    made.error(CAUGHT)  # of a worker that was started meanwhile
    assert_found(made.batch, 2)


# ---- training ------------------------------------------------------------------------------------


def test_an_exception_in_training_loses_no_batch_and_comes_once(planted):
    made = planted("plan")
    made.run.chance = random.Random(0)
    made.strike("an exception in training")
    made.take(3)
    made.error("MemoryError: interruption 1")
    assert_found(made.error, "MemoryError: interruption 1")
    assert_found(made.batch, 4)
    assert_found(made.end)
    made.take(BATCHES - 3)
    made.end()


def test_an_epoch_that_is_left_after_an_exception_in_training_is_found(planted):
    made = planted("plan")
    made.checks.excuse(Excuse(NO_MORE, ends=True, takes=False, times=1))
    made.take(3)
    text = "a worker has failed at tiny-batch 0 of mini-batch 3 without a report. This iterator "
    assert_found(made.error, f"RuntimeError: {text}cannot go on")
    text = "RuntimeError: the sampler was left by KeyboardInterrupt, and draws no more batches"
    assert made.error(text).ends
    assert_found(made.error, text)


def test_a_batch_that_changes_in_parent_or_child_is_found(planted):
    made = planted("plan")
    made.trainer.ask = lambda name, *_, waiting: [1] if name == "children" else 1
    assert_found(made.strike, "batches that were kept are dropped")
    assert_found(made.run.look, made.trainer)
    assert_found(made.strike, "training forks")


def test_an_exception_in_training_stands_for_a_batch_only_where_training_makes_its_sample(planted):
    text = "MemoryError: interruption 1 Sample: index 5 (5.jpg)"
    for kind, stands in (("plan without workers", True), ("plan", False)):
        made = planted(kind)
        made.run.chance = random.Random(0)
        made.strike("an exception in training")
        if stands:
            assert_found(made.error, text)  # of a batch without the sample
        made.take(1)
        made.error(text)
        assert_found(made.batch, 1 if stands else 2)
        made.batch(2 if stands else 1)


def test_training_without_descriptors_loses_at_most_the_batch_of_the_sample_that_it_names(planted):
    made = planted("plan without workers")
    made.run.chance = SimpleNamespace(random=lambda: 1.0)
    made.strike("training may open nothing for a moment")
    text = f"{TOO_MANY} Sample: index 5 (5.jpg)"
    assert_found(made.error, text)
    made.error(TOO_MANY)
    made.take(1)
    made.error(text)
    assert_found(made.batch, 1)
    made.batch(2)
    made.mend()
    assert_found(made.error, TOO_MANY)


@pytest.mark.parametrize("what", ["os._exit", "a crash", "memory runs out"])
def test_what_ends_a_process_is_not_planted_where_training_makes_samples(planted, what, tmp_path):
    made = planted("own dataset without workers")
    made.strike(f"{what} in user code")
    assert not list(tmp_path.glob("trap-*"))


# ---- without an order ----------------------------------------------------------------------------


def test_without_an_order_an_error_stands_for_one_batch_of_its_sample(planted):
    made = planted("own dataset", in_order=False)
    made.error(sprung(made, "sample"))  # of sample 5, of batch 1
    for number in range(BATCHES):
        if number not in (1, 2):
            made.batch(number)
    assert_found(made.end)
    made.batch(2)
    made.end()


def test_without_an_order_a_batch_and_its_error_are_found(planted):
    made = planted("own dataset", in_order=False)
    made.error(sprung(made, "sample"))
    made.take(BATCHES)
    assert_found(made.end)


# ---- the campaign's own faults -------------------------------------------------------------------


def test_whatever_the_campaign_raises_names_log_and_seed(tmp_path):
    place = laboratory(tmp_path, tmp_path / "none")
    with pytest.raises(Failed, match=r"(?s)FileNotFoundError.*--seed 17") as raised:
        run(place, KINDS["plan"], 17, 5, [])
    assert "step 0" in str(raised.value)


def test_a_descriptor_may_be_left_only_where_python_lost_one(planted):
    run = planted("plan").run
    assert_found(run.closed, ["/memfd:fusionloader-1-queue (deleted)"])
    run.interrupted("system/shm/objects.py:48 in create: call create")
    assert_found(run.closed, ["/memfd:fusionloader-1-queue (deleted)"])
    run.interrupted("system/limits/anonymous_memory.py:81 in _memfd: c_return memfd_create")
    run.closed(["/memfd:fusionloader-1-queue (deleted)"])
    assert_found(run.closed, ["/memfd:fusionloader-1-queue (deleted)", "pipe:[7]"])
