"""Accelerate keeps a FusionLoader, and everything that it does for loaders."""

import warnings
from pathlib import Path

import pytest
import torch
from support.frameworks import Lazy
from support.torchrun import ranks
from torch.utils.data import DataLoader
from toy import Points

from fusionloader import DecodedCache, FusionLoader, Remote, WorkerPool
from fusionloader.addons.integrations.rebuild import EXTRA_ARGUMENTS

accelerate = Lazy("accelerate")
ROOT = Path(__file__).parents[2]
REMOTE = Remote(servers=["cpu1:7070"])


def prepare(*arguments, **options):
    from fusionloader.addons.integrations.accelerate import prepare

    return prepare(*arguments, **options)


@pytest.fixture
def accelerator():
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    return accelerate.Accelerator(cpu=True)


def test_a_prepared_loader_is_served_by_fusionloader(accelerator):
    loader, other = prepare(
        accelerator,
        FusionLoader(Points(), 4, num_workers=2, on_error="skip", global_manager="off"),
        torch.nn.Linear(1, 1),
    )
    assert isinstance(loader, FusionLoader)
    assert isinstance(other, torch.nn.Module)
    assert loader.base_dataloader.on_error == "skip"
    assert loader.base_dataloader.global_manager == "off"
    assert loader in accelerator._dataloaders
    seen = [int(i) for _, numbers in loader for i in numbers]
    assert seen == list(range(22))
    assert loader.base_dataloader.stats().batches == 6


@pytest.mark.parametrize(
    "more",
    [
        {"cache": DecodedCache("1MiB"), "decode": "exact", "strict": True},
        {"cache": None, "decode": "fast", "strict": False, "share": "sweep", "pool": None},
        {"cache": None, "decode": "exact", "strict": True, "pool": None, "remote": REMOTE},
    ],
    ids=["a cache", "without", "remote workers"],
)
def test_every_argument_of_a_prepared_loader_is_kept(accelerator, more):
    own = {
        "tiny_batch_size": 2,
        "device": torch.device("cpu"),
        "gpu_worker": None,
        "seed": 3,
        "on_error": "skip",
        "augment_per": "tiny_batch",
        "jpeg_index": "auto",
        "global_manager": "off",
        "pool": WorkerPool(2),
        "cpu_affinity": "off",
        "deferred_images": "off",
        "max_shared_bytes": "1GiB",
        "share": None,
        "stall_timeout": 30,
        "remote": None,
        "snapshot_every_n_steps": 5,
        **more,
    }
    assert set(own) == set(EXTRA_ARGUMENTS)
    prepared = prepare(accelerator, FusionLoader(Points(), 4, num_workers=2, **own))
    assert {name: getattr(prepared.base_dataloader, name) for name in own} == own


def test_the_batches_are_those_of_accelerates_own_loader(accelerator):
    torch.manual_seed(3)
    ours = [n.tolist() for _, n in prepare(accelerator, FusionLoader(Points(), 4, shuffle=True))]
    torch.manual_seed(3)
    theirs = [n.tolist() for _, n in accelerator.prepare(DataLoader(Points(), 4, shuffle=True))]
    assert ours == theirs


def test_the_end_of_the_loader_is_known_and_ends_an_accumulation(accelerator):
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(3, 1)
    loader, model = prepare(accelerator, FusionLoader(Points(), 4), model)
    ends, synced = [], []
    for batch, _ in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            ends.append(loader.end_of_dataloader)
            synced.append(accelerator.sync_gradients)
    assert ends == [False] * 5 + [True]
    assert synced == [False, False, False, True, False, True]
    assert accelerator.gradient_state.remainder == -1


def test_a_checkpoint_in_mid_epoch_goes_on_with_the_next_batch(accelerator, tmp_path):
    loader = prepare(accelerator, FusionLoader(Points(), 4, shuffle=True, num_workers=2))
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    accelerator.save_state(tmp_path)
    expected = [numbers.tolist() for _, numbers in iterator]
    accelerator.free_memory()
    again = prepare(accelerator, FusionLoader(Points(), 4, shuffle=True, num_workers=2))
    accelerator.load_state(tmp_path)
    assert [numbers.tolist() for _, numbers in again] == expected


def test_batches_that_are_skipped_after_a_checkpoint_are_skipped_once(accelerator, tmp_path):
    loader = prepare(accelerator, FusionLoader(Points(), 4, on_error="skip"))
    iterator = iter(loader)
    next(iterator)
    accelerator.save_state(tmp_path)
    accelerator.free_memory()
    again = prepare(accelerator, FusionLoader(Points(), 4, on_error="skip"))
    accelerator.load_state(tmp_path)
    for _ in range(2):  # the second time nothing is loaded, as in a script that loads no state
        first = accelerator.skip_first_batches(again, 1)
        assert first.base_dataloader.on_error == "skip"
        assert [numbers.tolist()[0] for _, numbers in first] == [4, 8, 12, 16, 20]
        assert [numbers.tolist()[0] for _, numbers in again] == [0, 4, 8, 12, 16, 20]
    theirs = accelerator.prepare(DataLoader(Points(), 4))
    assert not isinstance(accelerator.skip_first_batches(theirs, 1), FusionLoader)


def test_the_epochs_after_a_checkpoint_are_those_of_a_seedable_sampler(accelerator, tmp_path):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(
        cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(use_seedable_sampler=True)
    )

    def numbers_of(batches):
        return [numbers.tolist() for _, numbers in batches]

    accelerate.utils.set_seed(3)
    loader = prepare(accelerator, FusionLoader(Points(), 4, shuffle=True, num_workers=2))
    first, iterator = numbers_of(loader), iter(loader)
    for _ in range(4):
        next(iterator)
    accelerator.save_state(tmp_path)
    rest, following = numbers_of(iterator), numbers_of(loader)
    assert first != following
    accelerator.free_memory()
    accelerate.utils.set_seed(3)
    again = prepare(accelerator, FusionLoader(Points(), 4, shuffle=True, num_workers=2))
    accelerator.load_state(tmp_path)
    assert [numbers_of(again), numbers_of(again)] == [rest, following]


def test_plain_prepare_warns_that_the_loader_is_lost(accelerator):
    with pytest.warns(UserWarning, match="fusionloader.addons.integrations.accelerate.prepare"):
        prepared = accelerator.prepare(FusionLoader(Points(), 4))
    assert type(prepared.base_dataloader) is DataLoader


def test_our_prepare_does_not_warn(accelerator):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = prepare(accelerator, FusionLoader(Points(), 4))
        assert prepare(accelerator, loader) is loader


RANK = """
import sys, torch, accelerate
from toy import Points
from torch.utils.data import ConcatDataset
from fusionloader import FusionLoader
from fusionloader.addons.integrations.accelerate import prepare
from fusionloader.data.samplers import MixSampler
accelerator = accelerate.Accelerator(cpu=True)
torch.manual_seed(5)
loader = prepare(accelerator, FusionLoader(Points(), 4, shuffle=True, num_workers=1))
mine = torch.stack([torch.nn.functional.pad(n, (0, 4 - len(n)), value=-1) for _, n in loader])
sizes = [len(n) for _, n in loader]
gathered = []
for _, numbers in loader:
    gathered += accelerator.gather_for_metrics(numbers).tolist()
everything = accelerator.gather(mine)
if accelerator.is_main_process:
    print("ranks", accelerator.num_processes, "steps", len(sizes), set(sizes))
    print("seen", sorted(set(everything.flatten().tolist())) == list(range(22)))
    print("metrics", sorted(gathered) == list(range(22)))
parts = [Points(), Points()]
sampler = MixSampler(parts, [1, 1], batch_size=4)
try:
    prepare(accelerator, FusionLoader(ConcatDataset(parts), batch_sampler=sampler))
except ValueError as error:
    print("refused", error)
# A rank that leaves without it may abort another one, which still waits for its connection.
accelerator.end_training()
"""


def test_two_ranks_share_the_epoch_evenly(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    path = [str(ROOT), str(Path(__file__).parent)]
    environment = {"ACCELERATE_USE_CPU": "true", "HOME": str(tmp_path)}
    found = ranks(script, count=2, path=path, **environment)
    assert "ranks 2 steps 3 {4}" in found
    assert "seen True" in found and "metrics True" in found
    assert "refused Accelerate gives each of 2 ranks its share" in found


RESUMED = """
import sys, torch, accelerate
from toy import Points
from fusionloader import FusionLoader
from fusionloader.addons.integrations.accelerate import prepare
what, folder, dispatch = sys.argv[1:]
torch.manual_seed(what == "save")
config = accelerate.DataLoaderConfiguration(dispatch_batches=dispatch == "dispatch")
accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
loader = prepare(accelerator, FusionLoader(Points(), 2, shuffle=True, num_workers=1))
if what == "save":
    list(loader)
    iterator = iter(loader)
    seen = accelerator.gather(torch.cat([next(iterator)[1] for _ in range(3)]))
    accelerator.save_state(folder + "/state")
    torch.save(seen, folder + "/seen")
    rest = list(iterator)
else:
    accelerator.load_state(folder + "/state")
    seen, rest = torch.load(folder + "/seen"), list(loader)
seen = torch.cat([seen, accelerator.gather(torch.cat([numbers for _, numbers in rest]))])
if accelerator.is_main_process:
    print(what, sorted(set(seen.tolist())) == list(range(22)))
accelerator.end_training()
"""


@pytest.mark.parametrize("shares", ["shard", "dispatch"])
def test_two_ranks_resume_the_epoch_with_the_samples_that_are_left(tmp_path, shares):
    script = tmp_path / "rank.py"
    script.write_text(RESUMED)
    options = {"count": 2, "path": [str(ROOT), str(Path(__file__).parent)], "HOME": str(tmp_path)}
    for what in ("save", "load"):
        found = ranks(script, what, str(tmp_path), shares, ACCELERATE_USE_CPU="true", **options)
        assert f"{what} True" in found
