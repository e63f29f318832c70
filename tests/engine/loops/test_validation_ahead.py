"""Validations in training whose batches are made while training goes on."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor
from torch.utils.data import DataLoader

from lucid.engine.loops import ValLoop
from tests.engine.conftest import Counted, Line, collate_rows


class InParts(Line):
    """Predicts in parts."""

    def prepare(self, data: dict[str, Any]) -> dict[str, Any]:
        return data

    def infer(self, inputs: Tensor) -> Tensor:
        return inputs

    def select(self, inferred: Tensor) -> Tensor:
        return inferred

    def place(self, selected: Tensor, metas: Any, *, run: Any) -> Iterator[dict[str, Any]]:
        return iter([{'value': row} for row in selected])


class Places(Hook):
    """The files of each validation's batches, and what ``ask`` says at a place."""

    def __init__(self, *, fail_in: int | None = None, **ask: Callable[[], bool]) -> None:
        self.fail_in, self.ask = fail_in, ask
        self.answers: dict[str, bool] = {}
        self.files: list[list[str]] = []
        self.workers: list[Any] = []

    def before_train(self, runner: Runner) -> None:
        self.others = set(multiprocessing.active_children())

    def before_train_epoch(self, runner: Runner) -> None:
        place = f'epoch_{runner.epoch}'
        if place in self.ask:
            self.answers[place] = self.ask[place]()

    def before_val(self, runner: Runner) -> None:
        self.files.append([])

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.files[-1] += [meta['file'] for meta in data_batch['metas']]
        self.workers = list(set(multiprocessing.active_children()) - self.others)
        if len(self.files) == self.fail_in:
            raise KeyboardInterrupt


ALL = [f'{index}.jpg' for index in range(6)]


def trained(make: Callable[..., Runner], rows: Counted, places: Places, **options: Any) -> Runner:
    """Train on ten rows with a validation set of its own."""
    workers = options.pop('val_workers', 1)
    lasting = {'num_workers': workers, 'persistent_workers': True} if workers else {}
    runner = make([places], model=InParts(), scores=[0.5] * 9, **options)
    runner._val_dataloader = DataLoader(rows, batch_size=2, collate_fn=collate_rows, **lasting)
    runner.train()
    return runner


@pytest.mark.parametrize('val_workers', [0, 1, 2])
def test_every_validation_has_all_images_in_order_and_none_is_read_for_nothing(
    line_runner: Callable[..., Runner], val_workers: int
) -> None:
    rows, places = Counted(6), Places()
    trained(line_runner, rows, places, epochs=3, val_workers=val_workers)
    assert places.files == [ALL] * 3
    assert rows.asked.tolist() == [3] * 6
    assert len(places.workers) == val_workers
    assert not any(worker.is_alive() for worker in places.workers)


def test_the_next_validation_is_read_before_its_epoch_is_trained(line_runner: Callable[..., Runner]) -> None:
    rows = Counted(6)
    places = Places(epoch_1=lambda: rows.begun[1].wait(timeout=60))
    trained(line_runner, rows, places, epochs=2)
    assert places.answers == {'epoch_1': True}


def test_control_without_workers_it_is_read_when_it_is_its_turn(line_runner: Callable[..., Runner]) -> None:
    rows = Counted(6)
    places = Places(epoch_1=rows.begun[1].is_set)
    trained(line_runner, rows, places, epochs=2, val_workers=0)
    assert places.answers == {'epoch_1': False}


def test_where_validations_are_rare_the_last_one_is_the_last_epochs(line_runner: Callable[..., Runner]) -> None:
    rows = Counted(6)
    places = Places(epoch_3=lambda: rows.begun[1].wait(timeout=60))
    trained(line_runner, rows, places, epochs=5, train_cfg={'val_interval': 3})
    assert places.files == [ALL] * 2  # after epochs 3 and 5
    assert places.answers == {'epoch_3': True}
    assert rows.asked.tolist() == [2] * 6


def test_where_the_interval_changes_in_the_run_no_validation_is_read_for_nothing(
    line_runner: Callable[..., Runner],
) -> None:
    rows, places = Counted(6), Places()
    changing = {'val_interval': 2, 'dynamic_intervals': [(5, 1)]}
    trained(line_runner, rows, places, epochs=6, train_cfg=changing)
    assert places.files == [ALL] * 4  # after epochs 2, 4, 5 and 6
    assert rows.asked.tolist() == [4] * 6


def test_a_worker_that_is_killed_between_validations_ends_training_and_leaves_none(
    line_runner: Callable[..., Runner],
) -> None:
    rows = Counted(6)

    def kill() -> bool:
        os.kill(places.workers[0].pid, signal.SIGKILL)
        time.sleep(60)  # the signal of its end interrupts this
        return True

    places = Places(epoch_1=kill)
    with pytest.raises(RuntimeError, match='killed by signal: Killed'):
        trained(line_runner, rows, places, epochs=3, val_workers=2)
    assert places.files == [ALL]
    assert len(places.workers) == 2
    assert not any(worker.is_alive() for worker in places.workers)


def test_a_bad_image_that_was_read_ahead_is_raised_in_its_validation(line_runner: Callable[..., Runner]) -> None:
    rows = Counted(6, fail_at=(1, 2))
    places = Places(epoch_1=lambda: rows.begun[1].wait(timeout=60))
    with pytest.raises(ArithmeticError, match='bad image 2'):
        trained(line_runner, rows, places, epochs=3)
    assert places.answers == {'epoch_1': True}
    assert places.files == [ALL, ALL[:2]]
    assert places.workers
    assert not any(worker.is_alive() for worker in places.workers)


def test_after_an_interrupt_no_worker_is_left_and_a_further_run_begins_anew(line_runner: Callable[..., Runner]) -> None:
    rows, places = Counted(6), Places(fail_in=2)
    runner = line_runner([places], model=InParts(), scores=[0.5] * 9, epochs=2)
    runner._val_dataloader = DataLoader(
        rows, batch_size=2, collate_fn=collate_rows, num_workers=1, persistent_workers=True
    )
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    assert places.files == [ALL, ALL[:2]]
    assert places.workers
    assert not any(worker.is_alive() for worker in places.workers)
    loop = runner.val_loop
    assert isinstance(loop, ValLoop)
    assert loop.follows is None
    loop.run()
    assert places.files[-1] == ALL
    loop.dataloader._iterator._shutdown_workers()


def test_a_loader_that_a_hook_puts_into_the_loop_gives_the_next_validation(line_runner: Callable[..., Runner]) -> None:
    class Swapping(Places):
        def before_train_epoch(self, runner: Runner) -> None:
            if runner.epoch == 1:
                kept = {'num_workers': 1, 'persistent_workers': True}
                self.first_workers = self.workers
                runner.val_loop.dataloader = DataLoader(others, batch_size=3, collate_fn=collate_rows, **kept)

    rows, others, places = Counted(6), Counted(6), Swapping()
    trained(line_runner, rows, places, epochs=3)
    assert places.files == [ALL] * 3
    assert others.asked.tolist() == [2] * 6
    assert not any(worker.is_alive() for worker in [*places.first_workers, *places.workers])
