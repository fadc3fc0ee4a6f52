"""Requests: their order, their errors, dynamic batches, and the end."""

import asyncio
import pickle
import threading
import weakref
from concurrent.futures import CancelledError

import pytest
import torch
from PIL import UnidentifiedImageError
from support.encoded_images import expected
from support.images import eval_transform, train_transform
from support.waiting import wait_until
from torchvision import transforms as v1

from fusionloader.addons.inference import BadImage, Preprocessor, PreprocessorClosed


def test_futures_are_answered_in_the_order_of_submission(make, jpegs):
    prepare, answered = make(), []
    futures = [prepare.submit(image) for image in jpegs for _ in range(5)]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: answered.append(number))
    for future in futures:
        future.result()
    wait_until(lambda: len(answered) == len(futures))
    assert answered == sorted(answered)


def test_a_bad_image_fails_its_own_request_alone(make, jpegs):
    prepare = make()
    images = [*jpegs[:5], b"bad", *jpegs[5:10]]
    futures = [prepare.submit(image) for image in images]
    assert isinstance(futures.pop(5).exception(), UnidentifiedImageError)
    wanted = [expected(eval_transform(), image) for image in jpegs[:10]]
    assert all(map(torch.equal, [future.result() for future in futures], wanted))
    assert prepare.stats().failed == 1


def test_a_list_names_the_first_of_its_bad_images(make, jpegs):
    with pytest.raises(BadImage, match="image 3 of the list") as caught:
        make()([*jpegs[:3], b"bad", jpegs[3], b"worse"], keys=range(10, 16))
    assert (caught.value.place, caught.value.key) == (3, 13)
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, BadImage) and isinstance(again, UnidentifiedImageError)
    assert (str(again), again.place, again.key) == (str(caught.value), 3, 13)


def test_a_list_may_be_longer_than_the_queue_and_may_be_empty(make, jpegs):
    prepare = make(max_queued=3)
    wanted = torch.stack([expected(eval_transform(), image) for image in jpegs])
    assert torch.equal(prepare(jpegs), wanted)
    empty = prepare([])
    assert empty.shape == (0, 3, 32, 32) and empty.dtype == torch.float32


def test_a_model_gets_dynamic_batches_and_its_results_go_to_their_requests(make, jpegs):
    sizes = []

    def infer(batch):
        sizes.append(len(batch))
        return batch.sum((1, 2, 3))

    prepare = make(infer=infer, max_batch=8, max_delay="20s")
    futures = [prepare.submit(image) for image in jpegs]
    wanted = [expected(eval_transform(), image).sum() for image in jpegs]
    assert torch.allclose(torch.stack([f.result() for f in futures]), torch.stack(wanted))
    assert sizes == [8] * 5
    stats = prepare.stats()
    assert (stats.batches, stats.mean_batch_size) == (5, 8.0)


def test_a_batch_that_is_not_full_is_closed_by_its_delay(make, jpegs):
    prepare = make(infer=lambda batch: [len(batch)] * len(batch), max_delay="1ms")
    assert prepare.submit(jpegs[0]).result() == 1
    assert torch.equal(prepare(jpegs[:1])[0], expected(eval_transform(), jpegs[0]))


def test_a_model_does_not_get_what_is_bad_or_cancelled(make, jpegs, gate):
    prepare = make(infer=list, max_batch=4, max_delay="20s", num_workers=1)
    waiting = prepare.submit(gate.image)
    gate.wait_until_begun()
    cancelled, bad, good = (prepare.submit(image) for image in (jpegs[0], b"bad", jpegs[1]))
    assert cancelled.cancel()
    gate.open()
    assert isinstance(bad.exception(), BadImage)
    assert torch.equal(good.result(), expected(eval_transform(), jpegs[1]))
    assert waiting.result().shape == good.result().shape
    with pytest.raises(CancelledError):
        cancelled.result()


def test_errors_of_a_model_go_to_all_requests_of_the_batch(make, jpegs):
    def infer(batch):
        raise ZeroDivisionError(f"{len(batch)} images")

    prepare = make(infer=infer, max_batch=3, max_delay="20s")
    futures = [prepare.submit(image) for image in jpegs[:3]]
    assert [str(future.exception()) for future in futures] == ["3 images"] * 3


def test_a_model_that_returns_too_few_results_is_told(make, jpegs):
    prepare = make(infer=lambda batch: batch[:1], max_batch=3, max_delay="20s")
    futures = [prepare.submit(image) for image in jpegs[:3]]
    for future in futures:
        with pytest.raises(ValueError, match="1 results for a batch of 3 images"):
            future.result()


def test_a_model_that_ends_its_thread_fails_its_batch_alone(make, jpegs):
    asked = []

    def infer(batch):
        asked.append(len(batch))
        if len(asked) == 1:
            raise SystemExit("over")
        return list(batch)

    prepare = make(infer=infer, max_batch=1)
    assert isinstance(prepare.submit(jpegs[0]).exception(), SystemExit)
    assert torch.equal(prepare.submit(jpegs[1]).result(), expected(eval_transform(), jpegs[1]))


def test_closing_answers_what_is_queued(make, jpegs, gate):
    prepare = make(num_workers=1)
    futures = [prepare.submit(gate.image), *map(prepare.submit, jpegs[:5])]
    closing = threading.Thread(target=prepare.close)
    closing.start()
    gate.wait_until_begun()
    wait_until(lambda: "closed" in repr(prepare))
    for ask in (prepare.submit, lambda image: prepare([image])):
        with pytest.raises(PreprocessorClosed):
            ask(jpegs[0])
    gate.open()
    wanted = [expected(eval_transform(), image) for image in jpegs[:5]]
    assert all(map(torch.equal, [future.result() for future in futures[1:]], wanted))
    closing.join()
    with pytest.raises(PreprocessorClosed):
        asyncio.run(prepare.asubmit(jpegs[0]))
    prepare.close()


def test_closing_at_once_raises_for_what_is_queued(make, jpegs, gate):
    prepare = make(num_workers=1)
    futures = [prepare.submit(gate.image), *map(prepare.submit, jpegs[:5])]
    gate.wait_until_begun()
    closing = threading.Thread(target=prepare.close, kwargs={"wait": False})
    closing.start()
    errors = {future.exception() for future in futures}
    assert len(errors) == len(futures) and {*map(type, errors)} == {PreprocessorClosed}
    gate.open()
    closing.join()


def test_a_refused_image_is_not_kept(make, jpegs):
    class Encoded(bytearray):
        """Of which a weak reference can be kept."""

    prepare = make()
    prepare.close()
    image = Encoded(jpegs[0])
    kept = weakref.ref(image)
    with pytest.raises(PreprocessorClosed):
        prepare.submit(image)
    del image
    assert kept() is None


def test_a_model_has_its_last_batch_when_it_is_closed(make, jpegs):
    with make(infer=list, max_delay="20s") as prepare:
        future = prepare.submit(jpegs[0])
    assert torch.equal(future.result(timeout=0), expected(eval_transform(), jpegs[0]))


def test_a_request_keeps_its_preprocessor(jpegs):
    future = Preprocessor(eval_transform(), num_workers=1).submit(jpegs[0])
    assert torch.equal(future.result(), expected(eval_transform(), jpegs[0]))


class Unknown:
    def __call__(self, image):
        return image


TENSOR = v1.ToTensor()
WRONG = {
    "no Python": (v1.Compose([v1.Resize((8, 8)), Unknown(), TENSOR]), {}, "not compiled.*Unknown"),
    "no tensor": (v1.Resize((8, 8)), {}, "end in a tensor"),
    "sizes": (v1.Compose([v1.Resize(8), TENSOR]), {}, "differ in size"),
    "no seed": (train_transform(), {}, "Give a seed"),
    "seed": (train_transform(), {"seed": 0.5}, "seed should be"),
    "decode": (eval_transform(), {"decode": "quick"}, "decode should be"),
    "workers": (eval_transform(), {"num_workers": 0}, "num_workers should be"),
    "batch": (eval_transform(), {"max_batch": True}, "max_batch should be"),
    "queue": (eval_transform(), {"max_queued": 10**6}, "max_queued should be"),
    "full": (eval_transform(), {"when_full": "drop"}, "when_full should be"),
    "delay": (eval_transform(), {"max_delay": "2 min"}, "an amount of time"),
    "device": (eval_transform(), {"device": "meta"}, "device should be"),
    "infer": (eval_transform(), {"infer": 5}, "infer should be"),
    "context": (eval_transform(), {"multiprocessing_context": 5}, "multiprocessing_context"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_served_is_refused(name):
    transform, options, message = WRONG[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        Preprocessor(transform, **options)


def test_wrong_arguments_of_a_request_are_told(make, jpegs):
    prepare = make()
    with pytest.raises(TypeError, match="bytes-like object, not str: read the file"):
        prepare.submit("cat.jpg")
    with pytest.raises(TypeError, match="not Image"):
        from PIL import Image

        prepare([jpegs[0], Image.new("RGB", (4, 4))])
    for key in (-1, 2**64, 0.5):
        with pytest.raises(ValueError, match="a?key should be an int between"):
            prepare.submit(jpegs[0], key=key)
    with pytest.raises(ValueError, match="epoch should be"):
        prepare(jpegs[:1], epoch=-1)
    with pytest.raises(ValueError, match="1 images and 2 keys"):
        prepare(jpegs[:1], keys=[1, 2])
    with pytest.raises(TypeError, match="belongs to its process"):
        pickle.dumps(prepare)
    assert prepare.stats().queued == 0


def test_it_says_what_it_does_and_has_done(make, jpegs):
    prepare = make(infer=list, max_batch=4, max_delay="3ms", max_queued=50)
    said = prepare.explain()
    for line in ("ToTensor(): native", "float32 3 x 32 x 32", "up to 4, closed 3 ms", "up to 50"):
        assert line in said
    prepare(jpegs[:10])
    prepare.submit(jpegs[0]).result()
    wait_until(lambda: prepare.stats().queued == 0)
    stats = prepare.stats()
    assert (stats.requests, stats.images, stats.failed) == (2, 11, 0)
    assert stats.read_bytes == sum(map(len, [*jpegs[:10], jpegs[0]]))
    assert 0 < stats.latency_p50 <= stats.latency_p99
    assert stats.as_dict()["workers"][0]["kind"] == "native"
    assert sum(worker.samples for worker in stats.workers) == 11
    assert repr(prepare) == "Preprocessor(num_workers=2, max_batch=4, queued=0)"
