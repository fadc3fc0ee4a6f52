"""A device that does everything as late as it may, in the order that hides least.

Streams hold what is enqueued until the device runs; the streams made first run last, so that copies
overtake training wherever nothing makes them wait. Events pass only as the device runs. Memory that
was freed last is given out first, while work that uses it may still be enqueued, as by torch's
caching allocator.
"""

import contextlib
import ctypes
import weakref
from collections import deque

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Stream:
    def __init__(self, device):
        self.work = deque()
        self._device = device
        device.streams.append(self)

    def wait_event(self, event):
        self.work.append(lambda: event.passed)

    def wait_stream(self, other):
        event = Event(self._device)
        event.record(other)
        self.wait_event(event)

    def enqueue(self, call):
        def done():
            call()
            return True

        self.work.append(done)


class Event:
    def __init__(self, device):
        self._device = device
        self.passed = False

    def record(self, stream):
        stream.enqueue(self._pass)

    def _pass(self):
        self.passed = True

    def query(self):
        return self.passed

    def synchronize(self):
        self._device.run()
        assert self.passed


class StrictDevice:
    """Has what ``CudaCopies`` asks of ``torch.cuda``, and memory.

    Attributes:
        training: the stream that is current unless another one is chosen.
    """

    def __init__(self):
        self.streams = []
        self.training = self._current = Stream(self)
        self._free = []

    # ---- torch.cuda's ----

    def Stream(self, device):
        return Stream(self)

    def Event(self):
        return Event(self)

    def current_stream(self, device=None):
        return self._current

    @contextlib.contextmanager
    def stream(self, stream):
        before, self._current = self._current, stream
        try:
            with _Copying(stream):
                yield
        finally:
            self._current = before

    # ---- its memory and its work ----

    def empty(self, nbytes, dtype=torch.uint8, device=None):
        """Memory; what was freed last comes first."""
        fitting = [block for block in self._free if len(block) >= nbytes]
        block = fitting[-1] if fitting else bytearray(nbytes)
        if fitting:
            self._free.remove(block)
        owner = (ctypes.c_char * len(block)).from_buffer(block)
        weakref.finalize(owner, self._free.append, block)
        return torch.frombuffer(owner, dtype=dtype)[:nbytes]

    @property
    def idle(self):
        return not any(stream.work for stream in self.streams)

    def run(self):
        """Does all that was enqueued."""
        while not self.idle:
            for stream in reversed(self.streams):
                done = False
                while stream.work and stream.work[0]():
                    stream.work.popleft()
                    done = True
                if done:
                    break
            else:
                raise AssertionError("streams wait for each other")


class _Copying(TorchDispatchMode):
    """Enqueues copies that are not to be waited for; anything else is an error."""

    def __init__(self, stream):
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function is torch.ops.aten.copy_.default:
            target, source, *rest = arguments
            assert (rest or [named.get("non_blocking")])[0], "a copy that training waits for"
            assert target.is_contiguous() and source.is_contiguous()
            # By address, as a device has it: what is enqueued keeps no memory alive.
            places = target.data_ptr(), source.data_ptr(), source.nbytes
            self._stream.enqueue(lambda: ctypes.memmove(*places))
            return target
        assert function in _VIEWS, f"{function} on a stream of copies"
        return function(*arguments, **(named or {}))


_VIEWS = (torch.ops.aten.slice.Tensor, torch.ops.aten.view.default)
