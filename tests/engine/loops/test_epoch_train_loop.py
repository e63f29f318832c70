import sys
from collections.abc import Callable
from typing import Any

import pytest
from mmengine.dataset import DefaultSampler
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.loops import EpochTrainLoop, Stopped

Toy = Callable[..., Runner]


class Trace(Hook):
    """Names of events and the batches that came."""

    def __init__(self, *, fail_at: int | None = None, stop_at: int | None = None) -> None:
        self.fail_at = fail_at
        self.stop_at = stop_at
        self.events: list[str] = []
        self.batches: list[tuple[int, int, list[str]]] = []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.batches.append((runner.epoch, batch_idx, [meta['file'] for meta in data_batch['metas']]))
        if runner.iter == self.fail_at:
            raise ArithmeticError
        if runner.iter == self.stop_at:
            runner.train_loop.request_stop()

    def before_train_epoch(self, runner: Runner) -> None:
        self.events.append(f'epoch {runner.epoch}')

    def before_val(self, runner: Runner) -> None:
        self.events.append(f'validation after {runner.epoch}')

    def after_train(self, runner: Runner) -> None:
        self.events.append('after_train')

    def on_stop(self, runner: Runner) -> None:
        self.events.append(f'stop at {runner.iter}')

    def close(self, runner: Runner) -> None:
        self.events.append('close')


def trained(make: Toy, **options: Any) -> Trace:
    trace = Trace()
    make([trace], **options).train()
    return trace


def resumed(make: Toy, *, epoch: int, iteration: int, **options: Any) -> Trace:
    trace = Trace()
    runner = make([trace], **options)
    runner.train_loop._epoch, runner.train_loop._iter = epoch, iteration
    runner.train()
    return trace


@pytest.mark.parametrize('sampler', [None, 'default'])
def test_resumed_in_mid_epoch_the_rest_of_the_batches_comes(line_runner: Toy, sampler: str | None) -> None:
    """With lucid's sampler, which starts there, and with one that is read up to there."""

    def options() -> dict[str, Any]:
        return {'sampler': DefaultSampler(range(10), seed=0)} if sampler else {}

    whole = trained(line_runner, **options())
    part = resumed(line_runner, epoch=1, iteration=8, **options())
    assert [batch[:2] for batch in part.batches] == [(1, 3), (1, 4)]
    assert part.batches == whole.batches[8:]


@pytest.mark.parametrize('epoch', [0, 1])
def test_at_an_epoch_end_the_next_epoch_comes(line_runner: Toy, epoch: int) -> None:
    """Whether the epoch was counted, or training stopped after its last batch."""
    whole = trained(line_runner)
    part = resumed(line_runner, epoch=epoch, iteration=5)
    assert part.batches == whole.batches[5:]
    assert part.events == [f'epoch {number}' for number in range(epoch, 2)] + ['after_train', 'close']


def test_the_sampler_learns_epoch_length_and_start(line_runner: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    from lucid.datasets import EpochSampler

    calls: list[tuple[int, dict[str, int]]] = []
    set_epoch = EpochSampler.set_epoch

    def spy(self: EpochSampler, epoch: int, *, max_epochs: int, start: int) -> None:
        calls.append((epoch, {'max_epochs': max_epochs, 'start': start}))
        set_epoch(self, epoch, max_epochs=max_epochs, start=start)

    monkeypatch.setattr(EpochSampler, 'set_epoch', spy)
    runner = line_runner()
    runner.train_loop._iter = 3
    runner.train()
    assert calls == [(0, {'max_epochs': 2, 'start': 6}), (1, {'max_epochs': 2, 'start': 0})]


def test_the_wrapper_learns_its_windows(line_runner: Toy) -> None:
    runner = line_runner(accumulate=2)
    runner.train()
    assert runner.optim_wrapper.num_steps == 6  # 5 batches are windows of 2, 2 and 1


def test_iterations_of_another_epoch_length_are_refused(line_runner: Toy) -> None:
    runner = line_runner()
    runner.train_loop._epoch, runner.train_loop._iter = 1, 20
    with pytest.raises(ValueError, match='20 iterations do not lie in epoch 1 of 5 batches: resume with the data set'):
        runner.train()


def test_validation_comes_at_its_epochs_and_after_the_last(line_runner: Toy) -> None:
    trace = trained(line_runner, epochs=5, scores=[0.0] * 9, train_cfg={'val_interval': 2, 'val_begin': 3})
    assert [event for event in trace.events if 'validation' in event] == ['validation after 4', 'validation after 5']


def test_a_pending_validation_comes_first(line_runner: Toy) -> None:
    trace = Trace()
    runner = line_runner([trace], scores=[0.0] * 9)
    runner.train_loop._epoch, runner.train_loop._iter, runner.train_loop.validation_pending = 1, 5, True
    runner.train()
    assert trace.events[:2] == ['validation after 1', 'epoch 1']


def test_a_stop_waits_for_the_window_to_end(line_runner: Toy) -> None:
    trace = Trace(stop_at=2)
    with pytest.raises(Stopped):
        line_runner([trace], accumulate=2).train()
    assert len(trace.batches) == 4
    assert trace.events == ['epoch 0', 'stop at 4', 'close']


def test_hooks_are_closed_after_success_and_after_failure(line_runner: Toy) -> None:
    assert trained(line_runner).events[-2:] == ['after_train', 'close']
    trace = Trace(fail_at=3)
    with pytest.raises(ArithmeticError):
        line_runner([trace]).train()
    assert trace.events == ['epoch 0', 'close']


@pytest.mark.parametrize('error', [OSError('no space left'), KeyboardInterrupt()])
@pytest.mark.parametrize('fail_at', [None, 3])
def test_each_hook_is_closed_in_their_order_though_one_cannot_close(
    line_runner: Toy, error: BaseException, fail_at: int | None
) -> None:
    closed: list[tuple[str, type[BaseException] | None]] = []

    class Closes(Hook):
        def __init__(self, name: str, error: BaseException | None = None) -> None:
            self.name = name
            self.error = error

        def close(self, runner: Runner) -> None:
            ends_with = sys.exception()
            closed.append((self.name, None if ends_with is None else type(ends_with)))
            if self.error is not None:
                raise self.error

    with pytest.raises(type(error)) as caught:
        line_runner([Trace(fail_at=fail_at), Closes('first', error), Closes('second')]).train()
    ends_with = None if fail_at is None else ArithmeticError
    assert closed == [('first', ends_with), ('second', ends_with)]  # each sees what ends the run
    assert caught.value is error
    assert type(caught.value.__context__) is (type(None) if fail_at is None else ArithmeticError)


def test_it_is_found_by_its_bare_name(line_runner: Toy) -> None:
    assert isinstance(line_runner().train_loop, EpochTrainLoop)
