import json
import logging
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lucid.engine.hooks import DeviceImagesHook
from lucid.engine.hooks.device_images import told
from lucid.structures.image_pool import ImagePool


@pytest.fixture
def runner(tmp_path: Path) -> SimpleNamespace:
    pool = ImagePool(4, budget_mb=2, read=lambda index: None)
    pool.put(1, torch.zeros(3, 512, 512, dtype=torch.uint8))
    lines: list[tuple[int, str]] = []
    return SimpleNamespace(
        train_dataloader=SimpleNamespace(pool=pool),
        logger=SimpleNamespace(log=lambda level, text: lines.append((level, text)), lines=lines),
        epoch=2,
        work_dir=str(tmp_path),
    )


def test_each_epoch_is_counted_by_itself_and_the_run_as_a_whole(runner: SimpleNamespace, tmp_path: Path) -> None:
    hook, counts = DeviceImagesHook(), runner.train_dataloader.pool.counts
    counts.update(found=100, device=7, jpeg=7)
    hook.before_train_epoch(runner)
    counts.update(found=40, device=2, jpeg=2, pixels=4, format=3, turned=1)
    hook.after_train_epoch(runner)
    hook.after_train(runner)
    assert runner.logger.lines == [
        (
            logging.INFO,
            'images on the device, epoch 3: 40 times in the pool, 2 decoded there, 4 sent as pixels (3 format, '
            '1 turned); the pool holds 1 images, 1 of 2 MB',
        )
    ]
    written = json.loads((tmp_path / 'device_images.json').read_text())
    assert written == {
        'budget': 2**21,
        'bytes': 3 * 2**18,
        'images': 1,
        'counts': {'found': 140, 'device': 9, 'jpeg': 9, 'pixels': 4, 'format': 3, 'turned': 1},
    }


@pytest.mark.parametrize('name', ['broken', 'refused', 'read'])
def test_what_costs_time_and_should_not_be_there_is_a_warning(runner: SimpleNamespace, name: str) -> None:
    hook = DeviceImagesHook()
    runner.train_dataloader.pool.counts[name] += 5  # in an epoch before
    hook.before_train_epoch(runner)
    hook.after_train_epoch(runner)
    runner.train_dataloader.pool.counts[name] += 1
    hook.after_train_epoch(runner)
    assert [level for level, _ in runner.logger.lines] == [logging.INFO, logging.WARNING]


def test_a_loader_whose_workers_draw_has_nothing_to_tell(runner: SimpleNamespace, tmp_path: Path) -> None:
    runner.train_dataloader = SimpleNamespace()
    hook = DeviceImagesHook()
    for call in (hook.before_train_epoch, hook.after_train_epoch, hook.after_train):
        call(runner)
    assert not runner.logger.lines
    assert not list(tmp_path.iterdir())


def test_every_way_that_an_image_can_take_has_its_words(runner: SimpleNamespace) -> None:
    ways = ('found', 'device', 'pixels', 'format', 'colors', 'turned', 'broken', 'drawn', 'refused', 'late', 'read')
    counts = Counter({name: 11 + place for place, name in enumerate(ways)}, dropped=40)
    text = told(runner.train_dataloader.pool, counts)
    assert all(str(count) in text for count in counts.values())
