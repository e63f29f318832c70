import json
import runpy
import sys
from pathlib import Path

import pytest

from lucid.apis.analysis import analyze

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'config.py'
    path.write_text(
        "image_size = 64\nmodel = dict(type='YOLODetector', scale='n', loss=dict(type='torch.nn.Identity'))\n"
    )
    return path


@pytest.fixture
def call(monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', ['analyze.py', *map(str, arguments)])
        return runpy.run_path(str(ROOT / 'tools' / 'analyze.py'))['main']()

    return run


def test_the_tool_prints_totals_and_writes_json(config, call, capsys, tmp_path):
    out = tmp_path / 'cost.json'
    assert call(config, '--image-size', 640, '--json', out) == 0
    shown = capsys.readouterr().out
    assert '2,437,552' in shown
    assert '5.4270' in shown
    cost = json.loads(out.read_text())
    assert cost['params'] == 2_437_552
    assert cost['layers'][0] == {
        'name': 'backbone.to_p3.0',
        'kind': 'ConvUnit',
        'output_shape': [16, 320, 320],
        'params': 464,
        'macs': 16 * 320 * 320 * 29,
        'elements': 3 * 640 * 640 + 16 * 320 * 320,
        'bytes_floor': 10 * (3 * 640 * 640 + 16 * 320 * 320),
    }


def test_size_and_classes_come_from_the_config_unless_stated(config):
    assert analyze(config).layers[0].output_shape == (16, 32, 32)
    assert analyze(config, image_size=(64, 96)).layers[0].output_shape == (16, 32, 48)
    fewer = analyze(config, num_classes=3).params
    config.write_text(config.read_text().replace("scale='n'", "scale='n', num_classes=3"))
    assert analyze(config).params == fewer < 2_437_552


@pytest.mark.parametrize(
    ('head', 'options', 'params', 'gflops'),
    [
        ('SegmentHead', {}, 2_717_284, 8.9974),
        ('OrientedHead', {'image_size': 1024, 'num_classes': 15}, 2_563_976, 14.6771),
        ('KeypointHead', {}, 2_548_204, 5.5508),
    ],
)
def test_every_head_can_be_counted(tmp_path, head, options, params, gflops):
    path = tmp_path / 'config.py'
    path.write_text(f"model = dict(type='YOLODetector', scale='n', head=dict(type='{head}'))\n")
    cost = analyze(path, **options)
    assert cost.params == params
    assert cost.gflops == pytest.approx(gflops, abs=1e-4)
    if head == 'KeypointHead':
        assert analyze(path, num_classes=1).params == 2_524_346
        assert analyze(path, num_keypoints=5).params < params
    else:
        with pytest.raises(ValueError, match=f'{head} predicts no keypoints'):
            analyze(path, num_keypoints=5)


def test_a_size_that_cannot_be_is_refused(config):
    with pytest.raises(ValueError, match='multiple of 32; change image_size'):
        analyze(config, image_size=100)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['none.py'], 'none.py does not exist'),
        (['config.py', '--image-size', '100'], '100x100: both sides must be a multiple of 32'),
        (['config.py', '--image-size', '0'], '0x0: both sides must be a multiple of 32'),
        (['config.py', '--num-classes', '-1'], 'num_classes=-1'),
        (['config.py', '--cfg-options', 'model.scael=s'], "did you mean 'scale'?"),
        (['config.py', '--json', '.'], 'Is a directory'),
    ],
)
def test_a_mistake_is_one_message(config, call, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(config.parent)
    assert call(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith('error: ')
    assert message in shown.err


def test_options_change_the_config(config, call, capsys):
    assert call(config, '--cfg-options', 'model.num_classes=3') == 0
    assert f'{analyze(config, num_classes=3).params:,}' in capsys.readouterr().out
