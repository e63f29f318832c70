"""Evaluating a checkpoint."""

from pathlib import Path
from typing import Any

from mmengine.config import Config

from lucid.apis.build import build_runner, complete
from lucid.apis.processes import joined
from lucid.apis.signatures import signature_of
from lucid.apis.validate import ConfigError
from lucid.engine import checkpoint as files
from lucid.engine.checkpoint import CheckpointError, Weights
from lucid.engine.hooks.checkpoint import unwrapped
from lucid.registry import METRICS


def test(
    cfg: Config,
    checkpoint: str | Path,
    *,
    weights: Weights = 'auto',  # noqa: PT028 (no test of pytest's)
    out: str | Path | None = None,  # noqa: PT028
    show_dir: str | Path | None = None,  # noqa: PT028
) -> dict[str, Any]:
    """Evaluate a checkpoint on the config's test set, or its validation set.

    Args:
        cfg: What ``load_config`` returned, not changed.
        checkpoint: File that training wrote.
        weights: Averaged or trained ones; ``'auto'`` takes the averaged where there are any.
        out: Where to write the detections as COCO results JSON.
        show_dir: Where to draw each image with ground truth and detections.

    Returns:
        The metrics by name.

    Raises:
        ConfigError: The config cannot be meant, or its data is missing or disagrees with it.
        CheckpointError: The checkpoint is damaged, or belongs to another model or other classes.
    """
    content = files.load(checkpoint)
    cfg = complete(cfg)
    source = 'test' if cfg.get('test_dataloader') is not None else 'val'
    if out is not None:
        _write_to(cfg, f'{source}_evaluator', out)
    if show_dir is not None:
        hooks = cfg.setdefault('default_hooks', {})
        hooks['pictures'] = {**(hooks.get('pictures') or {'type': 'VisualizationHook'}), 'test_dir': str(show_dir)}
    with joined(cfg):
        runner = build_runner(cfg, mode='test')
        ours, theirs = list(getattr(runner._test_dataloader.dataset, 'classes', ())), list(content['classes'])
        if ours != theirs:
            raise CheckpointError(
                f'{checkpoint} knows the classes {theirs}, the data has {ours}; test on data with the same classes'
            )
        files.load_weights(unwrapped(runner.model), content, weights)
        return runner.test()


def _write_to(cfg: Config, key: str, out: str | Path) -> None:
    """Set ``outfile`` of each metric that has one."""
    evaluator = cfg[key]
    metrics = evaluator if isinstance(evaluator, list | tuple) else [evaluator]
    able = [metric for metric in metrics if 'outfile' in signature_of(METRICS.get(metric['type'])).names]
    if not able:
        raise ConfigError(f'{cfg.filename}: no metric of {key} writes detections; add CocoMetric')
    for metric in able:
        metric['outfile'] = str(out)
