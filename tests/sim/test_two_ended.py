"""The model of the queue makes the moves of the native queue, whose properties are tested."""

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
        st.sampled_from(["claim", "claim", "finish"]),
        st.integers(0, 4),
        st.integers(1, 5),
    ),
    max_size=100,
)
# Worker 1 claims all that is left, and all that is held is finished.
TO_THE_END = [(1, move, 0, 5) for _ in range(60) for move in ("claim", *["finish"] * 5)]


def side_of(worker):
    """Worker 0 is the GPU worker."""
    return Side.CPU if worker else Side.GPU


def place_of(claim):
    return claim and (claim.sequence, claim.first, claim.count)


class NativeQueue(ControlBlock):
    """The native queue behind the model's methods; tiny-batches of one sample."""

    def __init__(self, mini_batches):
        super().__init__(WORKERS, gpu=0)
        for sequence, samples in enumerate(mini_batches):
            self.publish(sequence, samples)

    def claim(self, worker, threshold, count):
        end = End.LARGE if side_of(worker) is Side.GPU else End.SMALL
        return self.workers[worker].claim(end, threshold, count)

    def finish(self, worker, claim):
        for tiny in range(claim.first, claim.first + claim.count):
            assert self.workers[worker].finish(claim, tiny, TinyBatchState.COMPLETED)


@settings(max_examples=150, deadline=None)
@given(mini_batches=sizes, moves=moves)
def test_the_model_moves_as_the_native_queue_does(mini_batches, moves):
    model, native = TwoEndedQueue(), NativeQueue(mini_batches)
    for tiny_batches in mini_batches:
        model.publish(tiny_batches)
    held = []
    try:
        for worker, move, threshold, count in moves + TO_THE_END:
            if move == "claim":
                ours = model.claim(side_of(worker), threshold, count)
                theirs = native.claim(worker, threshold, count)
                assert place_of(ours) == place_of(theirs)
                if ours:
                    held.append((worker, ours, theirs))
            elif held:
                worker, ours, theirs = held.pop(count % len(held))
                model.finish(ours)
                native.finish(worker, theirs)
        for sequence in range(len(mini_batches)):
            assert model.done(sequence) and native.status(sequence).done
    finally:
        native.close()
