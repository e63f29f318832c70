"""How many images an optimizer step takes, from one key, on any number of cards."""

from mmengine.config import Config
from mmengine.dist import get_world_size

from lucid.apis.validate import ConfigError


def settle_batch(cfg: Config) -> None:
    """Write ``optim_wrapper.accumulative_counts`` so that a step takes ``effective_batch_size`` images.

    Args:
        cfg: Changed in place; untouched where it states no ``effective_batch_size``.

    Raises:
        ConfigError: A whole number of micro-batches does not give that many images, or the config states another.
    """
    wanted = cfg.get('effective_batch_size')
    if wanted is None:
        return
    batch, processes = cfg.train_dataloader.get('batch_size', 1), get_world_size()
    together = batch * processes
    how = f'train_dataloader.batch_size {batch} on {processes} process{"es" if processes > 1 else ""}'
    counts, rest = divmod(wanted, together)
    if rest:
        near = [str(count * together) for count in (counts, counts + 1) if count]
        smaller = (
            max(size for size in range(1, batch + 1) if wanted % (size * processes) == 0)
            if not (wanted % processes)
            else None
        )
        also = f', or set train_dataloader.batch_size={smaller}' if smaller else ''
        raise ConfigError(
            f'{cfg.filename}: effective_batch_size is {wanted}, no multiple of {together} ({how}); the nearest '
            f'{"are" if len(near) > 1 else "is"} {" and ".join(near)}{also}'
        )
    stated = cfg.optim_wrapper.get('accumulative_counts')
    if stated is None and counts > 1:
        cfg.optim_wrapper['accumulative_counts'] = counts
    elif (stated or 1) != counts:
        raise ConfigError(
            f'{cfg.filename}: optim_wrapper.accumulative_counts is {stated}, but effective_batch_size {wanted} needs '
            f'{counts} with {how}; state one of the two'
        )
