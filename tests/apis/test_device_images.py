"""Training whose images are drawn on the device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config

from lucid.apis import ConfigError, Interrupted, train
from lucid.apis.build import build_runner, complete
from lucid.apis.training_pair import Batches, TrainingPair
from lucid.datasets.device_loader import DeviceLoader
from lucid.engine import checkpoint as files

Make = Callable[..., Config]
Read = Callable[[Config], dict[int, dict[str, Any]]]
ON = {'train_dataloader__device_images': True}


def test_a_run_has_the_batches_of_one_whose_workers_draw_and_nearly_its_first_loss(tiny: Make, losses: Read) -> None:
    drawn, usual = tiny(**ON), tiny()
    runner = train(drawn)
    train(usual)
    assert isinstance(runner.train_dataloader, DeviceLoader)
    for iteration, row in losses(usual).items():
        assert losses(drawn)[iteration]['files'] == row['files']
    # An untrained network ranks anchors by next to nothing: a pixel of another level moves whom a box is assigned to.
    assert losses(drawn)[0]['loss'] == pytest.approx(losses(usual)[0]['loss'], rel=0.05)
    assert len(losses(drawn)) == 10
    # The pictures of the first batches show what the host draws of them.
    names = [sorted(path.name for path in Path(cfg.work_dir, 'pictures').glob('train_*')) for cfg in (drawn, usual)]
    assert names[0] == names[1] == ['train_batch_0.jpg']
    contents = [Path(cfg.work_dir, 'pictures', 'train_batch_0.jpg').read_bytes() for cfg in (drawn, usual)]
    assert contents[0] == contents[1]


def test_a_run_resumed_inside_an_epoch_ends_as_one_that_was_not_stopped(tiny: Make, losses: Read) -> None:
    whole = tiny(**ON, train_dataloader__num_workers=1)
    train(whole)
    halves = tiny(stop_at=7, **ON, default_hooks__checkpoint__every_n_steps=1)
    with pytest.raises(Interrupted):
        train(halves)
    halves.custom_hooks[0]['stop_at'] = None
    train(halves, resume=True)
    assert [row['loss'] for _, row in sorted(losses(halves).items())] == [
        row['loss'] for _, row in sorted(losses(whole).items())
    ]
    states = [files.load(Path(cfg.work_dir, 'last.pth'))['state_dict'] for cfg in (whole, halves)]
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


def test_its_pool_has_the_size_that_the_config_says(tiny: Make) -> None:
    loader = build_runner(complete(tiny(**ON, train_dataloader__device_pool_mb=3)), mode='train').train_dataloader
    assert loader.pool.budget == 3 * 2**20


def test_comparisons_take_the_same_batch_twice(tiny: Make) -> None:
    cfg = tiny(**ON, train_dataloader__device_pool_mb=0)
    pair = TrainingPair(cfg, region='network', steps=4, device='cpu', parts=None)
    batch = Batches(pair.loader, max_epochs=1)(0)
    first, second = pair.side('fp32', 1), pair.side('fp32', 1)
    losses = [side.model.train_step(batch, side.wrapper)['loss'] for side in (first, second)]
    assert losses[0].equal(losses[1])
    assert batch['inputs'].shape == (4, 64, 64, 3)


def test_only_training_images_can_be_drawn_on_the_device(tiny: Make) -> None:
    with pytest.raises(ConfigError, match=r'val_dataloader\.device_images: only training images'):
        build_runner(complete(tiny(val_dataloader__device_images=True)), mode='train')


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'train_dataloader.device_image': True}, "did you mean 'device_images'"),
        ({'train_dataloader.device_pool_mb': -1}, 'device_pool_mb is -1; use a whole number of at least 0'),
    ],
)
def test_what_cannot_be_meant_is_refused(tiny: Make, changes: dict[str, Any], message: str) -> None:
    cfg = tiny()
    cfg.merge_from_dict(changes)
    with pytest.raises(ConfigError, match=message):
        build_runner(cfg, mode='train')


def test_the_function_that_draws_is_no_option_of_a_config(tiny: Make) -> None:
    cfg = tiny()
    cfg.merge_from_dict({'train_dataloader.collate_fn.draw': 'host'})
    with pytest.raises(ConfigError, match='draw is no key of detection_collate'):
        build_runner(cfg, mode='train')


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'device_images': 'yes'}, r"device_images='yes' is neither True nor False"),
        ({'device_pool_mb': 10}, r'device_pool_mb does nothing without train_dataloader\.device_images=True'),
        ({'dataset__cache_mb': -3}, r'dataset\.cache_mb is -3; use a whole number of at least 0'),
    ],
)
def test_words_about_images_that_would_be_passed_over_are_refused(
    tiny: Make, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_runner(
            complete(tiny(**{f'train_dataloader__{key}': value for key, value in options.items()})), mode='train'
        )
