"""Training with workers that go on over the ends of epochs."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from lucid.datasets import EpochSampler, SampleKey
from lucid.engine import checkpoint as files
from lucid.engine.hooks import CheckpointHook, EarlyStoppingHook
from lucid.engine.loops import Stopped

Toy = Callable[..., Runner]
SCORE = 'toy/score'


class Noted(Dataset):
    """Ten rows; training's keys are noted where all processes see them, and one fails."""

    metainfo = {'classes': ('a', 'b')}
    classes = ('a', 'b')

    def __init__(self, *, fail_at: tuple[int, int] | None = None) -> None:
        self.fail_at = fail_at
        self.asked = torch.zeros(20, 10, dtype=torch.int64).share_memory_()
        self.begun = [multiprocessing.Event() for _ in range(20)]

    def __len__(self) -> int:
        return 10

    def __getitem__(self, key: Any) -> int:
        if isinstance(key, SampleKey):
            self.asked[key.epoch, key.index] += 1
            self.begun[key.epoch].set()
            if (key.epoch, key.index) == self.fail_at:
                raise ArithmeticError(f'bad image {key.index}')
        return getattr(key, 'index', key)


class Trace(Hook):
    """Names of events, the batches that came, and what ``ask`` says at a place."""

    def __init__(self, *, stop_at: int | None = None, fail_at: int | None = None, **ask: Callable[[], bool]) -> None:
        self.stop_at, self.fail_at, self.ask = stop_at, fail_at, ask
        self.answers: dict[str, bool] = {}
        self.events: list[str] = []
        self.batches: list[tuple[int, int, list[str]]] = []
        self.workers: list[Any] = []

    def _note(self, event: str) -> None:
        self.events.append(event)
        if event in self.ask:
            self.answers[event] = self.ask[event]()

    def before_train(self, runner: Runner) -> None:
        self.others = set(multiprocessing.active_children())

    def before_train_epoch(self, runner: Runner) -> None:
        runner.train_dataloader.sampler.set_epoch(runner.epoch)  # as mmengine's DistSamplerSeedHook
        self._note(f'epoch_{runner.epoch}')

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.batches.append((runner.epoch, batch_idx, [meta['file'] for meta in data_batch['metas']]))
        self.workers = list(set(multiprocessing.active_children()) - self.others)
        self._note(f'batch_{runner.iter}')
        if runner.iter == self.fail_at:
            raise ArithmeticError
        if runner.iter == self.stop_at:
            runner.train_loop.request_stop()

    def after_val_epoch(self, runner: Runner, metrics: Any = None) -> None:
        self._note(f'validation_{runner.epoch}')


def trained(make: Toy, trace: Trace | None = None, **options: Any) -> Trace:
    trace = trace or Trace()
    make([trace], **options).train()
    return trace


@pytest.mark.parametrize('workers', [1, 2])
def test_the_number_of_workers_changes_no_batch_of_any_epoch(line_runner: Toy, workers: int) -> None:
    alone = trained(line_runner, epochs=3)
    assert [batch[:2] for batch in alone.batches] == [(epoch, batch) for epoch in range(3) for batch in range(5)]
    assert trained(line_runner, epochs=3, workers=workers).batches == alone.batches
    assert trained(line_runner, epochs=3, workers=workers, lasting=False).batches == alone.batches


def test_the_next_epoch_is_asked_of_the_workers_before_this_one_ends(line_runner: Toy) -> None:
    rows = Noted()
    trace = Trace(batch_4=lambda: rows.begun[1].wait(timeout=60))
    assert trained(line_runner, trace, rows=rows, workers=1).answers == {'batch_4': True}


def test_it_is_made_during_a_validation_and_no_more_than_is_read_ahead(line_runner: Toy) -> None:
    rows = Noted()
    trace = Trace(validation_1=lambda: rows.begun[1].wait(timeout=60) and int(rows.asked[1:].sum()) <= 2 * 2)
    trained(line_runner, trace, rows=rows, workers=1, scores=[0.5] * 2)  # two batches of two images ahead
    assert trace.answers == {'validation_1': True}


@pytest.mark.parametrize('options', [{}, {'workers': 1, 'lasting': False}])
def test_control_without_workers_that_last_an_epoch_begins_when_it_is_its_turn(
    line_runner: Toy, options: dict[str, Any]
) -> None:
    rows = Noted()
    trace = Trace(**dict.fromkeys(('batch_4', 'validation_1', 'epoch_1', 'batch_5'), rows.begun[1].is_set))
    trained(line_runner, trace, rows=rows, scores=[0.5] * 2, **options)
    assert trace.answers == {'batch_4': False, 'validation_1': False, 'epoch_1': False, 'batch_5': True}


def test_a_bad_image_of_the_next_epoch_spoils_neither_checkpoint_nor_validation(
    line_runner: Toy, tmp_path: Path
) -> None:
    sampler = EpochSampler(range(10), seed=0)
    sampler.set_epoch(1)
    rows = Noted(fail_at=(1, next(iter(sampler)).index))
    trace, saver = Trace(validation_1=lambda: rows.begun[1].wait(timeout=60)), CheckpointHook(save_best=SCORE)
    with pytest.raises(ArithmeticError, match='bad image'):
        line_runner([trace, saver], rows=rows, workers=1, scores=[0.5] * 2).train()
    assert trace.answers == {'validation_1': True}  # it was met while this epoch was validated
    assert trace.events[-1] == 'epoch_1'
    meta = files.load(tmp_path / 'last.pth')['meta']
    assert (meta['epoch'], meta['iter'], meta['validation_pending'], meta['best_score']) == (1, 5, False, 0.5)
    # Control: in its own epoch it leaves no validation and no checkpoint.
    sampler.set_epoch(0)
    rows = Noted(fail_at=(0, list(sampler)[-1].index))
    trace = Trace()
    with pytest.raises(ArithmeticError, match='bad image'):
        line_runner([trace, CheckpointHook(save_best=SCORE)], rows=rows, workers=1, scores=[0.5] * 2).train()
    assert [len(trace.batches), trace.events[-1]] == [4, 'batch_3']


def test_at_the_end_nothing_more_was_read_and_no_worker_is_left(line_runner: Toy) -> None:
    rows = Noted()
    trace = trained(line_runner, rows=rows, epochs=3, workers=2, scores=[0.5] * 3)
    assert rows.asked.sum(1).tolist() == [10] * 3 + [0] * 17
    assert len(trace.workers) == 2  # control: there were some
    assert not any(worker.is_alive() for worker in trace.workers)


def test_early_stopping_ends_workers_that_are_an_epoch_ahead(line_runner: Toy) -> None:
    rows = Noted()
    trace = Trace(validation_2=lambda: rows.begun[2].wait(timeout=60))
    saver, patience = CheckpointHook(save_best=SCORE), EarlyStoppingHook(patience=1)
    runner = line_runner([trace, saver, patience], rows=rows, epochs=9, workers=1, scores=(0.5, 0.4))
    runner.train()
    assert runner.epoch == 2
    assert trace.answers == {'validation_2': True}
    assert not any(worker.is_alive() for worker in trace.workers)
    assert int(rows.asked[2:].sum()) <= 4


def test_a_stop_and_a_failure_end_workers_and_a_resumed_run_skips_no_batch(line_runner: Toy, tmp_path: Path) -> None:
    """Two batches more than the checkpoint has were made, and nobody used them."""
    whole = trained(line_runner, epochs=3)
    for stop_at in (2, 4, 6):  # in an epoch, at its end, in the next one
        folder = tmp_path / str(stop_at)
        rows = Noted()
        first, second = Trace(stop_at=stop_at), Trace()
        with pytest.raises(Stopped):
            line_runner(
                [first, CheckpointHook(save_best=None)], rows=rows, epochs=3, workers=1, work_dir=folder
            ).train()
        assert not any(worker.is_alive() for worker in first.workers)
        line_runner([second], epochs=3, workers=1, load_from=folder / 'last.pth', work_dir=folder).train()
        assert first.batches + second.batches == whole.batches
        assert len(first.batches) == stop_at + 1
    assert not any(worker.is_alive() for worker in second.workers)
    failing = Trace(fail_at=3)
    with pytest.raises(ArithmeticError):
        trained(line_runner, failing, epochs=3, workers=1)
    assert failing.workers
    assert not any(worker.is_alive() for worker in failing.workers)


def test_a_second_run_of_a_loop_that_failed_trains_the_batches_of_its_place(line_runner: Toy) -> None:
    whole = trained(line_runner, epochs=2)
    trace = Trace(fail_at=3)
    runner = line_runner([trace], epochs=2, workers=1)
    with pytest.raises(ArithmeticError):
        runner.train()
    trace.fail_at = None
    runner.train_loop.run()
    assert trace.batches == whole.batches[:4] + whole.batches[3:]  # the one that failed comes again


def test_a_loader_that_a_hook_puts_into_the_loop_gives_the_next_epoch(line_runner: Toy) -> None:
    class Swapping(Trace):
        def after_train_epoch(self, runner: Runner) -> None:
            old = runner.train_loop.dataloader
            sampler = EpochSampler(range(10), seed=1)
            options = {'batch_size': 2, 'num_workers': 1, 'persistent_workers': True, 'collate_fn': old.collate_fn}
            runner.train_loop.dataloader = DataLoader(old.dataset, sampler=sampler, **options)
            self.first_workers = self.workers

    usual, trace = trained(line_runner, workers=1), trained(line_runner, Swapping(), workers=1)
    other = EpochSampler(range(10), seed=1)
    other.set_epoch(1)
    order = [f'{key.index}.jpg' for key in other]
    assert trace.batches[:5] == usual.batches[:5]
    assert [file for _, _, files in trace.batches[5:] for file in files] == order
    assert [file for _, _, files in usual.batches[5:] for file in files] != order  # control
    assert not any(worker.is_alive() for worker in [*trace.first_workers, *trace.workers])


def test_workers_end_though_a_hook_cannot_close(line_runner: Toy) -> None:
    class Unclosing(Trace):
        def close(self, runner: Runner) -> None:
            raise OSError('no space left')

    trace = Unclosing()
    with pytest.raises(OSError, match='no space left'):
        trained(line_runner, trace, workers=1)
    assert trace.workers
    assert not any(worker.is_alive() for worker in trace.workers)


def test_a_worker_that_is_killed_in_a_validation_costs_this_validation_only(line_runner: Toy, tmp_path: Path) -> None:
    """torch raises as soon as the process is gone, whatever the main one does; the epoch was written before."""
    rows = Noted()

    def kill() -> bool:
        (worker,) = trace.workers
        os.kill(worker.pid, signal.SIGKILL)
        time.sleep(60)  # the signal of its end interrupts this
        return True

    trace = Trace(validation_1=kill)
    with pytest.raises(RuntimeError, match='killed by signal: Killed'):
        line_runner([trace, CheckpointHook(save_best=SCORE)], rows=rows, workers=1, scores=[0.5] * 2).train()
    meta = files.load(tmp_path / 'last.pth')['meta']
    assert (meta['epoch'], meta['iter'], meta['validation_pending']) == (1, 5, True)
    resumed = Trace()
    saver = CheckpointHook(save_best=SCORE)
    line_runner([resumed, saver], workers=1, scores=[0.5] * 2, load_from=tmp_path / 'last.pth').train()
    assert resumed.events[:2] == ['validation_1', 'epoch_1']
    assert trace.batches + resumed.batches == trained(line_runner).batches
