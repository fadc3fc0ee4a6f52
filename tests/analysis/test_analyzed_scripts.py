"""Scripts as users write them, analyzed: loaders are found, steps counted, the end is clean."""

import pickle
import sys

import pytest
from support.shards import shards_of
from torch.utils.data import DataLoader

from fusionloader.cli.analysis import files
from fusionloader.cli.analysis.errors import AnalysisError
from fusionloader.cli.analysis.files import FileCacheLimit
from fusionloader.cli.analysis.phases import Phase

TRAIN = """
for epoch in range(50):
    for x, y in loader:
        x.sum()
"""
MEASURED = {Phase.TODAY, Phase.MEMORY, Phase.WARM}


@pytest.mark.parametrize("kind", ["DataLoader", "FusionLoader"])
def test_a_script_is_measured_without_a_change_and_stopped(analyzed, kind):
    found = analyzed(f"loader = {kind}(Numbers(), 4)" + TRAIN + "raise SystemExit('not stopped')")
    (loader,) = found.loaders
    assert found.stopped and found.runs == 1
    assert loader.title == f"{kind} made at train.py:15"
    assert set(loader.phases) == MEASURED
    assert "in memory" in loader.skipped[Phase.COLD]
    assert all(result.steps >= 5 and result.rate > 0 for result in loader.phases.values())
    assert loader.shape.batch_size == 4 and loader.shape.steps == 6


def test_workers_are_measured_alone_too(analyzed):
    found = analyzed("loader = FusionLoader(Numbers(), 4, num_workers=2)" + TRAIN)
    service = found.loaders[0].service
    assert (service.warm.workers, service.alone.workers) == (2, 1)
    assert service.warm.delivery_seconds > 0


def test_the_script_sees_its_own_batches_and_its_arguments(analyzed, tmp_path):
    seen = tmp_path / "seen"
    analyzed(
        f"""
        import sys
        loader = DataLoader(Numbers(), 4)
        for epoch in range(50):
            for x, y in loader:
                with open({str(seen)!r}, "a") as file:
                    print(__name__, sys.argv[1:], len(loader), y.tolist(), file=file)
        """,
        "--lr",
        "3",
    )
    first, second = seen.read_text().splitlines()[:2]
    assert first == "__main__ ['--lr', '3'] 6 [0, 1, 2, 3]"
    assert second.endswith("[4, 5, 6, 7]")


def test_a_batch_that_training_writes_into_is_replayed_as_it_was(analyzed, tmp_path):
    seen = tmp_path / "seen"
    analyzed(
        f"""
        loader = DataLoader(Numbers(), 24)
        for epoch in range(100):
            for x, y in loader:
                with open({str(seen)!r}, "a") as file:
                    print(x.sum().item(), file=file)
                x.mul_(2)
        """
    )
    assert set(seen.read_text().split()) == {"828.0"}


def test_epochs_have_as_many_steps_as_ever(analyzed, tmp_path):
    seen = tmp_path / "seen"
    analyzed(
        f"""
        loader = DataLoader(Numbers(), 4)
        for epoch in range(50):
            with open({str(seen)!r}, "a") as file:
                print(sum(1 for _ in loader), file=file)
        """
    )
    assert set(seen.read_text().split()) == {"6"}


def test_training_and_validation_are_both_shown(analyzed):
    found = analyzed(
        """
        loader, validation = DataLoader(Numbers(), 4), DataLoader(Numbers(), 8)
        for epoch in range(50):
            for x, y in loader:
                pass
            for x, y in validation:
                pass
        """
    )
    assert found.stopped
    assert [loader.place for loader in found.loaders] == ["train.py:16", "train.py:16 (2)"]
    assert all(set(loader.phases) == MEASURED for loader in found.loaders)


def test_a_loader_that_is_made_anew_for_each_epoch_is_one(analyzed):
    found = analyzed(
        """
        for epoch in range(100):
            for x, y in FusionLoader(Numbers(), 4, num_workers=1):
                pass
        """
    )
    (loader,) = found.loaders
    assert found.stopped and loader.place == "train.py:17"
    assert set(loader.phases) == MEASURED


def test_a_short_script_is_run_again(analyzed):
    found = analyzed("loader = DataLoader(Numbers(), 4)\nfor x, y in loader:\n    pass\n")
    assert found.runs > 1
    assert set(found.loaders[0].phases) == MEASURED


def test_a_script_that_goes_on_after_errors_is_stopped_all_the_same(analyzed):
    found = analyzed(
        """
        loader = DataLoader(Numbers(), 4)
        for epoch in range(100):
            try:
                for x, y in loader:
                    pass
            except Exception:
                raise SystemExit("caught")
            except:
                pass
        """
    )
    assert not found.stopped and set(found.loaders[0].phases) == MEASURED


def test_a_stream_is_measured_as_far_as_it_goes(analyzed):
    found = analyzed(
        """
        loader = DataLoader(Stream(), 4)
        for epoch in range(100):
            for x in loader:
                pass
        """
    )
    (loader,) = found.loaders
    assert set(loader.phases) == MEASURED
    assert "IterableDataset has no indices" in loader.skipped[Phase.COLD]


def test_cold_files_are_read_from_storage_or_the_report_says_why_not(analyzed, image_folder):
    found = analyzed(
        f"""
        from torchvision import transforms
        from torchvision.datasets import ImageFolder
        crop = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])
        loader = FusionLoader(ImageFolder({str(image_folder)!r}, crop), 8, num_workers=1)
        for epoch in range(50):
            for x, y in loader:
                pass
        """
    )
    (loader,) = found.loaders
    assert (Phase.COLD in loader.phases) != ("cannot be dropped" in str(loader.skipped))
    service = loader.service
    assert {"read", "decode"} <= {stage.name for stage in service.warm.stages}
    assert service.cached.hit_share > 0.9 and service.cached.stored_bytes > 100
    assert service.reads.mean_bytes > 100 and service.reads.memory > 0
    assert len(service.costs) == 40


def test_a_share_of_the_files_stays_in_the_file_cache_if_that_is_asked_for(
    analyzed, image_folder, monkeypatch
):
    monkeypatch.setattr(files, "drop", lambda part: True)  # whatever file system the images are on
    found = analyzed(
        f"""
        from torchvision import transforms
        from torchvision.datasets import ImageFolder
        crop = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])
        loader = DataLoader(ImageFolder({str(image_folder)!r}, crop), 8)
        for epoch in range(50):
            for x, y in loader:
                pass
        """,
        file_cache=FileCacheLimit(share=0.75),
    )
    (loader,) = found.loaders
    assert Phase.COLD in loader.phases and loader.cached_share == 0.75


def test_the_constructor_looks_as_ever_to_frameworks(analyzed, tmp_path):
    seen = tmp_path / "seen"
    with pytest.raises(AnalysisError):
        analyzed(
            f"""
            import inspect
            with open({str(seen)!r}, "w") as file:
                file.write(" ".join(inspect.signature(DataLoader.__init__).parameters))
            """
        )
    assert seen.read_text().startswith("self dataset batch_size shuffle sampler")


# ---- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("print('no loader')", "came to its last line without making a DataLoader"),
        ("import sys; sys.exit(3)", r"came to sys.exit\(3\) without making"),
        ("loader = DataLoader(Numbers(), 4)", r"before a second batch .*train.py:15"),
        ("next(iter(DataLoader(Numbers(), 4)))", "before a second batch"),
        (
            "for x, y in DataLoader(Numbers(), 12):\n    if y[0]: raise KeyError('mine')",
            "KeyError: 'mine'\ntrain.py raised KeyError after 1 steps of training: it has to run",
        ),
        (
            "import os\npid = os.fork()\nif pid == 0:\n    for _ in range(3):\n"
            "        list(DataLoader(Numbers(), 4))\n    os._exit(0)\nos.waitpid(pid, 0)",
            "in a process that it forks",
        ),
    ],
)
def test_a_script_in_which_nothing_can_be_measured_is_told_why(analyzed, lines, message):
    with pytest.raises(AnalysisError, match=message):
        analyzed(lines)


def test_what_is_forked_and_goes_on_to_the_end_leaves_one_analysis(analyzed, tmp_path):
    pids = tmp_path / "pids"
    found = analyzed(
        f"""
        import os
        child = os.fork()
        if child == 0:
            os._exit(0 if sum(1 for _ in DataLoader(Numbers(), 4)) == 6 else 1)
        with open({str(pids)!r}, "w") as file:
            print(os.waitpid(child, 0)[1], file=file)
        loader = DataLoader(Numbers(), 4)
        for epoch in range(50):
            for x, y in loader:
                pass
        """
    )
    assert pids.read_text().strip() == "0"
    assert set(found.loaders[0].phases) == MEASURED


def test_loaders_and_arguments_are_as_before_when_the_analysis_is_over(analyzed):
    argv, init, iterate = list(sys.argv), DataLoader.__init__, DataLoader.__iter__
    with pytest.raises(AnalysisError):
        analyzed("raise ValueError")
    assert sys.argv == argv
    assert (DataLoader.__init__, DataLoader.__iter__) == (init, iterate)


def test_shards_are_analyzed_by_what_samples_take_of_them(analyzed, train_set, tmp_path):
    dataset = shards_of(train_set, tmp_path)
    (tmp_path / "dataset.pickle").write_bytes(pickle.dumps(dataset))
    found = analyzed(
        f"""
        import pickle
        with open({str(tmp_path / "dataset.pickle")!r}, "rb") as file:
            loader = FusionLoader(pickle.load(file), 8, num_workers=1)
        for epoch in range(50):
            for x, y in loader:
                pass
        """
    )
    (loader,) = found.loaders
    service = loader.service
    nbytes = dataset.byte_ranges().nbytes.tolist()
    assert [each.nbytes for each in service.costs] == nbytes
    assert service.reads.mean_bytes == sum(nbytes) / 40
    assert service.indexed is not None  # some of the ranges are JPEGs
