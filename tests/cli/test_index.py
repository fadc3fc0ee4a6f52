"""The index command, on shards in a folder."""

from support.tar_shards import image_shards

from fusionloader.__main__ import main
from fusionloader.data.sources import TarStream


def test_indexes_are_written_beside_shards(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, data in image_shards((3, 4)).items():
        (tmp_path / name).write_bytes(data)
    urls = f"file://{tmp_path}/train-{{000..001}}.tar"
    assert main(["index", urls]) == 0
    assert "2 indexes written" in capsys.readouterr().out
    assert TarStream(urls, index="beside").targets.tolist() == list(range(7))


def test_what_cannot_be_indexed_is_said(tmp_path, capsys):
    (tmp_path / "bad.tar").write_bytes(b"no archive" * 100)
    assert main(["index", f"file://{tmp_path}/bad.tar"]) == 1
    assert "bad.tar, byte 0: no tar header here" in capsys.readouterr().err
    assert main(["index", f"file://{tmp_path}/missing.tar", "--retries", "0"]) == 1
    assert "missing.tar" in capsys.readouterr().err
    assert main(["index", "file:///a.tar", "--storage-options", "[]"]) == 1
    assert "should be a JSON object" in capsys.readouterr().err
