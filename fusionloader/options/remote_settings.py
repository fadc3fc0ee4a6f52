"""Settings of workers on other machines: ``Remote``."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from torch import nn

Offload = Literal["balance", "fastflow", "all"]
DataPlace = Literal["auto", "shared", "ship"]

_ADDRESS = re.compile(r"(\[[^\]]+\]|[^\s:\[\]]+):[0-9]{1,5}")


@dataclass(frozen=True)
class Remote:
    """Settings of workers on other machines that prepare a part of a loader's samples.

    Args:
        servers: addresses, as ``"host:port"``, of processes started by
            ``python -m fusionloader worker``. ``None``: Ray starts the workers.
        workers: number of workers that Ray starts, one core each, or a pair (fewest, most). By
            default one for each core of the cluster's other machines. The number is per rank, and
            the ranks of a machine share the workers of all.
        address: address of the Ray cluster, as in ``ray.init()``. By default the running cluster,
            or the one that this process is part of.
        offload: the part of the samples that they prepare. ``"balance"``: those that this machine's
            workers cannot make in time. ``"fastflow"``: a fraction computed from measurements; Um
            et al., "FastFlow" (PVLDB 16(5), 2023). ``"all"``: as many as they can.
        data: ``"shared"``: workers open the dataset's files under the same paths. ``"ship"``: the
            encoded bytes are sent to them. ``"auto"``: ``"shared"`` if a worker has the files.
        token_file: the token file of ``servers``; by default the one made by
            ``python -m fusionloader worker --init``.
        user_code: whether Ray may send the dataset to the workers that it starts, which run its
            Python code if a plan does not make the whole sample. Only without ``servers``.
        join_seconds: seconds within which Ray's cluster has to be joined or started. After that a
            loader goes on without remote workers if no ``address`` was given; otherwise ``iter()``
            raises ``ConnectionError``.
        model: the model that is trained, or a name for it. ``"fastflow"`` stores what it measures
            for each script; with this, for each model of a script. A module is known by the names,
            shapes and types of its parameters, and is not kept.

    Raises:
        ValueError: a value is out of its range, or two of them contradict each other.
    """

    servers: Sequence[str] | None = None
    workers: int | tuple[int, int] | None = None
    address: str | None = None
    offload: Offload = "balance"
    data: DataPlace = "auto"
    token_file: str | None = None
    user_code: bool = False
    join_seconds: float = 30.0
    model: nn.Module | str | None = None

    @classmethod
    def of(cls, wanted: object) -> Remote:
        """Returns the settings for a loader's ``remote``: addresses, ``"auto"`` or a ``Remote``.

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
        if not 0 < self.join_seconds < math.inf:
            raise ValueError(f"join_seconds should be positive, not {self.join_seconds!r}")
        object.__setattr__(self, "model", _name_of(self.model))
        self._check_workers()

    @property
    def cluster_address(self) -> str | None:
        """Address of the Ray cluster that the user has named, here or by ``RAY_ADDRESS``."""
        return self.address or os.environ.get("RAY_ADDRESS")

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


def _name_of(model: nn.Module | str | None) -> str | None:
    if model is None or isinstance(model, str):
        return model
    if not callable(getattr(model, "named_parameters", None)):
        raise ValueError(f"model should be a torch.nn.Module or a name, not {model!r}")
    parameters = [(name, tuple(each.shape), each.dtype) for name, each in model.named_parameters()]
    digest = hashlib.blake2b(repr(parameters).encode(), digest_size=8).hexdigest()
    return f"{type(model).__name__} {digest}"
