"""The rate of a loader: how many images, in which time, from which epochs."""

import multiprocessing
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lucid.apis import benchmark_loading as module
from lucid.apis.benchmark_loading import Loading, loading_rate
from lucid.datasets.samplers import EpochSampler, SampleKey


class Slow(Dataset):
    """Ten images; reading one takes a quarter of a second of a clock that stands still otherwise."""

    def __init__(self) -> None:
        self.now = 0.0
        self.keys: list[SampleKey] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, key: SampleKey) -> torch.Tensor:
        self.now += 0.25
        self.keys.append(key)
        return torch.zeros(2, 2, 3, dtype=torch.uint8)


def collate(images: list[torch.Tensor]) -> dict[str, Any]:
    return {'inputs': torch.stack(images)}


def nothing() -> None:
    pass


def test_images_over_seconds_in_epochs_that_never_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Slow()
    monkeypatch.setattr(module.time, 'perf_counter', lambda: data.now)
    loader = DataLoader(data, batch_size=4, sampler=EpochSampler(data, seed=0), collate_fn=collate)

    def prepare(batch: dict[str, Any]) -> None:
        data.now += batch['inputs'].shape[0] / 4  # as long as reading it

    found = loading_rate(loader, prepare, nothing, rounds=3, num_batches=5)
    # The last of three batches of an epoch has two images: counting batches would give other rates.
    assert found == Loading(0, 5, [4.0] * 3, [2.0] * 3)
    assert found.to_json()['loaded_median'] == 4.0
    epochs = [key.epoch for key in data.keys]
    assert epochs == sorted(epochs)
    assert {epoch: epochs.count(epoch) for epoch in range(3)} == dict.fromkeys(range(3), 10)
    # Mosaic closes when few epochs remain.
    assert {key.remaining for key in data.keys} == {sys.maxsize}


def test_an_epoch_is_read_first_and_is_in_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Slow()
    # The first epoch is slow, as one that reads files for the first time.
    monkeypatch.setattr(module.time, 'perf_counter', lambda: data.now + 100.0 * min(len(data.keys), 10))
    loader = DataLoader(data, batch_size=4, sampler=EpochSampler(data, seed=0), collate_fn=collate)
    assert loading_rate(loader, lambda _: None, nothing, rounds=2, num_batches=3).loaded == [4.0, 4.0]


def test_the_device_is_waited_for_once_per_round(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Slow()
    monkeypatch.setattr(module.time, 'perf_counter', lambda: data.now)

    def wait() -> None:
        data.now += 1.0

    loader = DataLoader(data, batch_size=2, collate_fn=collate)
    # Four images in one second, and one more of waiting.
    assert loading_rate(loader, lambda _: None, wait, rounds=1, num_batches=2).prepared == [2.0]


class Quick(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> np.ndarray:
        return np.zeros((2, 2, 3), np.uint8)


@pytest.mark.parametrize('lasting', [False, True])
def test_every_worker_gives_as_many_batches_and_none_is_left(lasting: bool) -> None:
    loader = DataLoader(Quick(), batch_size=2, num_workers=2, persistent_workers=lasting, collate_fn=stacked)
    found = loading_rate(loader, lambda _: None, nothing, rounds=1, num_batches=3)
    assert (found.num_workers, found.num_batches) == (2, 4)
    assert found.loaded[0] > 0
    assert not multiprocessing.active_children()


def stacked(images: list[np.ndarray]) -> dict[str, Any]:
    return {'inputs': torch.from_numpy(np.stack(images))}
