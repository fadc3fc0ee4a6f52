"""Workers on other machines, as users ask for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Offload = Literal["balance", "fastflow", "all"]
DataPlace = Literal["auto", "shared", "ship"]

_ADDRESS = re.compile(r"(\[[^\]]+\]|[^\s:\[\]]+):[0-9]{1,5}")


@dataclass(frozen=True)
class Remote:
    """Workers on other machines that prepare a part of a loader's samples.

    Args:
        servers: addresses, as ``"host:port"``, of processes that ``python -m fusionloader worker``
            started. ``None``: workers are started by Ray.
        workers: how many Ray is to start, one core each; a pair for as few and as many as may be
            there. By default one for each core of the cluster's other machines.
        address: of the Ray cluster, as ``ray.init()`` takes it. By default the one that runs, or
            that this process is part of.
        offload: what is left to them. ``"balance"``: whatever this machine's workers cannot make in
            time. ``"fastflow"``: a share that is computed from what was measured; Um et al.,
            "FastFlow" (PVLDB 16(5), 2023). ``"all"``: all that they take.
        data: ``"shared"``: workers open the dataset's files under the same paths. ``"ship"``: the
            encoded bytes are sent to them. ``"auto"``: the first where a worker has the files.
        token_file: what ``servers`` were given; by default the one that
            ``python -m fusionloader worker --init`` made.
        user_code: whether Ray may bring the dataset to the workers that it starts, and these run
            its Python code, where a plan is not the whole way of a sample. Only without
            ``servers``.

    Raises:
        ValueError: a value is not one of those above.
    """

    servers: Sequence[str] | None = None
    workers: int | tuple[int, int] | None = None
    address: str | None = None
    offload: Offload = "balance"
    data: DataPlace = "auto"
    token_file: str | None = None
    user_code: bool = False

    @classmethod
    def of(cls, wanted: object) -> Remote:
        """Returns what a loader's ``remote`` stands for: addresses, ``"auto"`` or settings.

        Raises:
            ValueError: it is none of these.
        """
        if isinstance(wanted, Remote):
            return wanted
        if wanted == "auto":
            return cls()
        if isinstance(wanted, (list, tuple)):
            return cls(servers=wanted)
        raise ValueError(f'remote should be addresses, "auto", a Remote or None, not {wanted!r}')

    def __post_init__(self) -> None:
        if self.offload not in get_args(Offload):
            raise ValueError(f"offload should be one of {get_args(Offload)}, not {self.offload!r}")
        if self.data not in get_args(DataPlace):
            raise ValueError(f"data should be one of {get_args(DataPlace)}, not {self.data!r}")
        if self.servers is not None:
            self._check_servers()
        elif self.token_file is not None:
            raise ValueError("token_file goes with servers: Ray's workers get a token of their own")
        if not isinstance(self.user_code, bool):
            raise ValueError(f"user_code should be True or False, not {self.user_code!r}")
        self._check_workers()

    def _check_servers(self) -> None:
        found = self.servers
        if isinstance(found, str) or not found or not all(map(_is_address, found)):
            raise ValueError(f'servers should be addresses as "host:port", not {found!r}')
        if len(set(found)) != len(found):
            raise ValueError(f"an address is given twice in servers={found!r}")
        if self.workers is not None or self.address is not None:
            raise ValueError("workers and address are Ray's; servers have as many as they offer")
        if self.user_code:
            raise ValueError(
                "user_code needs Ray, which brings the code to its workers: leave servers or "
                "user_code out"
            )
        object.__setattr__(self, "servers", tuple(found))

    def _check_workers(self) -> None:
        if self.workers is None:
            return
        pair = self.workers if isinstance(self.workers, tuple) else (self.workers, self.workers)
        counts = len(pair) == 2 and all(type(each) is int for each in pair)
        if not counts or not 0 <= pair[0] <= pair[1] or pair[1] < 1:
            raise ValueError(
                f"workers should be a number, or a pair (fewest, most), not {self.workers!r}"
            )


def _is_address(value: object) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None
