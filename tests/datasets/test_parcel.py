"""Batches between two processes."""

import multiprocessing
import pickle
from collections import Counter
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

from lucid.datasets import parcel
from lucid.datasets.parcel import SMALL, Parcel
from lucid.structures import PackedTargets
from lucid.structures.pictures import PictureBatch, Slot


def batch():
    pictures = PictureBatch(
        size=(2, 3),
        passes=(),
        slots=(Slot(0, (2, 3), 'kept'),),
        first_slots=(0, 1),
        slot_sizes_S2=torch.tensor([[2, 3]]),
        content_D=torch.arange(SMALL + 1).to(torch.uint8),
        keys=(0,),
        counts=Counter(jpeg=1),
    )
    targets = PackedTargets(
        boxes_N4=torch.rand(0, 4),
        labels_N=torch.zeros(0, dtype=torch.int64),
        image_N=torch.zeros(0, dtype=torch.int64),
        slot_N=torch.zeros(0, dtype=torch.int64),
        counts=[0],
        masks_NHW=torch.ones(2, 3, 3, dtype=torch.bool).transpose(0, 1),
    )
    return {'inputs': pictures, 'targets': targets, 'metas': [{'file': 'a.jpg'}]}


def check(received, sent):
    assert received.keys() == sent.keys()
    assert received['metas'] == sent['metas']
    assert type(received['targets']) is PackedTargets
    for one, other in zip(received['targets'], sent['targets'], strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert torch.equal(received['inputs'].content_D, sent['inputs'].content_D)
    assert received['inputs'].counts == sent['inputs'].counts
    received['targets'].masks_NHW.zero_()  # memory of one's own


def test_what_arrives_is_the_batch_itself_equal_in_all_parts():
    sent = batch()
    context = multiprocessing.get_context('fork')
    queue, done = context.Queue(), context.Event()
    child = context.Process(target=lambda: (queue.put(Parcel(sent)), done.wait(20)))
    child.start()
    check(queue.get(timeout=20), sent)
    done.set()
    child.join()


@pytest.mark.parametrize('limit', [SMALL, 0])
def test_only_large_tensors_are_shared_as_files(monkeypatch, limit):
    monkeypatch.setattr(parcel, 'SMALL', limit)
    shared = []
    monkeypatch.setattr(torch.UntypedStorage, '_share_fd_cpu_', lambda storage: shared.append(storage) or (0, 0))
    monkeypatch.setattr('multiprocessing.reduction.DupFd', lambda fd: fd)
    ForkingPickler.dumps(Parcel(batch()))
    # Control: without the limit the targets and the sizes are shared too; tensors without elements have no file.
    assert len(shared) == (1 if limit else 3)


def test_one_that_stays_in_its_process_is_a_copy():
    sent = batch()
    check(pickle.loads(ForkingPickler.dumps(Parcel(sent))), sent)
