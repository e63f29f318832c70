import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lucid.engine import checkpoint as files

ROOT = Path(__file__).parents[2]
TOOL = ROOT / 'tools' / 'train.py'
TINY = ROOT / 'tests' / 'configs' / 'tiny.py'


@pytest.fixture(scope='module')
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('shapes')


@pytest.fixture
def arguments(tmp_path: Path, data_root: Path) -> list[str]:
    return [str(TINY), '--work-dir', str(tmp_path / 'run'), '--cfg-options', f'data_root={data_root}']


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, 'argv', [str(TOOL), *arguments])
    return runpy.run_path(str(TOOL))['main']()


def test_it_trains_in_bfloat16_and_returns_zero(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tmp_path: Path
) -> None:
    flags = ['train_cfg.max_epochs=1', '--amp', '--seed', '3']
    assert call(monkeypatch, *arguments, *flags) == 0
    meta = files.load(tmp_path / 'run' / 'best.pth')['meta']
    assert meta['seed'] == 3
    assert meta['cfg']['optim_wrapper']['type'] == 'AmpOptimWrapper'
    assert meta['cfg']['train_dataloader']['dataset']['seed'] == 3


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--launcher', 'pytorch'], 'nothing launched this process; use torchrun'),
        (['--cfg-options', 'model.scael=s'], "did you mean 'scale'?"),
        (['--cfg-options', 'log_level=FOO'], 'log_level is'),
        (['--cfg-options', 'default_hooks.ema.decay=2.0'], 'use 0 <= decay < 1'),
        (['--cfg-options', 'param_scheduler.lrf=-1.0'], 'use end > 0, lrf >= 0'),
        (
            ['--cfg-options', 'train_dataloader.drop_last=True', 'train_dataloader.batch_size=32'],
            'lower train_dataloader.batch_size, or set train_dataloader.drop_last=False',
        ),
        (
            ['--cfg-options', 'train_cfg.max_epochs=1', 'optim_wrapper.optimizer.lr=1e30', 'param_scheduler=None'],
            'not finite in iteration',
        ),
        (['--cfg-options', 'epochs=3'], "did you mean 'train_cfg.max_epochs'?"),
        (['--cfg-options', 'max_epochs=3'], "did you mean 'train_cfg.max_epochs'?"),
        (['--cfg-options', 'default_hooks.early_stopping.monitor=coco/map'], "did you mean 'coco/mAP'?"),
        (['--load-from', ''], 'name a checkpoint file, or set it to None'),
        (['--cfg-options', 'load_from='], 'name a checkpoint file, or set it to None'),
        (['--load-from', 'nowhere.pth'], 'no checkpoint at nowhere.pth'),
        (
            ['--cfg-options', 'effective_batch_size=10'],
            'the nearest are 8 and 12, or set train_dataloader.batch_size=2',
        ),
        (['--cfg-options', "model.frozen=['backbon']"], "the nearest is 'backbone'"),
        (['--cfg-options', 'default_hooks.early_stopping.patience=1'], 'validation comes every 2'),
        (['--resume'], 'no checkpoint at'),
        (['--resume', 'nowhere.pth'], 'no checkpoint at nowhere.pth'),
    ],
)
def test_a_mistake_is_one_message_without_a_trace(
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    capsys: pytest.CaptureFixture,
    flags: list[str],
    message: str,
) -> None:
    assert call(monkeypatch, *arguments, *flags) == 2
    shown = capsys.readouterr().err
    assert shown.startswith('error: ')
    assert message in shown
    assert 'Traceback' not in shown


def test_a_run_that_is_there_is_replaced_by_that_word_alone(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    last = tmp_path / 'run' / 'last.pth'
    last.parent.mkdir()
    last.write_bytes(b'an earlier run')
    flags = ['train_cfg.max_epochs=1', 'default_hooks.pictures=None']
    assert call(monkeypatch, *arguments, *flags) == 2
    assert 'replace it with --overwrite' in capsys.readouterr().err
    assert last.read_bytes() == b'an earlier run'
    assert call(monkeypatch, *arguments, *flags, '--overwrite') == 0
    assert files.load(last)['meta']['epoch'] == 1


def test_help_shows_examples(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match='0'):
        call(monkeypatch, '--help')
    assert 'torchrun' in capsys.readouterr().out


def test_a_killed_process_resumes_where_it_was(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """cases.md 24: SIGKILL, so that nothing can be tidied up."""
    last = tmp_path / 'run' / 'last.pth'
    flags = ['train_cfg.val_interval=40', 'default_hooks.checkpoint.every_n_steps=2']
    process = subprocess.Popen(
        [sys.executable, str(TOOL), *arguments, 'train_cfg.max_epochs=40', *flags], stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while not last.is_file() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    place = files.load(last)['meta']['iter']
    assert place > 0
    epochs = place // 5 + 1  # to the end of the epoch it was in
    assert call(monkeypatch, *arguments, f'train_cfg.max_epochs={epochs}', *flags, '--resume') == 0
    assert f'iter: {place}' in capsys.readouterr().out
    assert files.load(last)['meta']['iter'] == 5 * epochs


WORKERS = ['train_dataloader.num_workers=1', 'val_dataloader.num_workers=1']


def test_workers_end_without_a_word(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), *arguments, 'train_cfg.max_epochs=1', *WORKERS],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'Traceback' not in done.stderr
    assert 'killed by signal' not in done.stderr


def test_a_signal_to_the_whole_group_ends_as_interrupted(arguments: list[str], tmp_path: Path) -> None:
    last = tmp_path / 'run' / 'last.pth'
    flags = ['train_cfg.val_interval=400', 'train_cfg.max_epochs=400', 'default_hooks.checkpoint.every_n_steps=2']
    process = subprocess.Popen(
        [sys.executable, str(TOOL), *arguments, *flags, *WORKERS],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not last.is_file() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGTERM)
        _, shown = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, shown[-3000:]
    assert 'killed by signal' not in shown


def test_two_processes_share_the_effective_batch_start_from_weights_and_stop_together(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tmp_path: Path
) -> None:
    """Nothing is learned with this rate, so that no validation is better than the first."""
    assert call(monkeypatch, *arguments, 'train_cfg.max_epochs=1', 'default_hooks.pictures=None') == 0
    start = tmp_path / 'start.pth'
    (tmp_path / 'run' / 'last.pth').rename(start)
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''}
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2', str(TOOL)]
    flags = [
        *('effective_batch_size=16', 'auto_scale_lr.enable=True', 'train_dataloader.sampler.type=RepeatFactorSampler'),
        *('train_cfg.max_epochs=5', 'train_cfg.val_interval=1', 'default_hooks.early_stopping.patience=1'),
        *("model.frozen=['backbone']", 'optim_wrapper.optimizer.lr=1e-12', 'default_hooks.pictures=None'),
    ]
    done = subprocess.run(
        [*command, *arguments, *flags, '--load-from', str(start), '--launcher', 'pytorch'],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'early stopping after epoch 2 of 5: coco/mAP' in done.stdout
    assert '16 images per optimizer step (4 per batch x 2 micro-batches x 2 processes)' in done.stdout
    assert f'weights of {start}' in done.stdout
    content, before = files.load(tmp_path / 'run' / 'last.pth'), files.load(start)['ema']['shadow']
    assert content['meta']['epoch'] == 2
    assert content['meta']['cfg']['optim_wrapper']['accumulative_counts'] == 2
    assert all(
        value.equal(before[name]) for name, value in content['state_dict'].items() if 'backbone.to_p3.0.c' in name
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason='strict fails where there is no card')
def test_strict_without_a_card_is_one_line(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    hook = "custom_hooks=[{'type':'CaptureHook','strict':True,'regions':[{'type':'StepRegion'}]}]"
    assert call(monkeypatch, *arguments, hook) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith('error: strict: step: there is no CUDA card; ')
