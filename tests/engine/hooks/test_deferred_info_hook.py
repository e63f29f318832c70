import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook, LoggerHook
from mmengine.optim import OptimWrapper as PlainOptimWrapper
from mmengine.runner import Runner

from lucid.engine import checkpoint as files
from lucid.engine.hooks import DeferredInfoHook

Toy = Callable[..., Runner]


class Truth(Hook):
    """What a hook that reads every iteration would have seen, and what the hub holds after each."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rows: list[float] = []
        self.hub: list[float | None] = []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.losses.append(outputs['loss'].item())
        self.rows.append(outputs['rows'].item())
        scalars = runner.message_hub.log_scalars
        self.hub.append(scalars['train/loss'].current() if 'train/loss' in scalars else None)


def history(runner: Runner, name: str) -> list[float]:
    return runner.message_hub.get_scalar(f'train/{name}').data[0].tolist()


def warnings(runner: Runner) -> list[str]:
    """What the runner's logger warns of from now on."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    runner.logger.addHandler(handler)
    return lines


def test_the_hub_gets_means_on_logging_iterations_only(line_runner: Toy) -> None:
    truth = Truth()
    runner = line_runner([DeferredInfoHook(interval=2), truth], epochs=1)
    runner.train()
    a, b, c, d, e = truth.losses
    means = [(a + b) / 2, (c + d) / 2, e]
    assert truth.hub == pytest.approx([None, means[0], means[0], means[1], means[2]])
    assert history(runner, 'rows') == pytest.approx([sum(truth.rows[:2]) / 2, sum(truth.rows[2:4]) / 2, truth.rows[4]])


def test_the_interval_is_that_of_the_logger(line_runner: Toy) -> None:
    hook = DeferredInfoHook()
    runner = line_runner([hook, LoggerHook(interval=3)], epochs=1)
    runner.train()
    assert hook.interval == 3
    assert len(history(runner, 'loss')) == 2


def test_learning_rate_momentum_norm_and_speed_are_there(line_runner: Toy) -> None:
    runner = line_runner([DeferredInfoHook(interval=5)], epochs=1)
    runner.train()
    assert history(runner, 'lr') == [0.1]
    assert history(runner, 'momentum') == [0.9]
    assert history(runner, 'grad_norm') == [pytest.approx(runner.optim_wrapper.grad_norm.item())]
    assert history(runner, 'img_s')[0] == pytest.approx(2 / history(runner, 'time')[0])
    assert runner.message_hub.get_info('eta') == 0


def test_between_logging_iterations_nothing_is_read(line_runner: Toy, no_host_read: Callable[[], Any]) -> None:
    hook = DeferredInfoHook(interval=3)
    runner = line_runner([hook])
    hook.before_run(runner)
    hook._restart_clock()
    outputs = {'loss': torch.ones(()), 'rows': torch.ones(())}
    with no_host_read():
        for batch_idx in range(2):
            hook.before_train_iter(runner, batch_idx, {})
            hook.after_train_iter(runner, batch_idx, {}, outputs)


def test_the_step_may_reuse_the_memory_of_what_it_returned(line_runner: Toy) -> None:
    class Reuse(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
            outputs['loss'].detach().fill_(-1)

    runner = line_runner([DeferredInfoHook(interval=5), Reuse()], epochs=1)
    runner.train()
    assert history(runner, 'loss')[0] > 0


def test_a_loss_that_is_not_finite_stops_training_naming_iteration_and_images(line_runner: Toy) -> None:
    truth = Truth()
    runner = line_runner([DeferredInfoHook(interval=5), truth])
    runner.model.poison = 1
    with pytest.raises(FloatingPointError, match=r'loss_fit, loss not finite|loss, loss_fit not finite') as error:
        runner.train()
    assert 'iteration 2 of 10 (epoch 1)' in str(error.value)
    images = str(error.value).split('images ')[1].split('. Lower')[0].split(', ')
    assert len(images) == 2
    assert all(image.endswith('.jpg') for image in images)


def test_a_step_left_out_is_warned_of_with_its_images_and_enters_no_mean(line_runner: Toy) -> None:
    truth = Truth()
    runner = line_runner([DeferredInfoHook(interval=5), truth], epochs=1, on_nonfinite='skip')
    runner.model.poison = 1
    lines = warnings(runner)
    runner.train()
    assert len(lines) == 1
    assert lines[0].startswith('steps left out: 1, in this run 1: ')
    assert 'not finite in iteration 2 of 5 (epoch 1), images ' in lines[0]
    assert lines[0].count('.jpg') == 2
    assert math.isnan(truth.losses[1])
    assert history(runner, 'loss') == [pytest.approx((sum(truth.losses[2:]) + truth.losses[0]) / 4)]


def test_if_all_steps_are_left_out_the_mean_says_so_and_a_few_are_described(line_runner: Toy) -> None:
    runner = line_runner([DeferredInfoHook(interval=7)], length=14, epochs=1, on_nonfinite='skip')
    torch.nn.init.constant_(runner.model.line.bias, math.nan)
    lines = warnings(runner)
    runner.train()
    assert math.isnan(history(runner, 'loss')[0])
    assert lines[0].startswith('steps left out: 7, in this run 7: ')
    assert lines[0].count('epoch 1') == 5
    assert lines[0].endswith('; and 2 more')


def test_what_is_ignored_is_warned_of(line_runner: Toy) -> None:
    runner = line_runner([DeferredInfoHook(interval=5)], epochs=1, on_nonfinite='ignore')
    runner.model.poison = 1
    lines = warnings(runner)
    runner.train()
    assert lines[0].count('not finite in iteration') == 4  # 2, and all that follow
    assert math.isnan(history(runner, 'loss')[0])
    assert runner.model.line.weight.isnan().all()  # control: nothing was undone


def test_in_a_window_the_micro_batch_with_the_bad_loss_is_named_across_logging_iterations(line_runner: Toy) -> None:
    runner = line_runner([DeferredInfoHook(interval=2)], length=12, epochs=1, accumulate=3, on_nonfinite='skip')
    runner.model.poison = 1  # of the window of iterations 1 to 3; logged after 2, 4 and 6
    lines = warnings(runner)
    runner.train()
    assert len(lines) == 1
    assert 'not finite in iteration 2 of 6' in lines[0]
    assert lines[0].count('.jpg') == 2


@pytest.mark.parametrize('accumulate', [1, 2])
def test_gradients_alone_name_all_images_of_their_window(line_runner: Toy, accumulate: int) -> None:
    runner = line_runner([DeferredInfoHook(interval=5)], epochs=1, accumulate=accumulate)
    calls = iter(range(100))
    runner.model.line.weight.register_hook(lambda grad: grad * math.nan if next(calls) == 2 else grad)
    with pytest.raises(FloatingPointError, match='gradients, but no loss, not finite in iteration') as error:
        runner.train()
    where = {1: 'in iteration 3 of 5', 2: 'in iterations 3, 4 of 5'}[accumulate]
    assert where in str(error.value)
    assert str(error.value).count('.jpg') == 2 * accumulate
    assert not runner.model.line.weight.isnan().any()


def test_a_wrapper_of_mmengine_fails_as_it_cannot_skip(toy_runner: Toy) -> None:
    class Poisons(Hook):
        priority = 'HIGHEST'

        def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
            outputs['loss'] = outputs['loss'] * math.nan

    runner = toy_runner(custom_hooks=[Poisons(), DeferredInfoHook(interval=2)])
    runner.optim_wrapper = PlainOptimWrapper(torch.optim.SGD(runner.model.parameters(), lr=0.1))
    with pytest.raises(FloatingPointError, match='loss not finite in iteration 1 of'):
        runner.train()


def test_a_value_for_the_log_only_may_be_anything(line_runner: Toy) -> None:
    class Infinite(Hook):
        priority = 'HIGHEST'

        def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
            outputs['rows'] = torch.tensor(math.inf)

    line_runner([DeferredInfoHook(interval=5), Infinite()], epochs=1).train()


def test_a_term_that_switches_on_starts_a_new_mean_and_nothing_is_lost(line_runner: Toy) -> None:
    class SwitchesOn(Hook):
        priority = 'HIGHEST'

        def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
            if batch_idx >= 2:
                outputs['loss_extra'] = torch.tensor(float(batch_idx))

    truth = Truth()
    runner = line_runner([DeferredInfoHook(interval=5), SwitchesOn(), truth], epochs=1)
    runner.train()
    assert history(runner, 'loss_extra') == [3.0]
    assert history(runner, 'loss') == pytest.approx([sum(truth.losses[:2]) / 2, sum(truth.losses[2:]) / 3])


def test_numbers_on_the_host_are_taken_too(line_runner: Toy) -> None:
    class Number(Hook):
        priority = 'HIGHEST'

        def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
            outputs['number'] = batch_idx

    runner = line_runner([DeferredInfoHook(interval=5), Number()], epochs=1)
    runner.train()
    assert history(runner, 'number') == [2.0]


class TestResumed:
    """Stopped after three of the five batches of an epoch, of which the hook has read two."""

    def parts(self, line_runner: Toy) -> tuple[Runner, DeferredInfoHook, dict[str, Any]]:
        first = DeferredInfoHook(interval=2)
        runner = line_runner([first], epochs=1)
        first.before_run(runner)
        first._restart_clock()
        runner.optim_wrapper.window_ended = True
        for iteration, loss in enumerate((1.0, 2.0, 3.0)):
            runner.train_loop._iter = iteration
            first.after_train_iter(runner, iteration, {'metas': [{'file': f'{iteration}.jpg'}]}, self.outputs(loss))
        checkpoint: dict[str, Any] = {}
        first.before_save_checkpoint(runner, checkpoint)
        return runner, first, checkpoint

    @staticmethod
    def outputs(loss: float) -> dict[str, Any]:
        return {'loss': torch.tensor(loss)}

    def test_the_mean_covers_the_iterations_before_the_stop_and_the_speed_does_not(
        self, line_runner: Toy, tmp_path: Path
    ) -> None:
        runner, _, checkpoint = self.parts(line_runner)
        files.save(checkpoint, tmp_path / 'a.pth')
        hook = DeferredInfoHook(interval=2)
        hook.before_run(runner)
        for resumes, mean in ((True, (3 + 5) / 2), (False, 5)):  # control: load_from takes over weights alone
            runner._resume = resumes
            hook.after_load_checkpoint(runner, torch.load(tmp_path / 'a.pth', weights_only=True))
            hook.before_train(runner)
            hook._restart_clock()
            hook.after_train_iter(runner, 3, {'metas': [{'file': '3.jpg'}]}, self.outputs(5.0))
            assert history(runner, 'loss')[-1] == mean
            assert history(runner, 'img_s')[-1] == pytest.approx(1 / history(runner, 'time')[-1])
