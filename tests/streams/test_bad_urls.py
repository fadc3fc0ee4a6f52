"""Training while servers refuse, fail, hang, or have other shards than were indexed."""

import pytest
from support.faulty_server import serving
from support.images import eval_transform
from support.notes import said
from support.tar_shards import image_shards
from support.waiting import PATIENCE

from fusionloader import FusionLoader
from fusionloader.cache.range_reading import ShardChanged
from fusionloader.data.sources import TarStream
from fusionloader.data.sources.url_errors import ServerFailed, UrlAbsent, UrlDenied

COUNTS = (9, 6, 9)
BAD = range(9, 15)  # samples of the shard whose server goes wrong
SHARD = "train-001.tar"


def answered_by(fault):
    def begin(server):
        server.fault_of = lambda asked: fault if asked.path == SHARD else None

    return begin


def vanish(server):
    del server.files[SHARD]


def replace(server):
    server.files[SHARD] = image_shards((40, 6))[SHARD]


def cut_off(server):
    server.files[SHARD] = server.files[SHARD][:3000]


FAULTS = {
    "403": (answered_by(403), UrlDenied, "storage_options"),
    "404": (answered_by(404), UrlAbsent, "check the URL"),
    "500": (answered_by(500), ServerFailed, "500"),
    "503": (answered_by(503), ServerFailed, "503"),
    "hang": (answered_by("hang"), ServerFailed, "timeout="),
    "cut answers": (answered_by("cut"), ServerFailed, "retries="),
    "vanished": (vanish, UrlAbsent, "check the URL"),
    "replaced": (replace, ShardChanged, "make the dataset anew"),
    "cut off": (cut_off, ShardChanged, "make the dataset anew"),
}
faults = pytest.mark.parametrize("fault", FAULTS)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(image_shards(COUNTS)) as state:
        yield state


def loader_of(server, fault, **options):
    """A loader that has had an epoch; the fault begins after it."""
    stream = TarStream(
        server.url("train-{000..002}.tar"),
        transform=eval_transform(),
        shuffle_window=8,
        retries=1,
        timeout=2.0 if fault == "hang" else PATIENCE,
        hedge=False,
    )
    loader = FusionLoader(stream, 4, sampler=stream.sampler(), num_workers=2, seed=1, **options)
    assert sum(len(targets) for _, targets in loader) == sum(COUNTS)
    FAULTS[fault][0](server)
    return loader


@faults
@pytest.mark.few(1)
def test_the_error_names_shard_sample_and_remedy(server, fault):
    loader = loader_of(server, fault)
    with pytest.raises(FAULTS[fault][1]) as caught:
        list(loader)
    text = said(caught.value)
    assert server.url(SHARD) in text and FAULTS[fault][2] in text
    assert any(f"{SHARD}: {number:06d}.jpg" in text for number in BAD), text


@pytest.mark.parametrize(
    ("fault", "on_error"),
    [*((fault, "skip") for fault in FAULTS), ("503", "substitute"), ("replaced", "substitute")],
)
@pytest.mark.few(1)
def test_the_epoch_goes_on_without_its_samples(server, fault, on_error):
    loader = loader_of(server, fault, on_error=on_error)
    targets = sorted(target for _, found in loader for target in found.tolist())
    whole = set(range(sum(COUNTS))) - set(BAD)
    assert set(targets) == whole
    assert len(targets) == (len(whole) if on_error == "skip" else sum(COUNTS))
    stats = loader.stats()
    assert stats.skipped + stats.substituted == len(BAD)
    assert any(SHARD in text and FAULTS[fault][2] in text for text in stats.errors)
