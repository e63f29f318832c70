"""What a replayed call costs the host beyond launching its graph."""

import statistics
import time
from typing import Any

import torch
from mmengine.config import Config

from lucid.apis.training_pair import Batches, TrainingPair
from lucid.capture import CudaMemory, Graph, Memory, ModuleRegion, Parts, TapeMemory
from lucid.capture.recording import Recording


class _TimedGraph:
    """A graph that adds the seconds of its replays to ``launches``."""

    def __init__(self, graph: Graph, launches: list[float]) -> None:
        self._graph = graph
        self._launches = launches
        self.record, self.release = graph.record, graph.release

    def replay(self) -> None:
        start = time.perf_counter()
        self._graph.replay()
        self._launches.append(time.perf_counter() - start)


class _TimedMemory:
    """A memory whose graphs are timed."""

    def __init__(self, memory: Memory, launches: tuple[list[float], list[float]]) -> None:
        self._memory = memory
        self._launches = launches
        self.device = memory.device
        self.num_warm_ups, self.runs_to_record = memory.num_warm_ups, memory.runs_to_record
        self.warm_up, self.num_bytes = memory.warm_up, memory.num_bytes

    def graphs(self) -> tuple[Any, Any]:
        forward, backward = self._memory.graphs()
        return _TimedGraph(forward, self._launches[0]), _TimedGraph(backward, self._launches[1])


class _TimedRegion(ModuleRegion):
    """A region that keeps the seconds of each call, begun when the device is idle."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.seconds: list[float] = []

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        _wait()  # a full launch queue would be counted as the region's
        start = time.perf_counter()
        result = super()._call(*args, **kwargs)
        self.seconds.append(time.perf_counter() - start)
        return result


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


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
        device: Default a CUDA card where there is one; the CPU stand-in's launches do the work itself.

    Returns:
        Medians in milliseconds, forward and backward: ``call``, its graph ``launch``, and ``beyond``, the difference.
    """
    device = torch.device(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
    launches: tuple[list[float], list[float]] = ([], [])
    backwards: list[float] = []

    class TimedRecording(Recording):
        def replay_backward(self, grads: Any) -> Any:
            _wait()
            start = time.perf_counter()
            result = super().replay_backward(grads)
            backwards.append(time.perf_counter() - start)
            return result

    def memory(place: torch.device) -> Memory:
        return _TimedMemory(CudaMemory(place) if place.type == 'cuda' else TapeMemory(), launches)

    parts = Parts(memory=memory, recording=TimedRecording)
    pair = TrainingPair(cfg, region=region, steps=calls + 1, device=device, parts=parts)
    side, timed = pair.side(precision, 1), _TimedRegion(region)
    batch = Batches(pair.loader, max_epochs=1)(0)
    pair.capture(side, [timed])
    try:
        for _ in range(calls + 1):
            side.model.train_step(batch, side.wrapper)
    finally:
        timed.release()
    if timed.routes.replays != calls + 1:
        raise RuntimeError(f'{timed.routes.replays} of {calls + 1} calls replayed: {timed.routes.problems()}')
    measured = {'forward': (timed.seconds[1:], launches[0][1:]), 'backward': (backwards[1:], launches[1][1:])}
    return {
        'region': region,
        'precision': precision,
        'calls': calls,
        'device': str(device),
        **{
            direction: {
                'call': _median(total),
                'launch': _median(launch),
                'beyond': _median([a - b for a, b in zip(total, launch, strict=True)]),
            }
            for direction, (total, launch) in measured.items()
        },
    }


def _median(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 4)
