import importlib.util
import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from lucid.engine.checkpoint import save
from lucid.registry import MODELS

TOOL = Path(__file__).parents[2] / 'tools' / 'predict.py'
MODEL = {'type': 'YOLODetector', 'scale': 'n', 'num_classes': 1}


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the tool in an empty folder and returns its exit code."""
    spec = importlib.util.spec_from_file_location('predict_tool', TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, 'argv', ['predict.py', *map(str, arguments)])
        try:
            return tool.main()
        except SystemExit as end:
            return end.code

    return call


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    state = MODELS.build(MODEL).state_dict()
    config = {'model': MODEL, 'image_size': 64}
    save({'meta': {'cfg': config}, 'classes': ['bolt'], 'state_dict': state}, tmp_path / 'best.pth')
    return tmp_path / 'best.pth'


def photo(path):
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8))
    return path


def test_help_shows_an_example(run, capsys):
    assert run('--help') == 0
    assert 'python tools/predict.py photo.jpg --checkpoint' in capsys.readouterr().out


def test_without_a_checkpoint_it_says_that_there_are_no_weights_and_how_to_train(run, capsys, tmp_path):
    assert run(photo(tmp_path / 'a.png')) == 2
    message = capsys.readouterr().err
    assert 'without pretrained weights' in message
    assert 'tools/train.py configs/yolo_capture.py' in message


def test_an_image_is_drawn_and_written_where_the_output_says(run, capsys, tmp_path, checkpoint):
    photo(tmp_path / 'a.png')
    assert run('a.png', '--checkpoint', checkpoint, '--device', 'cpu', '--score', 0) == 0
    out = tmp_path / 'work_dirs' / 'predictions'
    (record,) = json.loads((out / 'predictions.json').read_text())
    assert (record['file'], record['width'], record['height']) == ('a.png', 80, 60)
    assert record['detections'][0]['class'] == 'bolt'
    assert (out / 'a.png').is_file()
    assert str(Path('work_dirs', 'predictions', 'predictions.json')) in capsys.readouterr().out


def test_the_path_is_that_of_the_flag(run, capsys, tmp_path, checkpoint):
    photo(tmp_path / 'a.png')
    found = {}
    for path in ('one_to_one', 'nms'):
        assert run('a.png', '--checkpoint', checkpoint, '--device', 'cpu', '--score', 0, '--path', path) == 0
        (record,) = json.loads((tmp_path / 'work_dirs' / 'predictions' / 'predictions.json').read_text())
        found[path] = record['detections']
    assert found['one_to_one'] != found['nms']
    assert run('a.png', '--checkpoint', checkpoint, '--path', 'soft') == 2
    assert "invalid choice: 'soft'" in capsys.readouterr().err


def test_an_unreadable_file_does_not_stop_the_others_and_shows_in_the_exit_code(run, capsys, tmp_path, checkpoint):
    (tmp_path / 'in').mkdir()
    photo(tmp_path / 'in' / 'a.png')
    (tmp_path / 'in' / 'b.jpg').touch()
    assert run('in', '--checkpoint', checkpoint, '--device', 'cpu', '--out', 'found', '--batch-size', 4) == 1
    assert len(json.loads((tmp_path / 'found' / 'predictions.json').read_text())) == 1
    assert 'in/b.jpg' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (('none.png', '--checkpoint', 'best.pth'), 'none.png'),
        (('a.png', '--checkpoint', 'none.pth'), 'none.pth'),
        (('a.png', '--checkpoint', 'best.pth', '--device', 'cuda:99'), 'cuda:99'),
        (('a.png', '--checkpoint', 'best.pth', '--batch-size', '0'), '--batch-size 0'),
        (('a.png', '--checkpoint', 'best.pth', '--device', 'mps'), "device 'mps' is none that lucid runs on"),
        (('a.png', '--checkpoint', 'best.pth', '--score', '7'), '--score 7: give a number from 0 to 1'),
        (('a.png', '--checkpoint', 'best.pth', '--score', 'nan'), '--score nan'),
        (('a.png', '--checkpoint', 'best.pth', '--device', 'cpu', '--out', 'best.pth'), 'best.pth is a file'),
        (('a.png', '--checkpoint', 'best.pth', '--device', 'cpu', '--out', 'a.png/deep'), 'a.png is a file'),
        (('a.png', '--checkpoint', 'best.pth', '--config', 'none.py'), 'none.py'),
    ],
)
def test_a_mistake_is_one_line_on_stderr(run, capsys, tmp_path, checkpoint, arguments, message):
    photo(tmp_path / 'a.png')
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert 'Traceback' not in error
