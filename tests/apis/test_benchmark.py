"""The benchmark runs what it says, by turns, and reports what it measured."""

import json
from collections.abc import Callable
from io import StringIO

import pytest
import torch
from mmengine.config import Config
from rich.console import Console

from lucid.apis import ConfigError
from lucid.apis import benchmark as module
from lucid.apis.benchmark import Benchmark, Timing, benchmark
from lucid.apis.benchmark_table import print_benchmark
from lucid.apis.gpu_time import GpuTime
from lucid.capture import ModuleRegion, Reason
from lucid.models.detectors import YOLODetector


@pytest.fixture
def config(tiny: Callable[..., Config]) -> Config:
    return tiny(train_dataloader__batch_size=2)


@pytest.mark.parametrize('place', ['cpu', pytest.param('cuda', marks=pytest.mark.cuda)])
def test_every_variant_takes_its_turns_in_whole_windows(
    config: Config, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, bool]] = []
    train_step = YOLODetector.train_step

    def counted(self, data, wrapper):
        captured = vars(self.network).get('_compiled_call_impl') is not None
        done = train_step(self, data, wrapper)
        steps.append((wrapper.window_size, captured))
        return done

    monkeypatch.setattr(YOLODetector, 'train_step', counted)
    monkeypatch.setattr(module, '_gpu', lambda run, accumulate: GpuTime(1.0, 1))
    sizes = {'precision': 'fp32', 'rounds': 2, 'micro_batches': 3, 'device': place}
    found = benchmark(config, regions=['network'], adopt=True, accumulate=(1, 2), **sizes)
    assert [(t.variant, t.accumulate, len(t.rounds)) for t in found.steps] == [
        (variant, number, 2) for number in (1, 2) for variant in ('eager', 'network', 'network, adopted')
    ]
    assert [(t.variant, len(t.rounds)) for t in found.parts] == [('eager', 2), ('network', 2), ('network, adopted', 2)]
    assert all(0 < time < 60_000 for t in (*found.steps, *found.parts) for time in t.rounds)
    # Windows of one: 1 + 3 first, 3 in each of 2 rounds; of two: 1 + 3 and 2 windows in each round, each twice.
    assert steps.count((2, False)) == 16
    assert steps.count((2, True)) == 32
    assert steps.count((1, True)) == 20
    assert json.loads(json.dumps(found.to_json()))['steps'][0]['median'] > 0


def test_a_variant_that_did_not_replay_is_no_measurement(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModuleRegion, '_blocked', lambda self, module: (Reason.HOOK, 'a hook'))
    with pytest.raises(RuntimeError, match='did not do its work'):
        benchmark(
            config, regions=['network'], accumulate=(1,), precision='fp32', rounds=1, micro_batches=1, device='cpu'
        )


def test_a_module_that_is_not_there_is_named(config: Config) -> None:
    with pytest.raises(ConfigError, match='netwrok'):
        benchmark(config, regions=['netwrok'], device='cpu')


def test_the_flag_of_cudnn_is_that_of_the_training_and_as_before_afterwards(config: Config) -> None:
    config.env_cfg = {'cudnn_benchmark': True}
    with module._kernels_of_training(config):
        assert torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.benchmark


def test_the_table_has_the_ratios() -> None:
    timings = [
        Timing('eager', 1, [30.0, 40.0, 50.0], GpuTime(8.0, 3000), 100, 2.0),
        Timing('captured', 1, [9.0, 10.0, 11.0], GpuTime(8.0, 3010), 200, 1.5),
    ]
    out = StringIO()
    found = Benchmark('mine.py', 'network', 'bf16', 16, (640, 640), 'Card 1', timings, timings)
    print_benchmark(found, console=Console(file=out, width=80))
    line = next(line for line in out.getvalue().splitlines() if 'captured' in line)
    # 40 / 10 ms, 10 / 8 busy, 16 images in 10 ms, rounds 9 to 11
    assert line.split() == ['captured', '1', '10.0', '±1.0', '1600', '4.00', '8.0', '1.250', '3010', '200', '2', 's']
