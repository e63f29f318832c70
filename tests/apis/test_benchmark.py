"""The benchmark runs what it says, by turns, and reports what it measured."""

import json
from collections.abc import Callable

import pytest
import torch
from mmengine.config import Config

from lucid.apis import ConfigError
from lucid.apis import benchmark as module
from lucid.apis import benchmark_turns as turns
from lucid.apis.benchmark import benchmark
from lucid.apis.gpu_time import KernelTime, Launch
from lucid.capture import ModuleRegion, Reason
from lucid.datasets.shape_scenes import CLASSES
from lucid.models.detectors import YOLODetector
from lucid.registry import MODELS


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
    # Neither runs the windows that it would measure.
    monkeypatch.setattr(turns, '_gpu', lambda run, accumulate, device: (None, []))
    monkeypatch.setattr(turns, '_host', lambda run, accumulate, device: 1.0)
    sizes = {'precision': 'fp32', 'rounds': 2, 'micro_batches': 3, 'device': place}
    found = benchmark(config, regions=['network'], adopt=True, accumulate=(1, 2), only=('step', 'module'), **sizes)
    assert [(t.variant, t.accumulate, len(t.rounds)) for t in found.steps] == [
        (variant, number, 2) for number in (1, 2) for variant in ('eager', 'network', 'network, adopted')
    ]
    assert [(t.variant, len(t.rounds)) for t in found.parts] == [('eager', 2), ('network', 2), ('network, adopted', 2)]
    assert all(0 < time < 60_000 for t in (*found.steps, *found.parts) for time in t.rounds)
    # Windows of one: 1 + 3 first, 3 in each of 2 rounds; of two: 1 + 3 and 2 windows in each round, each twice.
    assert steps.count((2, False)) == 16
    assert steps.count((2, True)) == 32
    assert steps.count((1, True)) == 20
    read = json.loads(json.dumps(found.to_json()))
    assert read['steps'][0]['median'] > 0
    assert [split['variant'] for split in read['splits']] == ['eager', 'network', 'network, adopted']
    assert found.loading is None
    # 64 px, all of whose convolutions are the network's; four bytes each in fp32.
    assert found.floor is not None
    assert found.floor.step_bytes == found.floor.part_bytes == 2 * 5 * 4 * elements(config)


def elements(config: Config) -> int:
    """What all convolutions read and write for one image, seen where they run."""
    seen: list[int] = []
    detector = MODELS.build({**config.model, 'num_classes': len(CLASSES)})
    for conv in detector.modules():
        if isinstance(conv, torch.nn.Conv2d):
            conv.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0].numel() + output.numel()))
    detector.network.train()(torch.zeros(2, 3, 64, 64))
    return sum(seen) // 2


def test_a_variant_that_did_not_replay_is_no_measurement(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModuleRegion, '_blocked', lambda self, module: (Reason.HOOK, 'a hook'))
    sizes = {'precision': 'fp32', 'rounds': 1, 'micro_batches': 1, 'device': 'cpu', 'only': ['step']}
    with pytest.raises(RuntimeError, match='did not do its work'):
        benchmark(config, regions=['network'], accumulate=(1,), **sizes)


def test_a_module_that_is_not_there_is_named(config: Config) -> None:
    with pytest.raises(ConfigError, match='netwrok'):
        benchmark(config, regions=['netwrok'], device='cpu')
    with pytest.raises(ConfigError, match='netwrok'):
        benchmark(config, module='netwrok', only=['module'], device='cpu')


def test_the_loader_alone_is_the_one_of_the_training_with_its_augmentation(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: list[dict] = []
    built = module.build_dataloader

    def build(cfg, **given):
        options.append(cfg)
        return built(cfg, **given)

    monkeypatch.setattr(module, 'build_dataloader', build)
    config.train_dataloader.persistent_workers = True
    found = benchmark(config, only=['loading'], rounds=2, micro_batches=3, device='cpu')
    assert (found.steps, found.parts, found.floor) == ([], [], None)
    assert found.loading is not None
    assert (found.loading.num_workers, found.loading.num_batches) == (0, 3)
    assert len(found.loading.loaded) == len(found.loading.prepared) == 2
    assert min(found.loading.loaded + found.loading.prepared) > 0
    assert options[0]['persistent_workers']
    assert options[0]['dataset']['pipeline'][0]['type'] == 'Mosaic'


def test_what_the_card_did_is_of_a_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = [Launch('a', 0, 8000), Launch('b', 8000, 16000), Launch('a', 16000, 24000)]
    monkeypatch.setattr(turns, 'launches', lambda run, calls: ran * calls)
    busy, kernels = turns._gpu(lambda: None, 2, torch.device('cuda'))
    # A window of two is busy for 24 ms; four equal traces one upon the other are busy for as long as one.
    assert (busy.busy, busy.kernels) == (3.0, 2)
    assert kernels == [KernelTime('a', 8.0, 1.0), KernelTime('b', 4.0, 0.5)]
    monkeypatch.setattr(turns, 'host_seconds', lambda run, device: 0.012)
    assert turns._host(lambda: None, 2, torch.device('cuda')) == 6.0
    assert turns._gpu(lambda: None, 2, torch.device('cpu')) == (None, [])
    assert turns._host(lambda: None, 2, torch.device('cpu')) is None


@pytest.mark.cuda
def test_on_a_card_a_captured_step_asks_less_of_the_host_and_runs_named_kernels(config: Config) -> None:
    sizes = {'precision': 'fp32', 'rounds': 1, 'micro_batches': 2, 'only': ['step'], 'device': 'cuda'}
    eager, step = benchmark(config, regions=['step'], accumulate=(1,), profile=True, **sizes).steps
    assert step.host < eager.host
    assert step.gpu.kernels == pytest.approx(sum(kernel.num_launches for kernel in step.kernels), abs=1)
    assert sum(kernel.ms for kernel in step.kernels) >= step.gpu.busy * 0.99


def test_the_flag_of_cudnn_is_that_of_the_training_and_as_before_afterwards(config: Config) -> None:
    config.env_cfg = {'cudnn_benchmark': True}
    with module._kernels_of_training(config):
        assert torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.benchmark
