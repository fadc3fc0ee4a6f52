"""The model of the queue: it makes the native queue's moves, and loses nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.control_blocks import ControlBlock

from fusionloader._native import End, TinyBatchState
from fusionloader.cli.simulator.two_ended import TwoEndedQueue
from fusionloader.scheduler.threshold import Side

WORKERS = 3

sizes = st.lists(st.integers(1, 12), min_size=1, max_size=5)
moves = st.lists(
    st.tuples(
        st.integers(0, WORKERS - 1),
        st.sampled_from(["claim", "claim", "finish", "die"]),
        st.integers(0, 4),
        st.integers(1, 5),
    ),
    max_size=100,
)


def side_of(worker):
    """Worker 0 is the GPU worker."""
    return Side.CPU if worker else Side.GPU


class NativeQueue(ControlBlock):
    """The native queue behind the model's methods; tiny-batches of one sample."""

    def __init__(self, mini_batches):
        super().__init__(WORKERS)
        for sequence, samples in enumerate(mini_batches):
            self.publish(sequence, samples, gpu_rows=1)
        self.workers = [
            self.attach(number, side_of(number) is Side.GPU) for number in range(WORKERS)
        ]
        self.held = {}

    def claim(self, worker, threshold, count):
        end = End.LARGE if side_of(worker) is Side.GPU else End.SMALL
        claim = self.workers[worker].claim(end, threshold, count)
        if claim is None:
            return None
        for tiny in range(claim.first, claim.first + claim.count):
            self.held[worker, claim.sequence, tiny] = claim
        return claim.sequence, claim.first, claim.count

    def finish(self, worker, sequence, tiny):
        claim = self.held[worker, sequence, tiny]
        return self.workers[worker].finish(claim, tiny, TinyBatchState.COMPLETED)


@settings(max_examples=150, deadline=None)
@given(mini_batches=sizes, moves=moves)
def test_the_model_moves_as_the_native_queue_does(mini_batches, moves):
    model, native = TwoEndedQueue(), NativeQueue(mini_batches)
    for tiny_batches in mini_batches:
        model.publish(tiny_batches)
    held = []
    try:
        for worker, move, threshold, count in moves:
            if move == "claim":
                claim = model.claim(worker, side_of(worker), threshold, count)
                ours = claim and (claim.sequence, claim.first, claim.count)
                assert native.claim(worker, threshold, count) == ours
                if claim:
                    held += [(worker, claim.sequence, tiny) for tiny in claim.tiny_batches]
            elif move == "finish" and held:
                task = held.pop(count % len(held))
                assert model.finish(*task) == native.finish(*task)
            elif move == "die":
                lost = native.manager.take_back(worker)
                assert model.take_back(worker) == sorted(
                    (one.sequence, one.tiny_batch) for one in lost
                )
    finally:
        native.close()


@given(mini_batches=sizes, moves=moves)
def test_every_tiny_batch_is_done_exactly_once_under_any_interleaving(mini_batches, moves):
    queue, held, finished = TwoEndedQueue(), [], []
    for tiny_batches in mini_batches:
        queue.publish(tiny_batches)

    def claim(worker, threshold, count):
        found = queue.claim(worker, side_of(worker), threshold, count)
        if found:
            held.extend((worker, found.sequence, tiny) for tiny in found.tiny_batches)
        return found

    def finish(task):
        if queue.finish(*task):
            finished.append(task[1:])

    for worker, move, threshold, count in moves:
        if move == "claim":
            claim(worker, threshold, count)
        elif move == "finish" and held:
            finish(held.pop(count % len(held)))
        elif move == "die":  # what it held it may still try to finish
            queue.take_back(worker)
    for task in held:
        finish(task)
    held.clear()
    while claim(1, 0, 3):
        while held:
            finish(held.pop())
    everything = [(s, tiny) for s, count in enumerate(mini_batches) for tiny in range(count)]
    assert sorted(finished) == everything
    assert all(queue.done(sequence) for sequence in range(len(mini_batches)))


def test_cpu_workers_leave_the_reserve_of_every_mini_batch():
    queue = TwoEndedQueue()
    queue.publish(4)
    queue.publish(4)
    claims = [queue.claim(1, Side.CPU, 3, 1) for _ in range(3)]
    assert [(c.sequence, c.first) for c in claims[:2]] == [(0, 0), (1, 0)]
    assert claims[2] is None
    assert queue.claim(0, Side.GPU, 3, 8).count == 3
