"""Rates of the data path: every way and number of workers is measured as it says, and a step by turns."""

import json
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from lucid.apis import data_rate, load_config, prepare_time
from lucid.apis.data_rate import DataRates, Rate, data_rates
from lucid.apis.prepare_time import StepTime
from lucid.datasets.device_loader import DeviceLoader
from lucid.models.detectors import YOLODetector

TINY = Path(__file__).parents[1] / 'configs' / 'tiny.py'


@pytest.fixture
def config(tmp_path: Path) -> Config:
    torch.set_num_threads(1)
    options = {'data_root': str(tmp_path / 'data'), 'train_dataloader.dataset.num_images': 8, 'image_size': 32}
    return load_config(TINY, options)


@pytest.mark.parametrize('place', ['cpu', pytest.param('cuda', marks=pytest.mark.cuda)])
def test_every_way_and_number_of_workers_is_loaded_as_it_says_up_to_what_the_network_reads(
    config: Config, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders, shapes = [], []
    build, prepare = data_rate.loader_of, YOLODetector.prepare
    monkeypatch.setattr(data_rate, 'loader_of', lambda way, *a, **k: loaders.append(build(way, *a, **k)) or loaders[-1])
    monkeypatch.setattr(
        YOLODetector, 'prepare', lambda self, data: shapes.append((one := prepare(self, data))['inputs'].shape) or one
    )
    found = data_rates(config, workers=(0, 1), step=False, seconds=0.05, rounds=2, device=place)
    assert [(rate.way, rate.workers, len(rate.rounds)) for rate in found.rates] == [
        (way, number, 2) for way in ('host', 'pool', 'files') for number in (0, 1)
    ]
    assert [isinstance(loader, DeviceLoader) for loader in loaders] == [False, False, True, True, True, True]
    assert set(shapes) == {torch.Size((4, 3, 32, 32))}
    assert all(rate > 0 for one in found.rates for rate in one.rounds)
    # Of a pool nothing is sent once it is full; without one, every image of every batch is.
    for rate in found.rates:
        sent = sum(rate.counts.get(name, 0) for name in ('jpeg', 'pixels'))
        assert {'host': not rate.counts, 'pool': rate.counts.get('found', 0) > 4 * sent, 'files': sent > 4}[rate.way]
    assert (found.batch_size, found.image_size, found.steps) == (4, (32, 32), [])


def test_a_step_takes_turns_with_batches_of_every_way(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_time, 'NUM_BATCHES', 2)
    calls: list[str] = []
    prepare = YOLODetector.prepare

    def counted(self, data):
        images = data['inputs']
        calls.append('host' if isinstance(images, torch.Tensor) else images.slots[0].kind)
        return prepare(self, data)

    monkeypatch.setattr(YOLODetector, 'prepare', counted)
    found = data_rates(config, workers=(), seconds=1e-6, rounds=2, precision='fp32', device='cpu')
    assert [(step.way, len(step.rounds)) for step in found.steps] == [
        (way, 2) for way in ('none', 'host', 'pool', 'files')
    ]
    assert not found.rates
    # Of each way two batches first, then one per round; those of `none` were prepared before. The pool is filled first.
    assert calls.count('host') == 2 + 4
    assert calls[-6:] == ['host', 'kept', 'pixels'] * 2


def test_lines_give_medians_the_spread_and_what_a_way_adds() -> None:
    found = DataRates(
        'a.py',
        'a card',
        16,
        (640, 480),
        [Rate('host', 2, [100.0, 300.0, 200.4], {}), Rate('pool', 4, [5000.0], {'found': 9, 'device': 2})],
        [StepTime('none', [10.0, 12.0, 11.0]), StepTime('pool', [11.5, 11.25, 11.75])],
    )
    assert found.lines() == [
        'a.py, batch 16, 480x640 px, a card',
        'host  workers 2: 200 img/s (100 to 300)',
        'pool  workers 4: 5000 img/s (5000 to 5000) 2 device, 9 found',
        'step, batch none: 11.00 ms (10.00 to 12.00), +0.00 ms',
        'step, batch pool: 11.50 ms (11.25 to 11.75), +0.50 ms',
    ]
    written = json.loads(json.dumps(found.to_json()))
    assert written['rates'][1] == {'way': 'pool', 'workers': 4, 'rounds': [5000.0], 'counts': {'found': 9, 'device': 2}}
    assert written['steps'][0]['rounds'] == [10.0, 12.0, 11.0]
    assert 'torch' in written['environment']
