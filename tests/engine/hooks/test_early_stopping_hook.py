from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mmengine.runner import Runner

from lucid.engine import checkpoint as files
from lucid.engine.checkpoint import CheckpointError
from lucid.engine.hooks import CheckpointHook, EarlyStoppingHook

Toy = Callable[..., Runner]
SCORE = 'toy/score'


def hooks(patience: int | None, *, interval: int = 1, **options: Any) -> list:
    return [CheckpointHook(save_best=SCORE, interval=interval), EarlyStoppingHook(patience=patience, **options)]


def epochs_of(make: Toy, patience: int | None, scores: tuple[float, ...], **options: Any) -> int:
    """Of at most ten epochs."""
    runner = make(hooks(patience, **options), epochs=10, scores=scores + (0.0,) * 10)
    runner.train()
    return runner.epoch


NAN = float('nan')


@pytest.mark.parametrize(
    ('patience', 'scores', 'epochs'),
    [
        (2, (0.1, 0.3, 0.2, 0.2), 4),  # best after epoch 2, two epochs later it ends
        (3, (0.1, 0.3, 0.2, 0.2, 0.4, 0.3, 0.3, 0.3), 8),  # a better one in time starts anew
        (2, (0.3, 0.3, 0.3), 3),  # an equal one is not better
        (2, (NAN, NAN), 2),  # never a number: counted from the start
        (2, (0.1, NAN, 0.2, NAN, NAN), 5),
        (None, (0.5,), 10),
    ],
)
def test_it_stops_when_patience_has_passed_since_the_best(
    line_runner: Toy, patience: int | None, scores: tuple[float, ...], epochs: int
) -> None:
    assert epochs_of(line_runner, patience, scores) == epochs


def test_a_gain_below_min_delta_is_none(line_runner: Toy) -> None:
    assert epochs_of(line_runner, 3, (0.30, 0.31, 0.32, 0.35, 0.36), min_delta=0.05) == 4  # 0.35 is not above it
    assert epochs_of(line_runner, 3, (0.30, 0.31, 0.32, 0.36), min_delta=0.05) == 7


def test_patience_counts_epochs_where_validation_is_rarer(line_runner: Toy) -> None:
    runner = line_runner(hooks(4), epochs=12, scores=(0.5, 0.4, 0.4, 0.4, 0.4, 0.4), train_cfg={'val_interval': 2})
    runner.train()
    assert runner.epoch == 6  # best after 2


def test_the_log_says_why_and_best_and_last_are_kept(line_runner: Toy, tmp_path: Path) -> None:
    runner = line_runner(hooks(2, interval=5), epochs=10, scores=(0.1, 0.3, 0.2, 0.2))
    runner.train()
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert 'early stopping after epoch 4 of 10: toy/score is 0.2000 and was best with 0.3000 after epoch 2, 2 ' in log
    best, last = (files.load(tmp_path / f'{name}.pth') for name in ('best', 'last'))
    assert (best['meta']['epoch'], best['meta']['best_score']) == (2, 0.3)
    assert last['meta']['epoch'] == 4  # though only every fifth epoch is written
    assert last['early_stopping'] == {'monitor': SCORE, 'best_score': 0.3, 'best_epoch': 2, 'stopped': True}


def test_a_resumed_run_goes_on_counting(line_runner: Toy, tmp_path: Path) -> None:
    line_runner(hooks(3), epochs=3, scores=(0.3, 0.2, 0.2)).train()
    runner = line_runner(hooks(3), epochs=10, scores=(0.2,) * 7, load_from=tmp_path / 'last.pth')
    runner.train()
    assert runner.epoch == 4


def test_control_a_hook_that_forgets_runs_longer(line_runner: Toy, tmp_path: Path) -> None:
    line_runner(hooks(3), epochs=3, scores=(0.3, 0.2, 0.2)).train()
    content = files.load(tmp_path / 'last.pth')
    del content['early_stopping']
    files.save(content, tmp_path / 'forgot.pth')
    runner = line_runner(hooks(3), epochs=10, scores=(0.2,) * 7, load_from=tmp_path / 'forgot.pth')
    runner.train()
    assert runner.epoch == 7  # the first score after resuming is the best so far


def test_a_run_that_stopped_is_refused_and_goes_on_with_more_patience(line_runner: Toy, tmp_path: Path) -> None:
    line_runner(hooks(2), epochs=10, scores=(0.3, 0.2, 0.2)).train()
    with pytest.raises(CheckpointError, match=r'stopped early: 2 epochs without .*patience above 2'):
        line_runner(hooks(2), epochs=10, scores=(0.2,) * 7, load_from=tmp_path / 'last.pth').train()
    runner = line_runner(hooks(4), epochs=10, scores=(0.2,) * 7, load_from=tmp_path / 'last.pth')
    runner.train()
    assert runner.epoch == 5


def test_another_metric_starts_anew_with_a_warning(line_runner: Toy, tmp_path: Path) -> None:
    line_runner(hooks(2), epochs=2, scores=(0.3, 0.2)).train()
    content = files.load(tmp_path / 'last.pth')
    content['early_stopping']['monitor'] = 'toy/other'
    files.save(content, tmp_path / 'last.pth')
    runner = line_runner(hooks(2), epochs=10, scores=(0.2,) * 8, load_from=tmp_path / 'last.pth')
    runner.train()
    assert runner.epoch == 5  # 3 is the first and best
    assert any('patience starts anew' in log.read_text() for log in tmp_path.glob('*/*.log'))


@pytest.mark.parametrize(
    ('options', 'scores', 'message'),
    [
        ({'patience': 2}, None, 'needs a validation: add val_dataloader'),
        (
            {'patience': 2, 'train_cfg': {'val_interval': 3}},
            (0.1,),
            'patience is 2 epochs, and validation comes every 3',
        ),
        ({'patience': 2, 'save_best': None}, (0.1,), 'no metric to watch.*set monitor'),
    ],
)
def test_what_cannot_work_is_refused_before_training(
    line_runner: Toy, options: dict[str, Any], scores: tuple[float, ...] | None, message: str
) -> None:
    saver = CheckpointHook(save_best=options.get('save_best', SCORE))
    hook = EarlyStoppingHook(patience=options['patience'])
    with pytest.raises(ValueError, match=message):
        line_runner([saver, hook], scores=scores, train_cfg=options.get('train_cfg')).train()


def test_a_metric_that_validation_lacks_is_named(line_runner: Toy) -> None:
    with pytest.raises(KeyError, match="monitor is 'toy/scor', but validation gives toy/score"):
        line_runner([EarlyStoppingHook(patience=2, monitor='toy/scor')], scores=(0.1, 0.2)).train()


@pytest.mark.parametrize('options', [{'patience': 0}, {'min_delta': -0.1}, {'min_delta': NAN}])
def test_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match='use patience >= 1 epochs or None, min_delta >= 0'):
        EarlyStoppingHook(**options)


def test_without_a_metric_of_its_own_it_watches_what_auto_stands_for(
    line_runner: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = EarlyStoppingHook(patience=1)
    runner = line_runner([hook, CheckpointHook()], epochs=4, scores=(0.3, 0.2, 0.1, 0.1))
    monkeypatch.setattr(type(runner.val_loop.evaluator.metrics[0]), 'chief', 'score', raising=False)
    runner.train()
    assert hook.monitor == 'toy/score'
    assert runner.epoch == 2
