"""What is easily forgotten about a run, said at its start."""

from lucid.engine.distributed import unwrapped
from lucid.engine.runner import Runner


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
