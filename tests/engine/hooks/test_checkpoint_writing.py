"""CheckpointHook writes in another thread: what training, files and errors see of it."""

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine import checkpoint as files
from lucid.engine import checkpoint_writer
from lucid.engine.background import Background
from lucid.engine.hooks import CheckpointHook, ProgressHook
from lucid.engine.loops import Stopped
from lucid.engine.snapshot import Snapshot

Toy = Callable[..., Runner]
SCORE = 'toy/score'
FULL = OSError(28, 'No space left on device')


class At(Hook):
    """Calls a function in one event."""

    def __init__(self, event: str, call: Callable[[Runner], Any], priority: str = 'NORMAL') -> None:
        setattr(self, event, lambda runner, *_, **__: call(runner))
        self.priority = priority


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file takes longer than an epoch."""
    write = files.save_plain

    def late(content: Any, path: Path) -> None:
        time.sleep(0.1)
        write(content, path)

    monkeypatch.setattr(files, 'save_plain', late)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No file is written before it is set."""
    write, event = files.save_plain, threading.Event()

    def wait(content: Any, path: Path) -> None:
        assert event.wait(60)
        write(content, path)

    monkeypatch.setattr(files, 'save_plain', wait)
    return event


def failing(monkeypatch: pytest.MonkeyPatch, *, at: int, error: Exception = FULL) -> None:
    """Let the write of that number fail, from 1."""
    write, count = torch.save, [0]

    def save(content: Any, file: Any) -> None:
        count[0] += 1
        if count[0] == at:
            file.write(b'half')
            raise error
        write(content, file)

    monkeypatch.setattr(torch, 'save', save)


def messages(runner: Runner) -> list[str]:
    """What the runner logs from now on."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    runner.logger.addHandler(handler)
    return lines


def test_training_goes_on_meanwhile_and_does_not_reach_what_is_written(
    line_runner: Toy, tmp_path: Path, gate: threading.Event
) -> None:
    weights: list[torch.Tensor] = []
    seen: list[tuple[int, bool]] = []

    def look(runner: Runner) -> None:
        if runner.iter == 7:  # two steps of the second epoch are done
            seen.append((runner.epoch, (tmp_path / 'last.pth').exists()))
            gate.set()

    keep = At('after_train_epoch', lambda runner: weights.append(runner.model.line.weight.detach().cpu().clone()))
    line_runner([CheckpointHook(save_best=None), keep, At('before_train_iter', look)], epochs=2).train()
    assert seen == [(1, False)]
    for name, weight in zip(('previous', 'last'), weights, strict=True):
        content = files.load(tmp_path / f'{name}.pth')
        assert torch.equal(content['state_dict']['line.weight'], weight)
    assert not torch.equal(*weights)  # control: they went on changing


def test_the_files_are_those_of_a_run_that_waits(line_runner: Toy, tmp_path: Path, slow: None) -> None:
    hook = CheckpointHook(save_best=SCORE, max_keep_ckpts=2)
    line_runner([hook], epochs=4, scores=[0.1, 0.3, 0.2, 0.25]).train()
    metas = {path.name: files.load(path)['meta'] for path in tmp_path.glob('*.pth')}
    places = {name: (meta['epoch'], meta['validation_pending'], meta['best_score']) for name, meta in metas.items()}
    assert places == {
        'last.pth': (4, False, 0.3),
        'previous.pth': (3, False, 0.3),
        'best.pth': (2, False, 0.3),
        'epoch_3.pth': (3, True, 0.3),
        'epoch_4.pth': (4, True, 0.3),
    }
    assert not list(tmp_path.glob('.*'))


def test_the_disk_sees_the_order_of_the_events(
    line_runner: Toy, tmp_path: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, names = os.replace, []

    def note(source: Any, target: Path) -> None:
        replace(source, target)
        names.append((target.stem, files.load(target)['meta']['epoch']))

    monkeypatch.setattr(os, 'replace', note)
    line_runner([CheckpointHook(save_best=SCORE, max_keep_ckpts=1)], epochs=2, scores=[0.1, 0.3]).train()
    first = [('last', 1), ('epoch_1', 1), ('last', 1), ('best', 1)]
    assert names == [*first, ('previous', 1), ('last', 2), ('epoch_2', 2), ('last', 2), ('best', 2)]


def test_two_copies_of_the_state_exist_at_most(
    line_runner: Toy, tmp_path: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Snapshot] = []

    class Counted(Snapshot):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(checkpoint_writer, 'Snapshot', Counted)
    places: list[int] = []
    replace = os.replace

    def note(source: Any, target: Path) -> None:
        replace(source, target)
        places.extend([files.load(target)['meta']['iter']] if target.stem == 'last' else [])

    monkeypatch.setattr(os, 'replace', note)
    line_runner([CheckpointHook(save_best=None, every_n_steps=1)], epochs=2).train()
    assert places == [*range(1, 11)]
    assert len(made) == 2


@pytest.mark.parametrize(('at', 'epochs'), [(1, 2), (2, 2), (3, 2), (4, 2)])
def test_an_error_of_the_disk_ends_the_run_as_it_is_and_leaves_the_files_of_before(
    line_runner: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, epochs: int
) -> None:
    failing(monkeypatch, at=at)
    hook = CheckpointHook(save_best=SCORE)
    runner = line_runner([hook, ProgressHook(bar=False)], epochs=epochs, scores=[0.1, 0.3])
    lines = messages(runner)
    with pytest.raises(OSError, match='No space left on device') as caught:
        runner.train()
    assert caught.value is FULL
    written = {path.name for path in tmp_path.iterdir() if path.suffix == '.pth'}
    assert written == {1: set(), 2: {'last.pth'}, 3: {'last.pth', 'best.pth', 'previous.pth'}}.get(
        at, {'last.pth', 'best.pth', 'previous.pth'}
    )
    assert not [path for path in tmp_path.iterdir() if path.name.startswith('.')]
    assert hook.is_last_own is (at > 1)
    assert hook.writer.place == {1: None, 2: (1, 5), 3: (1, 5), 4: (2, 10)}[at]
    if at > 1:
        meta = files.load(tmp_path / 'last.pth')['meta']
        assert (meta['epoch'], meta['validation_pending']) == {2: (1, True), 3: (1, False), 4: (2, True)}[at]
    if at > 2:
        assert files.load(tmp_path / 'best.pth')['meta']['best_score'] == 0.1
    assert not any('Trained' in line for line in lines)


def test_a_foreign_file_is_not_taken_for_the_one_that_failed(
    line_runner: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save({'state_dict': {}, 'meta': {'epoch': 99}}, tmp_path / 'last.pth')
    failing(monkeypatch, at=1)
    hook = CheckpointHook(save_best=None)
    with pytest.raises(OSError, match='No space left'):
        line_runner([hook], epochs=1).train()
    assert not hook.is_last_own
    assert files.load(tmp_path / 'last.pth')['meta']['epoch'] == 99


def test_what_is_not_plain_is_refused_at_once(line_runner: Toy, tmp_path: Path) -> None:
    hook = CheckpointHook(save_best=None)
    add = At('before_save_checkpoint', lambda runner: None)
    add.before_save_checkpoint = lambda runner, checkpoint: checkpoint.update(mine={1})
    later: list[int] = []
    runner = line_runner([hook, add, At('before_train_iter', lambda runner: later.append(runner.iter))], epochs=2)
    with pytest.raises(TypeError, match=r'checkpoint\.mine is a set, which a checkpoint cannot hold'):
        runner.train()
    assert later == [0, 1, 2, 3, 4]
    assert not hook.is_last_own
    assert hook.writer.place is None


@pytest.mark.parametrize('error', [FloatingPointError('mine'), KeyboardInterrupt()])
def test_a_run_that_ends_by_an_error_leaves_no_write_unfinished(
    line_runner: Toy, tmp_path: Path, slow: None, error: BaseException
) -> None:
    def fail(runner: Runner) -> None:
        if runner.iter == 6:
            raise error

    hook = CheckpointHook(save_best=SCORE)
    with pytest.raises(type(error)):
        line_runner([hook, At('before_train_iter', fail)], epochs=2, scores=[0.1, 0.2]).train()
    assert files.load(tmp_path / 'best.pth')['meta']['best_score'] == 0.1
    assert not files.load(tmp_path / 'last.pth')['meta']['validation_pending']
    assert hook.is_last_own
    assert not [thread for thread in threading.enumerate() if thread.name.startswith('checkpoint')]


def test_the_error_that_ends_a_run_is_not_hidden_by_one_of_a_write_but_an_interrupt_is(
    line_runner: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, expected in ((FloatingPointError('mine'), FloatingPointError), (KeyboardInterrupt(), OSError)):
        failing(monkeypatch, at=1)

        def fail(runner: Runner, error: BaseException = error) -> None:
            if runner.iter == 6:
                raise error

        hook = CheckpointHook(save_best=None)
        runner = line_runner([hook, At('before_train_iter', fail)], epochs=2)
        lines = messages(runner)
        with pytest.raises(expected):
            runner.train()
        assert not hook.is_last_own
        told = [line for line in lines if 'a checkpoint was not written: [Errno 28] No space left' in line]
        assert len(told) == (expected is FloatingPointError)
        monkeypatch.undo()


def test_a_stop_on_request_comes_when_the_file_is_there_and_not_if_it_failed(
    line_runner: Toy, tmp_path: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(runner: Runner) -> None:
        if runner.iter == 6:
            runner.train_loop.request_stop()

    there: list[int] = []
    look = At('close', lambda runner: there.append(files.load(tmp_path / 'last.pth')['meta']['iter']), 'HIGHEST')
    with pytest.raises(Stopped):
        line_runner([CheckpointHook(save_best=None), At('before_train_iter', stop), look]).train()
    assert there == [7]
    failing(monkeypatch, at=2)
    with pytest.raises(OSError, match='No space left'):
        line_runner([CheckpointHook(save_best=None), At('before_train_iter', stop)]).train()


def test_other_processes_of_a_distributed_run_copy_and_write_nothing_and_know_the_place(
    line_runner: Toy, tmp_path: Path
) -> None:
    hook, collected = CheckpointHook(save_best=SCORE, max_keep_ckpts=1), []
    count = At('before_save_checkpoint', lambda runner: collected.append(runner.rank))
    for rank, places in ((1, []), (0, [0] * 4)):
        runner = line_runner([hook, count], epochs=2, scores=[0.1, 0.3], work_dir=tmp_path / str(rank))
        runner._rank = rank
        collected.clear()
        runner.train()
        assert collected == places
        assert bool(list((tmp_path / str(rank)).glob('*.pth'))) is (rank == 0)  # the second one is the control
        assert hook.writer.place == hook.writer.landed == (2, 10)


@pytest.mark.parametrize('interrupts', [1, 2])
def test_an_interrupt_of_waiting_for_a_picture_does_not_cost_the_checkpoint(
    line_runner: Toy, tmp_path: Path, slow: None, interrupts: int
) -> None:
    """As by a second Ctrl-C: the first one has ended training, and its pictures are waited for."""

    def interrupt(runner: Runner) -> None:
        if runner.iter == 6:
            raise KeyboardInterrupt

    waiting = At('close', interrupt, priority='HIGH')
    hook = CheckpointHook(save_best=SCORE)
    runner = line_runner(
        [hook, At('before_train_iter', interrupt), *[waiting] * (interrupts - 1)], epochs=2, scores=[0.1, 0.2]
    )
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    assert files.load(tmp_path / 'best.pth')['meta']['best_score'] == 0.1
    assert hook.writer.landed == hook.writer.place == (1, 5)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith('checkpoint')]


def test_nothing_is_claimed_at_the_end_before_it_is_there(line_runner: Toy, tmp_path: Path, slow: None) -> None:
    runner = line_runner([CheckpointHook(save_best=SCORE), ProgressHook(bar=False)], epochs=1, scores=[0.5])
    there: list[bool] = []
    handler = logging.Handler()
    handler.emit = lambda record: (  # type: ignore[method-assign]
        there.append((tmp_path / 'best.pth').is_file()) if 'last weights' in record.getMessage() else None
    )
    runner.logger.addHandler(handler)
    runner.train()
    assert there == [True]


def _work(path: Path) -> None:
    """What a worker does: import, log, allocate, compute, write, and end as Python does."""
    import colorsys  # noqa: F401

    logging.getLogger('child').error('here')
    files.save({'state_dict': {'a': torch.randn(100, 100) @ torch.randn(100, 1)}, 'meta': {}}, path)


def test_processes_forked_while_a_file_is_written_are_whole(tmp_path: Path) -> None:
    content = Snapshot().take({'state_dict': {str(i): torch.randn(500) for i in range(500)}, 'meta': {}})
    background = Background('forked')
    for i in range(40):
        background.submit(lambda i=i: files.save_plain(content, tmp_path / f'{i}.pth'))
    context = multiprocessing.get_context('fork')
    children = [context.Process(target=_work, args=(tmp_path / f'child{i}.pth',)) for i in range(4)]
    for child in children:
        child.start()
        time.sleep(0.005)
    forked_meanwhile = not (tmp_path / '39.pth').exists()
    for child in children:
        child.join(60)
    background.finish()
    assert forked_meanwhile
    assert [child.exitcode for child in children] == [0] * 4
    assert [len(files.load(tmp_path / f'child{i}.pth')['state_dict']) for i in range(4)] == [1] * 4
    assert [len(files.load(tmp_path / f'{i}.pth')['state_dict']) for i in range(40)] == [500] * 40
