"""Workers that mark a tiny-batch as failed, and whose reports about it do not arrive."""

import torch
from torch.utils.data import Dataset

from fusionloader import FusionLoader
from fusionloader.workers import messages

RAISES = 9


class Silent(Dataset):
    """One sample raises, and the worker does not send the first ``lost`` reports about it."""

    def __init__(self, lost):
        self.lost = lost

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == RAISES:
            self.lost -= 1
            if self.lost >= 0:
                send = messages.send

                def drop(fd, message):
                    messages.send = send

                messages.send = drop
            raise LookupError("no such sample")
        return torch.tensor(index)


def epoch(lost):
    loader = FusionLoader(Silent(lost), 4, num_workers=1, multiprocessing_context="fork")
    delivered, errors, iterator = [], [], iter(loader)
    for _ in range(7):
        try:
            delivered.append(next(iterator).tolist())
        except StopIteration:
            break
        except (LookupError, RuntimeError) as error:
            errors.append(error)
    loader.close()
    return delivered, errors


def test_a_tiny_batch_whose_report_is_lost_is_made_again():
    delivered, (error,) = epoch(lost=2)
    assert type(error) is LookupError
    assert "no such sample" in str(error)
    assert delivered == [[n, n + 1, n + 2, n + 3] for n in range(0, 24, 4) if n != 8]


def test_a_tiny_batch_whose_reports_are_always_lost_is_named():
    delivered, errors = epoch(lost=10**6)
    assert {str(error) for error in errors} == {str(errors[0])}
    assert str(errors[0]).startswith(
        "a worker has failed at tiny-batch 0 of mini-batch 2 (index 8 and others) without a report"
    )
    assert delivered == [[0, 1, 2, 3], [4, 5, 6, 7]]
