"""How a loader is served, and why: decided once for each iterator, and returned as one value.

The iterator is made by it, and ``explain()``, ``repr`` and the checks of arguments read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch.utils.data import Subset
from torch.utils.data import _utils as torch_utils
from torch.utils.data.dataloader import _DatasetKind

from fusionloader.data.sources.datasets import Compiled, compile_dataset
from fusionloader.data.sources.fingerprint import Fingerprint
from fusionloader.data.sources.tables import Tables
from fusionloader.data.sources.tensors import row_bytes
from fusionloader.gpu import eligibility
from fusionloader.gpu.eligibility import GpuChoice
from fusionloader.options.aliases import AnyDataset
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.collate import is_of_collate
from fusionloader.transforms.executors.fetchers import has_state

_MOST_GATHERED_BYTES = 1 << 20  # a third of a millisecond; to hand a batch over takes one
_UNKNOWN_SIZE = 1024  # of a batch sampler's batches

Way = Literal[
    "in process",  # the training process makes samples
    "torch's loop",  # and so it does, by torch's own iterator
    "native workers",  # write samples of a plan into batches
    "Python workers",  # write samples into batches
    "whole batches",  # are made by Python workers, any of them
    "own passes",  # of Python workers, each of which makes whole batches of its own part
    "gathered",  # by the training process, from tensors in memory
]


@dataclass(slots=True)
class Learned:
    """What earlier iterators of a loader have found out about its dataset.

    Attributes:
        no_layout: why samples cannot be written row by row, and of which dataset and collation.
        changed_by_init: the dataset and the ``worker_init_fn`` that changes it in workers.
        tables: the dataset in shared memory.
    """

    no_layout: tuple[str, Fingerprint] | None = None
    changed_by_init: Fingerprint | None = None
    tables: Tables = field(default_factory=Tables)


@dataclass(frozen=True, slots=True)
class Route:
    """How a loader is served.

    Attributes:
        way: who makes what.
        why_whole: why batches are made whole, and not sample by sample; empty where they are not.
        compiled: what was compiled; ``None`` where nothing was looked at.
        why_python: why a plan that is the whole way of a sample runs in Python workers.
        gpu: the GPU worker, or why there is none.
    """

    way: Way
    why_whole: str
    compiled: Compiled | None
    why_python: str
    gpu: GpuChoice

    @property
    def plan(self) -> Compiled | None:
        """What was compiled, if there is a plan."""
        return None if self.compiled is None or self.compiled.plan is None else self.compiled

    @property
    def is_native(self) -> bool:
        """Whether workers run no Python for a sample."""
        return self.way == "native workers"


def find_route(options: LoaderOptions, learned: Learned) -> Route:
    """Returns how a loader with these options is served.

    Raises:
        ValueError: an explicit ``GpuWorker`` that cannot be, whatever the dataset.
        ImportError: an explicit ``GpuWorker`` without a package that it needs.
    """
    own, compiled = why_own_passes(options), None
    why_whole = own or _why_not_looked_at(options)
    if not why_whole and _gathers(options):
        return Route("gathered", "", None, "", eligibility.choose(options, None))
    if not why_whole:
        compiled = compile_dataset(options.dataset, options.decode, options.strict)
        why_whole = _why_no_layout(options, learned)
        if not why_whole and compiled.plan is None:
            why_whole = why_lists(options.dataset)
    why_python = ""
    if compiled is not None and not why_whole and options.num_workers > 0:
        why_python = _why_python(options, compiled, learned)
    way = _way(options, compiled, why_whole, why_python, own)
    overruled = bool(why_whole or (why_python and compiled is not None and compiled.complete))
    gpu = eligibility.choose(options, None if overruled else compiled)
    return Route(way, why_whole, compiled, why_python, gpu)


def _gathers(options: LoaderOptions) -> bool:
    """Whether mini-batches are gathered by the training process, whatever ``num_workers`` is.

    Workers make large ones, while training computes, and where the user has asked for workers.
    """
    others = options.worker_init_fn, options.pool, options.remote, options.share, options.device
    if any(each is not None for each in others):
        return False
    nbytes = row_bytes(options.dataset)
    if nbytes is None or options.num_workers == 0:
        return nbytes is not None
    return nbytes * (options.batch_size or _UNKNOWN_SIZE) <= _MOST_GATHERED_BYTES


def _way(
    options: LoaderOptions, compiled: Compiled | None, why_whole: str, why_python: str, own: str
) -> Way:
    by_user = bool(why_whole) or compiled is None or compiled.plan is None
    if options.num_workers == 0:
        return "torch's loop" if own or (by_user and options.on_error == "raise") else "in process"
    if why_whole:
        return "own passes" if own else "whole batches"
    return "Python workers" if why_python else "native workers"


def samples_of(options: LoaderOptions) -> Fingerprint:
    """Returns what decides on the layout of samples: the dataset, and how they are collated."""
    return Fingerprint(options.dataset, torch_utils.collate.default_collate_fn_map)


def init_of(options: LoaderOptions) -> Fingerprint:
    """Returns what decides on how ``worker_init_fn`` changes the dataset."""
    return Fingerprint(options.dataset, [options.worker_init_fn])


def why_own_passes(options: LoaderOptions) -> str:
    """Returns why each worker goes through the dataset on its own; empty where all share it."""
    if options.dataset_kind == _DatasetKind.Iterable:
        return "an IterableDataset has no indices"
    if has_state(options.dataset):
        return "a dataset with a state_dict() has a state in every worker"
    return ""


def why_lists(dataset: AnyDataset) -> str:
    """Returns why user code makes lists of samples; empty where it makes them one by one."""
    while type(dataset) is Subset:  # whose __getitems__ is for that of the dataset within
        dataset = dataset.dataset
    if getattr(dataset, "__getitems__", None):
        return f"__getitems__ of {type(dataset).__name__} makes whole mini-batches"
    return ""


def _why_not_looked_at(options: LoaderOptions) -> str:
    if not options.auto_collation:
        return "batch_size=None yields samples, not batches"
    if not is_of_collate(options.collate_fn, "default_collate"):
        return "a custom collate_fn sees whole mini-batches"
    return ""


def _why_no_layout(options: LoaderOptions, learned: Learned) -> str:
    if learned.no_layout is None:
        return ""
    why, samples = learned.no_layout
    return why if samples == samples_of(options) else ""


def _why_python(options: LoaderOptions, compiled: Compiled, learned: Learned) -> str:
    if why := learned.tables.why_none(options.dataset, compiled):
        return why
    changed = learned.changed_by_init
    if changed is not None and changed == init_of(options):
        return "worker_init_fn changes the dataset in workers"
    return ""
