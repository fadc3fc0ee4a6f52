"""The head in front of any decoder: order, memory that is used again, and broken rules."""

import contextlib
import random
import threading

import numpy as np
import pytest
import torch
from support import bad_decoders, encoded_images
from support.dali_arrays import tensor_gpu
from support.images import photo

from fusionloader import DecodeCommand, Decoded, FileRefused
from fusionloader.transforms.executors.decoders.decoder_head import (
    BufferPool,
    DecoderFailed,
    DecoderHead,
)
from fusionloader.transforms.executors.decoders.head_steps import HeadStep

STEP = HeadStep((3, 2, 40, 30), 12, 16, hflip=True)


def encoded(width=60, height=50, seed=1):
    return encoded_images.encoded(photo(np.random.default_rng(seed), width, height))


def expected(data, step):
    size = step.window, step.height, step.width
    command = DecodeCommand(0, data, *size, step.filter, step.hflip, step.vflip, lambda: None)
    return bad_decoders.pixels(command)


class OutOfOrder(bad_decoders.PillowDecoder):
    """Finishes at random, some at a time, from threads; keeps what it was given."""

    def start(self, device, capacity):
        super().start(device, capacity)
        self.order, self.unfinished, self.random = [], [], random.Random(5)
        self.addresses, self.lock = [], threading.Lock()

    def submit(self, commands):
        self.order += [command.ticket for command in commands]
        self.unfinished += commands
        assert len(self.unfinished) <= self.capacity

    def finished(self, seconds):
        count = self.random.randrange(len(self.unfinished) + 1)
        self.random.shuffle(self.unfinished)
        chosen, self.unfinished = self.unfinished[:count], self.unfinished[count:]
        found = []

        def decode(command):
            with self.lock:
                found.append(self.decoded(command))
                self.addresses.append(command.buffer().data_ptr())

        threads = [threading.Thread(target=decode, args=(command,)) for command in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


def test_results_come_in_the_order_of_the_commands_whatever_the_decoders():
    decoder = OutOfOrder()
    head = DecoderHead(decoder, None, 12, 60)
    files = [encoded(seed=seed) for seed in range(6)]
    first = head.begin(files, [STEP] * 6)
    second = head.begin(files[::-1], [STEP] * 6)  # while the first is being decoded
    for group, wanted in ((first, files), (second, files[::-1])):
        for data, found in zip(wanted, head.finish(group), strict=True):
            assert np.array_equal(found.image, expected(data, STEP))
    assert decoder.order == list(range(12))


def test_memory_is_used_again_when_a_group_is_released_and_not_before():
    decoder = OutOfOrder()
    head = DecoderHead(decoder, None, 4, 60)
    files = [encoded()] * 4
    for _ in range(5):
        group = head.begin(files, [STEP] * 4)
        images = head.finish(group)
        assert len({image.image.ctypes.data for image in images}) == 4
        head.release(group)
    assert len(set(decoder.addresses)) == 4
    held = head.begin(files, [STEP] * 4)
    before = [found.image.copy() for found in head.finish(held)]
    images = [command.buffer().numpy() for command in held]
    other = head.begin([encoded(seed=9)] * 4, [STEP] * 4)
    head.finish(other)
    for image, kept in zip(images, before, strict=True):
        assert np.array_equal(image, kept)


def test_the_pool_keeps_the_largest_blocks_and_finds_those_that_fit():
    pool = BufferPool(None, 2)
    small, large = pool.take(8, 8, 3), pool.take(300, 300, 3)
    assert small[0].shape == (8, 8, 3) and small[0].dtype == torch.uint8
    pool.give_back(large[1])
    pool.give_back(small[1])
    assert pool.take(200, 200, 3)[1] is large[1]
    middle, larger = pool.take(250, 250, 3), pool.take(600, 600, 3)
    for block in (larger, middle, large):  # the small one is given up
        pool.give_back(block[1])
    assert {id(pool.take(9, 9, 3)[1]), id(pool.take(9, 9, 3)[1])} == {id(larger[1]), id(large[1])}


def test_a_thread_of_a_decoder_gets_memory_of_the_stream_that_the_pool_was_made_on(monkeypatch):
    current, used = threading.local(), []

    @contextlib.contextmanager
    def stream(of_the_pool):
        current.stream = of_the_pool
        yield
        del current.stream

    def empty(size, dtype, device):
        used.append((getattr(current, "stream", "default"), device))
        return torch.zeros(size, dtype=dtype)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"of the head on {device}")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch, "empty", empty)
    pool = BufferPool(1, 2)
    thread = threading.Thread(target=pool.take, args=(8, 8, 3))
    thread.start()
    thread.join()
    assert used == [("of the head on 1", "cuda:1")]


def test_reasons_of_refused_images_are_the_decoders_words():
    head = DecoderHead(bad_decoders.Refuses(), None, 4, 60)
    results = head.finish(head.begin([encoded()] * 4, [STEP] * 4))
    assert [result.reason for result in results] == ["", "odd", "", "odd"]
    assert [result.image is None for result in results] == [False, True, False, True]


def test_a_reason_that_is_the_files_stays_one():
    class Picky(bad_decoders.PillowDecoder):
        def decoded(self, command):
            return Decoded(command.ticket, None, FileRefused("12 bits" if command.ticket else ""))

    head = DecoderHead(Picky(), None, 4, 60)
    results = head.finish(head.begin([encoded()] * 2, [STEP] * 2))
    assert [result.reason for result in results] == ["the decoder gave no reason", "12 bits"]
    assert isinstance(results[1].reason, FileRefused)


BROKEN = {
    "Raises": r"Raises raised OSError in submit: the card has burnt \(.*bad_decoders.py:\d+\)",
    "RaisesWhenAsked": "raised ValueError in finished: lost its queue",
    "WrongShape": r"uint8 of the shape \(11, 16, 3\) instead of uint8 of the shape \(12, 16, 3\)",
    "WrongType": r"float32 of the shape \(12, 16, 3\) instead of uint8",
    "NotContiguous": r"strides \(.*\), which is not contiguous",
    "NoImage": "a str, which has no __array_interface__",
    "Twice": r"finished the ticket 7 twice",
    "NeverGiven": "was never given it",
    "NoResult": "finished a tuple, which is no Decoded",
    "NeverAnswers": "has finished nothing for 0.2 s, with 4 images to be decoded",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named_with_what_to_do(name, tmp_path):
    decoder = getattr(bad_decoders, name)(tmp_path / "flag")
    head = DecoderHead(decoder, None, 4, 0.2)
    head.release(good := head.begin([encoded()] * 4, [STEP] * 4))
    assert all(found.image is not None for found in head.finish(good))
    (tmp_path / "flag").touch()
    with pytest.raises(DecoderFailed, match=BROKEN[name]) as failed:
        head.finish(head.begin([encoded()] * 4, [STEP] * 4))
    assert "choose another one: GpuWorker(decoder=...)" in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize("error", ["CUDA out of memory", "CUDA error: unspecified launch failure"])
def test_a_shortage_of_memory_or_a_lost_device_is_raised_unchanged(error):
    class Fails(bad_decoders.PillowDecoder):
        def submit(self, commands):
            raise RuntimeError(error)

    head = DecoderHead(Fails(), None, 4, 60)
    with pytest.raises(RuntimeError, match=f"^{error}"):
        head.begin([encoded()], [STEP])


def test_images_of_the_decoders_own_memory_are_taken_as_they_are():
    image = np.zeros((12, 16, 3), np.uint8)

    class OwnMemory(bad_decoders.PillowDecoder):
        def decoded(self, command):
            return Decoded(command.ticket, image)

    head = DecoderHead(OwnMemory(), None, 4, 60)
    (found,) = head.finish(head.begin([encoded()], [STEP]))
    assert found.image is image


def test_an_image_that_dali_has_on_a_gpu_is_taken_and_one_of_another_size_is_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)

    class OnGpu(bad_decoders.PillowDecoder):
        def start(self, device, capacity):
            super().start(None, capacity)

        def decoded(self, command):
            return Decoded(command.ticket, tensor_gpu(4096, (12, 16, 3)))

    head = DecoderHead(OnGpu(), 0, 4, 60)
    (found,) = head.finish(head.begin([encoded()], [STEP]))
    assert found.image.__cuda_array_interface__["data"][0] == 4096
    with pytest.raises(DecoderFailed, match=r"\(12, 16, 3\) instead of uint8 of the shape \(9, 9"):
        head.finish(head.begin([encoded()], [HeadStep(STEP.window, 9, 9)]))


def test_a_late_pixel_of_a_failed_submit_lands_in_nobody_elses_memory():
    class Late(bad_decoders.PillowDecoder):
        def submit(self, commands):
            self.taken = [command.buffer() for command in commands]
            if self.capacity:
                self.capacity = 0
                self.late = self.taken
                raise OSError("too late")
            super().submit(commands)

    decoder = Late()
    head = DecoderHead(decoder, None, 2, 60)
    with pytest.raises(DecoderFailed):
        head.begin([encoded()] * 2, [STEP] * 2)
    group = head.begin([encoded()] * 2, [STEP] * 2)
    late = {buffer.data_ptr() for buffer in decoder.late}
    assert late.isdisjoint(command.buffer().data_ptr() for command in group)
