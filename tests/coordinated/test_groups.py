"""Jobs that share a word: the same batches as alone, each prepared once."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from jobs import OPTIONS, all_rest, alone, coordinators, digest, epoch, left, make_loader, together
from support import torchrun, warm_start
from support.batches import same_batches
from support.datasets import Stream
from support.images import eval_transform, train_transform
from support.waiting import PATIENCE, gone, wait_until
from torch.utils.data import DistributedSampler
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.engine.iterators import slot_iterator
from fusionloader.sharing.jobs.address import coordinator_address

HERE = Path(__file__).parent


def test_every_job_has_the_batches_that_it_would_make_alone(group, train_set):
    jobs = group(3)
    for expected in alone(train_set, epochs=2):
        assert epoch(jobs) == [expected] * 3


def test_each_mini_batch_is_prepared_once_by_all_workers(group, train_set):
    jobs = group(2)
    epoch(jobs)
    stats = [job.ask("stats") for job in jobs]
    assert all(each.shared_batches == 10 and each.together for each in stats)
    assert all(each.made_here + each.made_elsewhere == len(train_set) for each in stats)
    assert sum(each.made_here for each in stats) == len(train_set)


@pytest.mark.few(1)
@pytest.mark.parametrize("persistent", [False, True])
def test_a_job_may_keep_all_its_batches(word, train_set, persistent):
    options = {"persistent_workers": persistent}
    expected = make_loader(train_set, None, options)
    loader = make_loader(train_set, word, options)
    for _ in range(2):
        assert same_batches(list(expected), list(loader))
    loader.close()
    del loader


def test_a_job_that_keeps_its_batches_holds_nobody_up(group, train_set, long_set):
    keeper, other = group(2, **long_set)
    expected = alone(train_set, **long_set)[0]
    together([keeper, other], 1)
    keeper.tell("keep", 40)
    assert other.take(40) == expected[1:41]
    assert keeper.answer() == expected[1:41]
    assert keeper.ask("keep", 0) == expected[1:41]  # they are as they were


def test_another_epoch_follows_after_a_break(group, train_set):
    jobs = group(2)
    expected = alone(train_set, epochs=2)
    together(jobs, 3)
    assert all_rest(jobs) == [expected[0][3:]] * 2
    assert together(jobs, 10) == [expected[1]] * 2


@pytest.mark.few(1)
@pytest.mark.parametrize("persistent", [False, True])
def test_no_batch_of_an_epoch_that_was_left_comes_in_the_next(group, train_set, persistent):
    options = {"in_order": False, "persistent_workers": persistent}
    expected = alone(train_set, epochs=2, **options)
    first, other = group(2, **options)
    together([first, other], 1)
    other.rest()  # the first job was sent the same batches before, and has not read of them
    first.ask("leave")
    assert sorted(first.take(10)) == sorted(expected[1])


def test_a_late_job_has_an_epoch_for_itself_and_shares_the_next_one(group, train_set):
    first, late = group(2, prefetch_factor=1)
    expected = alone(train_set, epochs=2)
    begun = first.take(8)
    assert late.take(1) == expected[0][:1]
    assert "have begun this epoch before" in late.ask("stats").why_alone
    assert begun + first.rest() == expected[0]
    assert [job.ask("stats").shared_batches for job in (first, late)] == [0, 0]
    first.tell("rest")  # waits a while for who is about to come
    assert late.rest() == expected[0][1:]
    assert late.rest() == first.answer() == expected[1]
    stats = [job.ask("stats") for job in (first, late)]
    assert all(each.outside_batches == 0 for each in stats)
    delivered = sum(each.shared_batches + each.alone_batches for each in stats)
    assert delivered == 40
    if all(each.alone_batches == 10 for each in stats):  # the machine was not too busy for them
        assert sum(each.made_here for each in stats) == 3 * len(train_set)


def test_a_job_that_is_epochs_late_is_waited_for(group, train_set, long_set):
    options = {"prefetch_factor": 1, **long_set}
    first, late = group(2, **options)
    expected = alone(train_set, epochs=6, **options)
    assert [first.rest(), first.rest()] == expected[:2]
    for job in (first, late):
        for _ in range(4):
            job.tell("rest")
    assert [first.answer() for _ in range(4)] == expected[2:]
    assert [late.answer() for _ in range(4)] == expected[:4]
    before = first.ask("stats").shared_batches, late.ask("stats").shared_batches
    assert before == (0, 0) or all(before)


def test_a_resumed_job_prepares_alone_what_the_others_have_had(group, train_set):
    first, second = group(2)
    expected = alone(train_set)[0]
    together([first, second], 4)
    state = first.ask("state")
    third = group()
    third.ask("load", state)
    assert third.rest() == expected[4:]
    assert all_rest([first, second]) == [expected[4:]] * 2


def test_jobs_that_resume_alike_go_on_together(group, train_set, word):
    loader = make_loader(train_set, None, {})
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    jobs = group(2)
    for job in jobs:
        job.ask("load", state)
    together_found = together(jobs, 1)
    rest = all_rest(jobs)
    expected = alone(train_set)[0][4:]
    assert [a + b for a, b in zip(together_found, rest, strict=True)] == [expected] * 2
    assert left(jobs) == []


@pytest.mark.parametrize("on_error", ["raise", "skip", "substitute"])
@pytest.mark.few(2)
def test_bad_samples_are_for_every_job_what_they_are_alone(group, tmp_path, train_set, on_error):
    shutil.copytree(train_set.root, tmp_path / "images")
    damaged = ImageFolder(str(tmp_path / "images"), train_transform())
    for path, _ in damaged.samples[5:7]:
        Path(path).write_bytes(b"no image")
    options = {"on_error": on_error, "shuffle": False}
    jobs = group(2, dataset=damaged, **options)
    if on_error != "raise":
        assert all_rest(jobs) == alone(damaged, **options) * 2
        return
    together(jobs, 1)
    for job in jobs:
        with pytest.raises(Exception, match="Sample: index 5"):
            job.take(1)


DIFFERENT = {
    "seed": ({"seed": 4}, "seed is 4 here and 3 in the job"),
    "batch size": ({"batch_size": 5}, "batch_size is 5 here and 4"),
    "drop_last": ({"drop_last": True}, "drop_last is True here and False"),
    "tiny batches": ({"tiny_batch_size": 2}, "tiny_batch_size is 2 here and 4"),
    "errors": ({"on_error": "skip"}, "on_error is skip here and raise"),
    "decoding": ({"decode": "fast"}, "decode is fast here and exact|transforms is"),
    "order": ({"shuffle": False}, "sampler is BatchSampler of SequentialSampler"),
    "shuffling": (
        {"generator": torch.Generator().manual_seed(8)},
        "mini-batch 0 of the epoch has other samples than in another job",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.few(3)
def test_a_job_that_differs_is_refused_with_what_differs(group, train_set, name):
    options, message = DIFFERENT[name]
    first, other = group(), group(**options)
    begun = first.take(1)
    with pytest.raises(ValueError, match=message):
        other.take(1)
    assert begun + first.rest() == alone(train_set)[0]


def test_another_dataset_is_refused(group, train_set, eval_set):
    first, other = group(), group(dataset=eval_set)
    first.take(1)
    with pytest.raises(ValueError, match="transforms is .* here and .* in the job with pid"):
        other.take(1)


def test_another_normalization_is_refused(group, train_set):
    other_set = ImageFolder(train_set.root, train_transform())
    other_set.transform.transforms[-1].mean = (0.0, 0.0, 0.0)
    first, other = group(), group(dataset=other_set)
    first.take(1)
    with pytest.raises(ValueError, match="transforms is 2 stages, .* here and 2 stages, "):
        other.take(1)


def test_drawn_seeds_that_differ_are_refused(group):
    first, other = (group(seed=None, generator=torch.Generator().manual_seed(n)) for n in range(2))
    first.take(1)
    with pytest.raises(ValueError, match="seed is .*give all of them the same seed"):
        other.take(1)


REFUSED = {
    "two words": ({"share": "two words"}, "one word of at most 64 letters"),
    "too long": ({"share": "x" * 65}, "one word of at most 64 letters"),
    "no text": ({"share": 3}, "one word of at most 64 letters"),
    "no workers": ({"share": "x", "num_workers": 0}, "num_workers > 0"),
    "a GPU worker": ({"share": "x", "gpu_worker": "auto"}, "leave gpu_worker out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_cannot_be_shared_are_refused_at_once(train_set, name):
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        FusionLoader(train_set, **{**OPTIONS, **options})


def _nothing(worker):
    pass


CANNOT = {
    "a stream": (Stream([4]), {"shuffle": None}, "an IterableDataset has no indices"),
    "worker_init_fn": (None, {"worker_init_fn": _nothing}, "worker_init_fn may change"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_loaders_with_mini_batches_of_one_worker_cannot_share(train_set, name):
    dataset, options, message = CANNOT[name]
    loader = FusionLoader(dataset or train_set, share="x", **{**OPTIONS, **options})
    with pytest.raises(ValueError, match=f"cannot share its preparation.*{message}"):
        iter(loader)


def test_memory_is_page_locked_for_the_device_that_torch_copies_it_to(word, train_set, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    devices = []
    monkeypatch.setattr(slot_iterator, "CudaDevice", devices.append)
    loader = make_loader(train_set, word, {"pin_memory": True, "device": "cuda:1"})
    iter(loader)
    loader.close()
    assert set(devices) == {torch.device("cuda:1")}


def test_explain_says_what_came_from_other_jobs(word, train_set):
    loader = make_loader(train_set, word, {})
    list(loader)
    text = loader.explain()
    assert f'together under the word "{word}": 0% of the mini-batches were made once for' in text
    assert "and 40 were made here; no other job is in this epoch" in text
    assert loader.stats().as_dict()["shared_prep"]["alone_batches"] == 10
    assert loader.stats().scalars()["fusionloader/shared_prep/batches"] == 0
    loader.close()
    del loader


def test_a_dataset_that_changes_between_epochs_is_prepared_as_it_is_then(word, image_folder):
    dataset = ImageFolder(str(image_folder), train_transform())
    expected, loader = (make_loader(dataset, share, {}) for share in (None, word))
    for transform in (train_transform(), eval_transform()):
        dataset.transform = transform
        assert same_batches(list(expected), list(loader))
    assert loader.stats().shared_prep.outside_batches == 0
    loader.close()


def test_a_closed_loader_leaves_the_group_and_may_come_back(word, train_set):
    expected, loader = (make_loader(train_set, share, {}) for share in (None, word))
    for _ in range(2):
        assert same_batches(list(expected), list(loader))
        loader.close()
        wait_until(lambda: not coordinators(coordinator_address(word)))
    assert loader.stats().shared_prep.outside_batches == 0


def test_the_number_of_workers_may_change(word, train_set):
    expected = alone(train_set)[0]
    loader = make_loader(train_set, word, {})
    iterator = iter(loader)
    found = [digest(next(iterator))]
    for count in (3, 1):
        loader.resize_workers(count)
        found.append(digest(next(iterator)))
        assert len(iterator._workers) == count
    assert found + [digest(batch) for batch in iterator] == expected
    del iterator, loader


def test_the_coordinator_ends_with_its_last_job(group, word):
    job = group()
    job.take(1)
    workers = job.ask("workers")
    (socket,) = {each.pid for each in coordinators(coordinator_address(word))} - {None}
    job.process.kill()
    wait_until(lambda: gone(socket) and all(map(gone, workers)))


SCRIPT = """
import json, os, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from jobs import digest, make_loader
from support.images import train_transform
from torchvision.datasets import ImageFolder

if __name__ == "__main__":
    loader = make_loader(ImageFolder(sys.argv[1], train_transform()), sys.argv[2], {})
    iterator = iter(loader)  # takes nothing before the other job has one, too
    Path(f"{sys.argv[0]}.begun.{os.getpid()}").touch()
    while len(list(Path(sys.argv[0]).parent.glob("*.begun.*"))) < 2:
        time.sleep(0.01)
    epochs = [[digest(batch) for batch in each] for each in (iterator, loader)]
    stats = loader.stats().shared_prep
    with open(f"{sys.argv[0]}.{os.getpid()}", "w") as file:
        json.dump([epochs, stats.shared_batches, int(os.environ.get("RANK", 0))], file)
"""


@pytest.mark.parametrize("launcher", ["python", "torchrun"])
def test_scripts_share_however_they_are_started(tmp_path, image_folder, train_set, word, launcher):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    path = [str(HERE), str(HERE.parent), str(HERE.parents[1])]
    variables = torchrun.environment(1)[0] if launcher == "torchrun" else {}
    started = [
        warm_start.start(script, str(image_folder), word, *path, path=path, **variables)
        for _ in range(2)
    ]
    assert [process.wait(PATIENCE) for process in started] == [0, 0]
    found = [json.loads(file.read_text()) for file in tmp_path.glob("train.py.[0-9]*")]
    assert [epochs for epochs, _, _ in found] == [alone(train_set, epochs=2)] * 2
    assert any(shared > 0 for _, shared, _ in found)  # one that is stopped for long leaves


def test_rank_n_of_one_training_shares_with_rank_n_of_another(group, train_set, word, monkeypatch):
    addresses, jobs, expected = [], [], []
    for _ in range(2):
        for rank, variables in enumerate(torchrun.environment(2)):
            sampler = DistributedSampler(train_set, 2, rank)
            jobs.append(group(environ=variables, sampler=sampler))
            expected.append(alone(train_set, sampler=sampler)[0])
            with monkeypatch.context() as patch:
                for name, value in variables.items():
                    patch.setenv(name, value)
                addresses.append(coordinator_address(word))
    assert epoch(jobs) == expected
    assert left(jobs) == []
    stats = [job.ask("stats") for job in jobs]
    if all(each.alone_batches == 0 for each in stats):
        assert sum(each.made_here for each in stats) == len(train_set)
    for job in jobs:
        job.close()
    wait_until(lambda: not any(map(coordinators, addresses)))


def test_a_trace_shows_the_steps_and_says_that_workers_are_not_shown(word, train_set, tmp_path):
    loader = make_loader(train_set, word, {})
    with loader.trace(tmp_path / "run.json"):
        list(loader)
    trace = (tmp_path / "run.json").read_text()
    assert "workers of several jobs" in trace
    loader.close()
    del loader
