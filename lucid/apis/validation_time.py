"""What a validation takes, part by part, and whether its variants find the same."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lucid.apis.build import build_runner, complete
from lucid.apis.validate import ConfigError
from lucid.capture import EvalRegion, Parts, first_difference
from lucid.engine import checkpoint as files
from lucid.engine.distributed import unwrapped
from lucid.engine.host_workers import HostWorkers
from lucid.engine.loops.evaluation import predicting
from lucid.engine.predictions import Predictor, ahead, has_seam

Found = list[list[dict[str, Any]]]


def validation_time(
    cfg: Config,
    *,
    checkpoint: str | Path | None = None,
    num_batches: int = 16,
    rounds: int = 5,
    num_workers: int = 0,
    parts: Parts | None = None,
) -> dict[str, Any]:
    """Time the validation of a config, eager and captured, by turns in one run; batches are read beforehand.

    Args:
        cfg: What ``load_config`` returned, not changed.
        checkpoint: Whose weights are evaluated; None takes random ones, which find few masks and little to suppress.
        num_batches: At most; only full ones.
        rounds: Turns of each variant.
        num_workers: Processes that finish predictions in a variant of their own; 0 leaves it out.
        parts: What the region is made of; None takes CUDA graphs.

    Returns:
        ``parts``: ms of a batch by name, medians; ``passes``: ms of a batch in whole passes by variant, median, least
        and most; ``evaluate_ms``; whether all passes found the ``same``; what was measured; how calls were replayed.

    Raises:
        ConfigError: The model does not predict in parts, or there is no full batch.
    """
    runner = build_runner(complete(cfg), mode='test')
    model: Any = unwrapped(runner.model)
    if not has_seam(model):
        raise ConfigError(f'{type(model).__name__} does not predict by infer, select and place; nothing to time')
    if checkpoint is not None:
        files.load_weights(model, files.load(checkpoint), 'auto')
    loop: Any = runner.test_loop
    size = loop.dataloader.batch_size
    batches = [batch for batch in islice(loop.dataloader, num_batches) if len(batch['inputs']) == size]
    if not batches:
        raise ConfigError(f'the validation set has no full batch of {size} images; lower val_dataloader.batch_size')
    model.eval()
    region = EvalRegion()
    workers = HostWorkers(num_workers) if num_workers else None
    variants: dict[str, tuple[bool, Callable[[Any, Predictor], Iterator[Any]], Any]] = {
        'batch by batch': (False, _one_by_one, map),
        'one batch ahead': (False, _ahead, map),
        'captured, ahead': (True, _ahead, map),
    }
    if workers is not None:
        variants[f'captured, ahead, {num_workers} processes'] = (True, partial(_ahead, in_processes=True), workers.map)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    found: dict[str, Found] = {}
    with predicting(runner, loop.evaluator):
        try:
            times = _parts(model, batches, loop.evaluator)
            region.activate(model, parts=parts)
            times |= _parts(model, batches, None, suffix=', captured')
            for _ in range(rounds):
                for name, (captured, run, mapped) in variants.items():
                    if not captured:
                        region.release()
                    elif not region.active:
                        region.activate(model, parts=parts)
                        next(iter(Predictor(model).launch(batches[0])()))  # captured before the clock starts
                    begun = _now()
                    found[name] = [list(outputs) for outputs in run(batches, Predictor(model, run=mapped))]
                    seconds[name].append((_now() - begun) / len(batches))
        finally:
            routes = region.routes.as_dict()
            region.release()
            if workers is not None:
                workers.close()
    begun = _now()
    loop.evaluator.evaluate(len(batches) * size)
    reference = found.pop('batch by batch')
    return {
        'config': str(cfg.filename),
        'device': torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu',
        'images': len(batches) * size,
        'batch': size,
        'parts': times,
        'passes': {name: _spread(values) for name, values in seconds.items()},
        'evaluate_ms': 1e3 * (_now() - begun),
        'same': all(first_difference({'': reference}, {'': other}) is None for other in found.values()),
        'routes': routes,
    }


def print_times(found: Mapping[str, Any], console: Console) -> None:
    """The result as tables."""
    console.print(f'{found["config"]}: {found["images"]} images in batches of {found["batch"]}, {found["device"]}')
    table = Table('part', box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column('ms of a batch', justify='right')
    for name, value in found['parts'].items():
        table.add_row(name, f'{value:.2f}')
    console.print(table)
    table = Table('pass', box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ('ms of a batch', 'least', 'most', 'times as fast'):
        table.add_column(heading, justify='right')
    first = next(iter(found['passes'].values()))[0]
    for name, (median, least, most) in found['passes'].items():
        table.add_row(name, f'{median:.2f}', f'{least:.2f}', f'{most:.2f}', f'{first / median:.2f}')
    console.print(table)
    same = 'all passes found the same' if found['same'] else 'THE PASSES DID NOT FIND THE SAME'
    console.print(f'figures of all images: {found["evaluate_ms"]:.0f} ms; {same}')


@torch.no_grad()
def _parts(model: Any, batches: list[Any], evaluator: Any, *, suffix: str = '') -> dict[str, float]:
    """Median ms of the parts of a batch; without an evaluator of inference alone. The first batch warms up."""
    values: dict[str, list[float]] = {}

    def timed(name: str, function: Callable[..., Any], *args: Any) -> Any:
        begun = _now()
        result = function(*args)
        launched = time.perf_counter() - begun
        values.setdefault(name, []).append(_now() - begun)
        if function == model.infer:
            values.setdefault(f'of it, the host launches{suffix}', []).append(launched)
        return result

    model.infer(model.prepare(batches[0])['inputs'])  # kernels are chosen, or the graph is captured
    for batch in batches:
        prepared = timed('prepare', model.prepare, batch)
        inferred = timed(f'infer{suffix}', model.infer, prepared['inputs'])
        if evaluator is not None:
            selected = timed('select (NMS)', model.select, inferred)
            outputs = timed('place, with the transfer', _place, model, selected, prepared['metas'])
            timed('process', evaluator.process, outputs, batch)
    wanted = values if evaluator is not None else {name: each for name, each in values.items() if name != 'prepare'}
    return {name: 1e3 * statistics.median(each) for name, each in wanted.items()}


def _place(model: Any, selected: Any, metas: Any) -> list[Any]:
    return list(model.place(tree_map_only(Tensor, Tensor.cpu, selected), metas))


def _one_by_one(batches: list[Any], predictor: Predictor) -> Iterator[Any]:
    for batch in batches:
        yield list(predictor.launch(batch)())


def _ahead(batches: list[Any], predictor: Predictor, *, in_processes: bool = False) -> Iterator[Any]:
    for _, outputs in ahead(batches, predictor.launch, in_processes=in_processes):
        yield outputs


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _spread(values: list[float]) -> tuple[float, float, float]:
    return 1e3 * statistics.median(values), 1e3 * min(values), 1e3 * max(values)
