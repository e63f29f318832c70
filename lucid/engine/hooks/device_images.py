"""How the images that are drawn on the device came there."""

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.registry import HOOKS
from lucid.structures.image_pool import MEGA, ImagePool

REASONS = ('format', 'colors', 'turned', 'broken', 'drawn')
"""Why workers decode an image instead of sending its file."""
PROBLEMS = ('broken', 'refused', 'read')
"""What costs time and should not be there."""


@HOOKS.register_module()
class DeviceImagesHook(Hook):
    """Logs after each epoch how often an image was in the pool, decoded on the device, or on the host and why.

    At the end ``work_dir/device_images.json`` has the counts since the run began or was resumed, the first
    process's. Without ``train_dataloader.device_images`` there is nothing to count, and it does nothing.
    """

    def __init__(self) -> None:
        self._before: Counter[str] = Counter()

    def before_train_epoch(self, runner: Runner) -> None:
        """Remember where the epoch begins."""
        pool = _pool(runner)
        if pool is not None:
            self._before = Counter(pool.counts)

    def after_train_epoch(self, runner: Runner) -> None:
        """Log what the epoch took."""
        pool = _pool(runner)
        if pool is None:
            return
        counts = Counter(pool.counts)
        counts.subtract(self._before)
        level = logging.WARNING if any(counts[name] for name in PROBLEMS) else logging.INFO
        runner.logger.log(level, f'images on the device, epoch {runner.epoch + 1}: {told(pool, counts)}')

    @master_only
    def after_train(self, runner: Runner) -> None:
        """Write the counts of the run."""
        pool = _pool(runner)
        if pool is not None:
            found = {'budget': pool.budget, 'bytes': pool.num_bytes, 'images': len(pool), 'counts': dict(pool.counts)}
            Path(runner.work_dir, 'device_images.json').write_text(json.dumps(found, indent=2) + '\n')


def told(pool: ImagePool, counts: Mapping[str, int]) -> str:
    """What the counts of some time say, and what the pool holds."""
    reasons = [f'{counts[name]} {name}' for name in REASONS if counts.get(name)]
    sentences = [
        f'{counts.get("found", 0)} times in the pool',
        f'{counts.get("device", 0)} decoded there',
        f'{counts.get("pixels", 0)} sent as pixels' + (f' ({", ".join(reasons)})' if reasons else ''),
    ]
    more = {
        'refused': "refused by the card's decoder",
        'late': 'dropped before they were used',
        'read': 'read while the card waited',
        'dropped': 'dropped to make room',
    }
    sentences += [f'{counts[name]} {text}' for name, text in more.items() if counts.get(name)]
    room = f'{pool.num_bytes / MEGA:.0f} of {pool.budget / MEGA:.0f} MB'
    return f'{", ".join(sentences)}; the pool holds {len(pool)} images, {room}'


def _pool(runner: Runner) -> ImagePool | None:
    return getattr(runner.train_dataloader, 'pool', None)
