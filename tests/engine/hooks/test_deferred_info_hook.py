import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook, LoggerHook
from mmengine.runner import Runner

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


def test_or_only_warns(line_runner: Toy, caplog: pytest.LogCaptureFixture) -> None:
    runner = line_runner([DeferredInfoHook(interval=5, on_nonfinite='warn')], epochs=1)
    runner.model.poison = 1
    runner.train()
    assert math.isnan(history(runner, 'loss')[0])


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


def test_an_unknown_answer_to_infinity_is_refused() -> None:
    with pytest.raises(ValueError, match="on_nonfinite is 'ignore'; use 'raise' or 'warn'"):
        DeferredInfoHook(on_nonfinite='ignore')
