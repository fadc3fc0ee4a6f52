"""Workers behind TCP on the loopback device."""

from __future__ import annotations

from pathlib import Path

from support.remote_workers import RemoteWorker

from chaos.kinds.image_plans import epochs_of, helped, images_of, part_of
from chaos.kinds.setting import EpochKind, Epochs, Setting
from fusionloader import Remote


def _remote(setting: Setting) -> Epochs:
    if setting.plain:
        return epochs_of(part_of(images_of(setting), setting, num_workers=1))
    token = Path(setting.folder) / "token"
    token.write_text("a token that loader and workers know")
    token.chmod(0o600)
    workers = [RemoteWorker(token, cores=1) for _ in range(2)]
    addresses = [worker.address for worker in workers]
    remote = Remote(servers=addresses, token_file=str(token), offload="all")
    options = {"num_workers": 1, "remote": remote, "persistent_workers": True}
    made = epochs_of(part_of(images_of(setting), setting, **options))
    helped(made, lambda stats: stats.remote.samples)

    def recover() -> None:
        for number, worker in enumerate(workers):
            if worker.process.poll() is not None:
                worker.end()
                workers[number] = RemoteWorker(token, worker.address, cores=1)

    def close() -> None:
        made.close()
        for worker in workers:
            worker.end()

    return Epochs(made.parts, close, recover)


KINDS = (
    EpochKind(
        "remote workers",
        _remote,
        in_suite=True,
        made_by="samples by remote workers",
        needs=("cryptography",),
    ),
)
