"""Decides how a loader is served, and why, once for each iterator.

The iterator is made according to this route. ``explain()``, ``repr`` and the checks of arguments
read it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch.utils.data import _utils as torch_utils
from torch.utils.data.dataloader import _DatasetKind

from fusionloader.data.sources.datasets import Compiled, compile_dataset
from fusionloader.data.sources.fingerprint import Fingerprint
from fusionloader.data.sources.nesting import sample_files
from fusionloader.data.sources.tables import Tables
from fusionloader.data.sources.tensors import row_bytes
from fusionloader.gpu import eligibility
from fusionloader.gpu.eligibility import GpuChoice
from fusionloader.options.aliases import AnyDataset
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.collate import is_of_collate
from fusionloader.transforms.executors.fetchers import find_list_maker, has_state

# Gathering 1 MiB takes a third of a millisecond; a worker's batch takes a whole one to hand over.
_MOST_GATHERED_BYTES = 1 << 20
_UNKNOWN_SIZE = 1024  # samples assumed in a batch sampler's batches

SampleFiles = Callable[[Any], Hashable]
"""Returns the file of a sample, from its index."""

Way = Literal[
    "in process",  # the training process makes samples
    "torch's loop",  # the training process makes batches, in torch's own iterator
    "native workers",  # workers run the plan, and write samples into batches
    "Python workers",  # workers run Python, and write samples into batches
    "whole batches",  # Python workers make whole batches; any worker makes any batch
    "own passes",  # Python workers iterate over the dataset on their own, and make whole batches
    "gathered",  # the training process gathers batches from tensors in memory
]


@dataclass(slots=True)
class Learned:
    """Findings of a loader's earlier iterators about its dataset.

    Attributes:
        no_layout: why samples cannot be written row by row, and for which dataset and collation.
        changed_by_init: the dataset and the ``worker_init_fn`` that changes it in workers.
        tables: the dataset's tables in shared memory.
    """

    no_layout: tuple[str, Fingerprint] | None = None
    changed_by_init: Fingerprint | None = None
    tables: Tables = field(default_factory=Tables)


@dataclass(frozen=True, slots=True)
class Route:
    """How a loader is served.

    Attributes:
        way: which processes make samples or batches.
        why_whole: why batches are made whole, and not sample by sample; ``""`` if they are not.
        compiled: the compiled dataset; ``None`` if the compiler was not tried.
        why_python: why a plan that makes the whole sample runs in Python workers; ``""`` if it
            does not.
        gpu: the GPU worker, or the reason why there is none.
    """

    way: Way
    why_whole: str
    compiled: Compiled | None
    why_python: str
    gpu: GpuChoice

    @property
    def plan(self) -> Compiled | None:
        """The compiled dataset; ``None`` if it has no plan."""
        return None if self.compiled is None or self.compiled.plan is None else self.compiled

    @property
    def is_native(self) -> bool:
        """Whether workers run no Python for a sample."""
        return self.way == "native workers"


def find_route(options: LoaderOptions, learned: Learned) -> Route:
    """Returns the route of a loader with these options.

    Raises:
        ValueError: an explicit ``GpuWorker`` is impossible with any dataset.
        ImportError: a package that an explicit ``GpuWorker`` needs is not installed.
    """
    own, compiled = why_own_passes(options), None
    why_whole = own or _why_not_by_sample(options)
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
    if options.share is not None and way == "Python workers":
        way, why_whole = "whole batches", "jobs that share user code hand on whole mini-batches"
    overruled = bool(why_whole or (why_python and compiled is not None and compiled.complete))
    gpu = eligibility.choose(options, None if overruled else compiled)
    return Route(way, why_whole, compiled, why_python, gpu)


def find_sample_files(options: LoaderOptions, route: Route) -> SampleFiles | str:
    """Returns what names the files of samples, or why workers do not keep to theirs.

    That is ``""`` if the dataset does not name them.
    """
    files = sample_files(options.dataset)
    if files is None or options.num_workers == 0:
        return ""
    if route.why_whole:
        return "batches are made whole"
    if route.plan is not None:
        return "a plan makes the samples"
    if options.num_workers == 1:
        return "there is one worker"
    if options.remote is not None and options.remote.user_code:
        return "remote workers make them, too"
    return files


def _gathers(options: LoaderOptions) -> bool:
    """Whether the training process gathers mini-batches from tensors in memory.

    Small ones are gathered there even with ``num_workers > 0``, unless an option needs workers.
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


def layout_fingerprint(options: LoaderOptions) -> Fingerprint:
    """Returns a fingerprint of what the layout of samples depends on: dataset and collation."""
    return Fingerprint(options.dataset, torch_utils.collate.default_collate_fn_map)


def init_fingerprint(options: LoaderOptions) -> Fingerprint:
    """Returns a fingerprint of the dataset and the ``worker_init_fn`` that may change it."""
    return Fingerprint(options.dataset, [options.worker_init_fn])


def why_own_passes(options: LoaderOptions) -> str:
    """Returns why each worker iterates over the dataset on its own; ``""`` if it does not."""
    if options.dataset_kind == _DatasetKind.Iterable:
        return "an IterableDataset has no indices"
    if has_state(options.dataset):
        return "a dataset with a state_dict() has a state in every worker"
    return ""


def why_lists(dataset: AnyDataset) -> str:
    """Returns why user code makes lists of samples; ``""`` if it makes them one by one."""
    maker = find_list_maker(dataset)
    if maker is None:
        return ""
    return f"__getitems__ of {type(maker).__name__} makes whole mini-batches"


def _why_not_by_sample(options: LoaderOptions) -> str:
    if not options.auto_collation:
        return "batch_size=None yields samples, not batches"
    if not is_of_collate(options.collate_fn, "default_collate"):
        return "a custom collate_fn sees whole mini-batches"
    return ""


def _why_no_layout(options: LoaderOptions, learned: Learned) -> str:
    if learned.no_layout is None:
        return ""
    why, samples = learned.no_layout
    return why if samples == layout_fingerprint(options) else ""


def _why_python(options: LoaderOptions, compiled: Compiled, learned: Learned) -> str:
    if why := learned.tables.why_none(compiled):
        return why
    changed = learned.changed_by_init
    if changed is not None and changed == init_fingerprint(options):
        return "worker_init_fn changes the dataset in workers"
    return ""
