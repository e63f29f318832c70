"""What is easily forgotten about a run, said at its start."""

import torch

from lucid.engine.distributed import unwrapped
from lucid.engine.runner import Runner

SHOWN = 8  # classes


def log_start(runner: Runner) -> None:
    """Log on what a run trains: device, classes, number of images, work directory."""
    device = next(unwrapped(runner.model).parameters()).device
    card = f' ({torch.cuda.get_device_name(device)})' if device.type == 'cuda' else ''
    processes = f' in {runner.world_size} processes' if runner.world_size > 1 else ''
    train = runner.train_dataloader.dataset
    classes = getattr(train, 'classes', ())
    names = ', '.join(classes[:SHOWN]) + (', ...' if len(classes) > SHOWN else '')
    val = 'no validation' if runner.val_loop is None else f'{len(runner.val_dataloader.dataset)} to validate'
    runner.logger.info(
        f'training on {device}{card}{processes}: {len(train)} images, {val}; '
        f'{len(classes)} class{"" if len(classes) == 1 else "es"}{f": {names}" if names else ""}; '
        f'work dir: {runner.work_dir}'
    )


def log_remarks(runner: Runner) -> None:
    """Log which parts of the model do not train, and which images come more often, where a config chose so."""
    model, sampler = unwrapped(runner.model), runner.train_dataloader.sampler
    if frozen := getattr(model, 'frozen', ()):
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
        still, total = sum(size for size, trains in sizes if not trains), sum(size for size, _ in sizes)
        runner.logger.info(f'frozen: {", ".join(frozen)}: {still:,} of {total:,} parameters')
        if runner._load_from is None and getattr(model, 'init_cfg', None) is None:
            runner.logger.warning('frozen parts stay random: there are no weights; set load_from, or model.frozen=()')
    if hasattr(sampler, 'describe'):
        runner.logger.info(sampler.describe())
