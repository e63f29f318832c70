import runpy
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from lucid import apis

ROOT = Path(__file__).parents[2]
TOOL = ROOT / 'tools' / 'test.py'
TINY = ROOT / 'tests' / 'configs' / 'tiny.py'


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, 'argv', [str(TOOL), *arguments])
    return runpy.run_path(str(TOOL))['main']()


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained checkpoint, best.pth, and its data, shapes/."""
    folder = tmp_path_factory.mktemp('run')
    options = {'data_root': str(folder / 'shapes'), 'train_cfg.max_epochs': 1}
    apis.train(apis.override(apis.load_config(TINY, options), work_dir=folder))
    return folder


def test_it_evaluates_and_writes_and_returns_zero(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path, run: Path
) -> None:
    data = f'data_root={run / "shapes"}'
    flags = ['--work-dir', str(tmp_path / 'test'), '--out', str(tmp_path / 'o.json'), '--show-dir', str(tmp_path / 's')]
    assert call(monkeypatch, str(TINY), str(run / 'best.pth'), *flags, '--cfg-options', data) == 0
    assert (tmp_path / 'o.json').is_file()
    assert len(list((tmp_path / 's').glob('*.png'))) == 8
    assert {path.name for path in (tmp_path / 's/figures').iterdir()} >= {'confusion_matrix.png', 'class_ap.png'}
    shown = capsys.readouterr().out
    assert 'coco/mAP50' in shown
    assert 'coco/nms/mAP50' in shown
    heading = next(line for line in shown.splitlines() if line.startswith('class '))
    assert ' '.join(heading.split()) == 'class images boxes AP AP50 AP75 AR nms AP nms AP50 nms AP75 nms AR'


def test_one_path_alone_is_evaluated_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path, run: Path
) -> None:
    flags = ['--work-dir', str(tmp_path), '--path', 'one_to_one', '--cfg-options', f'data_root={run / "shapes"}']
    assert call(monkeypatch, str(TINY), str(run / 'best.pth'), *flags) == 0
    shown = capsys.readouterr().out
    assert 'coco/mAP50' in shown
    assert 'nms' not in shown


def test_a_missing_checkpoint_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert call(monkeypatch, str(TINY), 'nowhere.pth') == 2
    assert capsys.readouterr().err.startswith('error: no checkpoint at nowhere.pth')


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--out', 'folder'], 'folder is a folder; give the name of a file'),
        (['--show-dir', 'file'], 'file is a file; choose another folder'),
        (['--work-dir', 'file'], "work_dir is 'file', but "),
        (['--work-dir', 'file/deep'], "work_dir is 'file/deep', but "),
        (['--cfg-options', 'val_evaluator=None'], 'there is no val_evaluator'),
        (['--out', 'o.json', '--cfg-options', 'val_evaluator=None'], 'there is no val_evaluator'),
    ],
)
def test_a_place_or_a_metric_that_cannot_be_is_one_message_before_the_evaluation(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    tmp_path: Path,
    run: Path,
    flags: list[str],
    message: str,
) -> None:
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'file').touch()
    monkeypatch.chdir(tmp_path)
    data = [] if '--cfg-options' in flags else ['--cfg-options']
    assert call(monkeypatch, str(TINY), str(run / 'best.pth'), *flags, *data, f'data_root={run / "shapes"}') == 2
    shown = capsys.readouterr()
    assert shown.err.startswith('error: ')
    assert message in shown.err
    assert 'mAP' not in shown.out
    assert {path.name for path in tmp_path.iterdir()} <= {'folder', 'file', 'work_dirs'}


def test_an_image_damaged_in_the_middle_is_one_message_even_from_a_worker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path, run: Path
) -> None:
    """Its header and its end are right, so that only reading it shows the damage."""
    shutil.copytree(run / 'shapes', tmp_path / 'shapes')
    file = sorted((tmp_path / 'shapes').rglob('*.jpg'))[-1]
    size = cv2.imread(str(file)).shape
    png = cv2.imencode('.png', np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8))[1].tobytes()
    file.write_bytes(png[:200] + b'damage' + png[206:])
    data = [f'data_root={tmp_path / "shapes"}', 'val_dataloader.num_workers=1']
    flags = ['--work-dir', str(tmp_path / 'test'), '--cfg-options', *data]
    assert call(monkeypatch, str(TINY), str(run / 'best.pth'), *flags) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f'error: {file}: ')
