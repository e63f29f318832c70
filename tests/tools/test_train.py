import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def test_two_processes_train_as_one(arguments: list[str], tmp_path: Path) -> None:
    """On CPUs, over gloo: each sees its half of the epoch, the gradients are averaged, the first one writes."""
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''}
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2', str(TOOL)]
    done = subprocess.run(
        [*command, *arguments, 'train_cfg.max_epochs=1', '--launcher', 'pytorch'],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    meta = files.load(tmp_path / 'run' / 'last.pth')['meta']
    assert meta['batches_per_epoch'] == 3  # 20 images over 2 processes in batches of 4
    assert 'coco/mAP' in done.stdout
