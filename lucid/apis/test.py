"""Evaluating a checkpoint."""

from pathlib import Path
from typing import Any

from mmengine.config import Config

from lucid.apis.build import build_runner, complete
from lucid.apis.data import keypoint_names
from lucid.apis.outputs import file_problem, folder_problem
from lucid.apis.processes import joined
from lucid.apis.signatures import signature_of
from lucid.apis.validate import ConfigError
from lucid.engine import checkpoint as files
from lucid.engine.checkpoint import CheckpointError, Weights
from lucid.engine.distributed import unwrapped
from lucid.registry import METRICS
from lucid.structures.detections import PATHS


def test(
    cfg: Config,
    checkpoint: str | Path,
    *,
    weights: Weights = 'auto',  # noqa: PT028 (no test of pytest's)
    path: str | None = None,  # noqa: PT028
    out: str | Path | None = None,  # noqa: PT028
    show_dir: str | Path | None = None,  # noqa: PT028
) -> dict[str, Any]:
    """Evaluate a checkpoint on the config's test set, or its validation set.

    Args:
        cfg: What ``load_config`` returned, not changed.
        checkpoint: File that training wrote.
        weights: Averaged or trained ones; ``'auto'`` takes the averaged where there are any.
        path: ``'one_to_one'``, ``'nms'`` or ``'both'``, what the metrics evaluate; None leaves it to the config.
        out: Where to write the detections as COCO results JSON: those of the one path, of both the end-to-end ones.
        show_dir: Where to draw each image with ground truth and detections, and in ``figures`` below it the charts and
            the worst images.

    Returns:
        The metrics by name.

    Raises:
        ConfigError: The config cannot be meant, its data is missing or disagrees with it, or there is no writing to
            ``out`` or ``show_dir``.
        CheckpointError: The checkpoint is damaged, or belongs to another model or other classes.
    """
    content = files.load(checkpoint)
    cfg = complete(cfg)
    source = 'test' if cfg.get('test_dataloader') is not None else 'val'
    problems = (out is not None and file_problem(out)) or (show_dir is not None and folder_problem(show_dir))
    if problems:
        raise ConfigError(problems)
    if path is not None:
        _set(cfg, f'{source}_evaluator', 'paths', PATHS if path == 'both' else (path,), what='takes paths')
    if out is not None:
        _set(cfg, f'{source}_evaluator', 'outfile', str(out), what='writes detections')
    if show_dir is not None:
        hooks = cfg.setdefault('default_hooks', {})
        hooks['pictures'] = {**(hooks.get('pictures') or {'type': 'VisualizationHook'}), 'test_dir': str(show_dir)}
        figures = hooks.get('figures') or {'type': 'EvaluationFiguresHook'}
        hooks['figures'] = {**figures, 'test_dir': str(Path(show_dir, 'figures'))}
    with joined(cfg):
        runner = build_runner(cfg, mode='test')
        ours, theirs = list(getattr(runner._test_dataloader.dataset, 'classes', ())), list(content['classes'])
        if ours != theirs:
            raise CheckpointError(
                f'{checkpoint} knows the classes {theirs}, the data has {ours}; test on data with the same classes'
            )
        points, their_points = keypoint_names(runner._test_dataloader.dataset), tuple(content.get('keypoint_names', ()))
        if points and their_points and points != their_points:
            raise CheckpointError(
                f'{checkpoint} knows the keypoints {list(their_points)}, the data has {list(points)}; test on data '
                'with the same keypoints'
            )
        files.load_weights(unwrapped(runner.model), content, weights)
        try:
            _ = runner.test_loop  # now, not in test(): what is wrong with its metrics is the config's fault
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return runner.test()


def _set(cfg: Config, evaluator: str, key: str, value: Any, *, what: str) -> None:
    """Set ``key`` of each metric that has one."""
    if cfg.get(evaluator) is None:
        raise ConfigError(f'{cfg.filename}: there is no {evaluator}, which this needs; add it')
    stated = cfg[evaluator]
    metrics = stated if isinstance(stated, list | tuple) else [stated]
    able = [metric for metric in metrics if key in signature_of(METRICS.get(metric['type'])).names]
    if not able:
        raise ConfigError(f'{cfg.filename}: no metric of {evaluator} {what}; add CocoMetric')
    for metric in able:
        metric[key] = value
