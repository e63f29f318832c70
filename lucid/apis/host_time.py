"""What a replayed call costs the host beyond launching its graph, and on what it is spent."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from mmengine.config import Config
from torch import nn

from lucid.apis.training_pair import Batches, TrainingPair
from lucid.capture import CudaMemory, Graph, Memory, ModuleRegion, Parts, TapeMemory
from lucid.capture.guards import Guards
from lucid.capture.ownership import Clone
from lucid.capture.recording import Recording


class _Laps:
    """Seconds by name, one entry per call of what is timed; ``last`` is when the last of them ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.last = 0.0

    def add(self, name: str, since: float) -> None:
        """Keep the time that has passed ``since`` then."""
        self.last = time.perf_counter()
        self.seconds.setdefault(name, []).append(self.last - since)

    def timed(self, name: str, call: Callable[..., Any], *, wait: bool = False) -> Callable[..., Any]:
        """``call``, timed; with ``wait`` from when the device is idle: a full launch queue is not the region's."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if wait and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            start = time.perf_counter()
            result = call(*args, **kwargs)
            self.add(name, start)
            return result

        return run

    def median(self, name: str, *less: str) -> float:
        """Milliseconds of ``name`` without those of ``less``."""
        columns = [self.seconds[each] for each in (name, *less)]
        return round(statistics.median(first - sum(rest) for first, *rest in zip(*columns, strict=True)) * 1e3, 4)


class _TimedMemory:
    """A memory whose graphs' replays are timed."""

    def __init__(self, memory: Memory, laps: _Laps) -> None:
        self._memory = memory
        self._laps = laps
        self.device = memory.device
        self.num_warm_ups, self.runs_to_record = memory.num_warm_ups, memory.runs_to_record
        self.warm_up, self.num_bytes = memory.warm_up, memory.num_bytes

    def graphs(self) -> tuple[Graph, Graph]:
        pair = self._memory.graphs()
        for name, graph in zip(('forward launch', 'backward launch'), pair, strict=True):
            _time(graph, 'replay', name, self._laps)
        return pair


def _time(owner: Any, method: str, name: str, laps: _Laps, *, wait: bool = False) -> None:
    """Have a method of one object timed."""
    setattr(owner, method, laps.timed(name, getattr(owner, method), wait=wait))


def _timed_parts(laps: _Laps) -> Parts:
    """What a region is made of, timed; it computes the same."""

    def memory(place: torch.device) -> Memory:
        return _TimedMemory(CudaMemory(place) if place.type == 'cuda' else TapeMemory(), laps)

    def guards(module: nn.Module) -> Guards:
        made = Guards(module)
        _time(made, 'changed', 'changed', laps)
        _time(made, 'hooked', 'hooked', laps)
        return made

    def ownership(_: str) -> Clone:
        made = Clone()
        _time(made, 'hand_out', 'gradients', laps)
        return made

    def recording(*arguments: Any) -> Recording:
        made = Recording(*arguments)
        _time(made._inputs, 'fill', 'inputs', laps)
        _time(made, 'copies', 'outputs', laps)
        _time(made.node, 'attach', 'node', laps)
        _time(made, 'take', 'output gradients', laps)
        _time(made.node, 'backward', 'backward', laps, wait=True)
        return made

    return Parts(memory=memory, guards=guards, ownership=ownership, recording=recording)


def _time_rest(wrapper: Any, laps: _Laps) -> None:
    """Have what a backward still does after the region's part of it timed."""
    run_backward = wrapper.run_backward

    def run(*args: Any, **kwargs: Any) -> None:
        run_backward(*args, **kwargs)
        laps.add('accumulate', laps.last)

    wrapper.run_backward = run


def host_time(
    cfg: Config,
    *,
    region: str = 'network',
    precision: str = 'bf16',
    calls: int = 50,
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Measure the host time of replayed calls of one region in training, without and with the graph launch.

    Args:
        cfg: What ``load_config`` returned, not changed.
        region: Path of the module.
        precision: Of ``training_pair.PRECISIONS``.
        calls: Replays to measure, after the first.
        device: Default a CUDA card where there is one; the CPU stand-in's launches and copies do the work itself.

    Returns:
        Medians in milliseconds, forward and backward: ``call``, its graph ``launch``, and ``beyond``, the difference.
        Of that, as ``parts``: forward ``guards``, ``lookup`` (routing and signature), copies of ``inputs`` and
        ``outputs``, the autograd ``node``; backward copies of the outputs' gradients (``inputs``) and the ``gradients``
        that are handed out. Not in ``call``, because eager pays for them too: ``accumulate``, what autograd takes
        afterwards to put the gradients of the region's parameters into ``.grad``, and ``eager``, the same forward
        without capture.
    """
    device = torch.device(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
    laps, timed = _Laps(), ModuleRegion(region)
    pair = TrainingPair(cfg, region=region, steps=2 * calls + 2, device=device, parts=_timed_parts(laps))
    side = pair.side(precision, 1)
    batch = Batches(pair.loader, max_epochs=1)(0)
    target: Any = side.model.get_submodule(region)

    def run() -> None:
        for step in range(calls + 1):
            side.model.train_step(batch, side.wrapper)
            if step == 0:
                laps.seconds.clear()  # a capture, the first state of the optimizer

    _time(target, 'forward', 'eager', laps, wait=True)
    run()
    del target.forward
    eager = laps.median('eager')

    _time(timed, '_serve', 'serve', laps)
    _time(timed, '_call', 'forward', laps, wait=True)
    _time_rest(side.wrapper, laps)
    pair.capture(side, [timed])
    try:
        run()
    finally:
        timed.release()
    if timed.routes.replays != calls + 1:
        raise RuntimeError(f'{timed.routes.replays} of {calls + 1} calls replayed: {timed.routes.problems()}')
    return {
        'region': region,
        'precision': precision,
        'calls': calls,
        'device': str(device),
        'forward': {
            'call': laps.median('forward'),
            'launch': laps.median('forward launch'),
            'beyond': laps.median('forward', 'forward launch'),
            'parts': {
                'guards': round(laps.median('changed') + laps.median('hooked'), 4),
                'lookup': laps.median('serve', 'changed', 'hooked'),
                **{part: laps.median(part) for part in ('inputs', 'outputs', 'node')},
            },
            'eager': eager,
        },
        'backward': {
            'call': laps.median('backward'),
            'launch': laps.median('backward launch'),
            'beyond': laps.median('backward', 'backward launch'),
            'parts': {'inputs': laps.median('output gradients'), 'gradients': laps.median('gradients')},
            'accumulate': laps.median('accumulate'),
        },
    }
