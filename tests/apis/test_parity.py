"""Parity of a config: what it compares, and that it finds what it must."""

import json
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import pytest
import torch
from mmengine.config import Config
from rich.console import Console

from lucid.apis import ConfigError
from lucid.apis.host_time import host_time
from lucid.apis.parity import Parity, Row, check_parity, print_parity
from lucid.apis.training_pair import Batches, TrainingPair, exact
from lucid.capture import CudaMemory, Parts, TapeMemory
from lucid.capture.guards import Guards
from lucid.capture.ownership import Adopt, Holder
from lucid.capture.state import State

Make = Callable[..., Config]


@pytest.fixture(params=['cpu', pytest.param('cuda', marks=pytest.mark.cuda)])
def place(request: pytest.FixtureRequest) -> str:
    torch.set_num_threads(1)
    return request.param


@pytest.fixture
def config(tiny: Make) -> Config:
    cfg = tiny(train_dataloader__batch_size=2)
    cfg.custom_hooks = []
    return cfg


class NeverCopy(Adopt):
    def before_forward(self, holders: Sequence[Holder]) -> None:
        pass

    def before_backward(self, holders: Sequence[Holder]) -> None:
        pass


class NoRestore(State):
    def restore(self) -> None:
        pass


def broken(place: str, **part: Any) -> Parts:
    memory = (lambda device: CudaMemory(device)) if place == 'cuda' else (lambda device: TapeMemory())
    return Parts(memory=memory, **part)


@pytest.mark.parametrize('precision', ['fp32', 'bf16', 'fp16'])
def test_a_captured_network_equals_eager(config: Config, place: str, precision: str) -> None:
    parity = check_parity(config, precision=[precision], accumulate=[2], steps=2, device=place)
    assert parity.equal, parity.rows
    assert parity.backend == ('tape' if place == 'cpu' else 'cuda')
    assert [(row.replays, row.eager_calls, row.micro_steps) for row in parity.rows] == [(4, 0, 4)]
    assert json.loads(json.dumps(parity.to_json()))['equal'] is True


@pytest.mark.parametrize('region', ['loss', 'network+loss', 'step'])
def test_every_kind_of_region_equals_eager(config: Config, place: str, region: str) -> None:
    parity = check_parity(config, region=region, precision=['bf16'], accumulate=[1, 2], steps=3, device=place)
    assert parity.equal, parity.rows
    assert [(row.replays, row.eager_calls) for row in parity.rows] == [(3, 0), (6, 0)]


def test_control_gradients_that_nobody_copies_are_found_by_step_and_key(config: Config, place: str) -> None:
    parts = broken(place, ownership=lambda mode: NeverCopy())
    parity = check_parity(config, precision=['fp32'], accumulate=[2], steps=1, device=place, parts=parts)
    row = parity.rows[0]
    assert row.control is None
    assert row.captured is not None
    assert row.captured.startswith('step 1: grad.network.')
    assert not parity.equal


def test_control_a_warm_up_that_is_not_undone_is_found_in_the_first_step(config: Config, place: str) -> None:
    parts = broken(place, state=NoRestore)
    row = check_parity(config, precision=['fp32'], accumulate=[1], steps=1, device=place, parts=parts).rows[0]
    assert row.captured is not None
    assert row.captured.startswith('step 0: ')


def test_a_region_that_never_replayed_proves_nothing(config: Config, place: str) -> None:
    class Hooked(Guards):
        def hooked(self) -> str | None:
            return 'a hook'

    parity = check_parity(
        config, precision=['fp32'], accumulate=[1], steps=1, device=place, parts=broken(place, guards=Hooked)
    )
    assert parity.rows[0].captured is None
    assert parity.rows[0].problems
    assert not parity.equal


def test_a_module_that_is_not_there_is_named(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"--region network\.haed: the model has no module .*'network\.head'"):
        check_parity(config, region='network.haed', precision=['fp32'], accumulate=[1], steps=1, device='cpu')


def test_both_sides_start_equal_and_get_the_same_batches_of_all_epochs(config: Config) -> None:
    pair = TrainingPair(config, region='network', steps=1, device=torch.device('cpu'), parts=None)
    one, other = pair.side('fp32', 1), pair.side('fp32', 1)
    values = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in values)
    batches = Batches(pair.loader, max_epochs=2)
    state = torch.get_rng_state()
    seen = [batches(step) for step in range(11)]  # ten batches of two in an epoch
    assert batches(10) is seen[10]
    assert torch.equal(state, torch.get_rng_state())
    again = Batches(pair.loader, max_epochs=2)
    assert all(torch.equal(batch['inputs'], again(step)['inputs']) for step, batch in enumerate(seen))
    assert not torch.equal(seen[0]['inputs'], seen[10]['inputs'])


def test_the_flags_of_torch_are_as_before_afterwards() -> None:
    torch.backends.cudnn.benchmark = True
    with exact():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False


def test_the_table_says_what_differs_and_that_the_stand_in_ran() -> None:
    rows = [
        Row('fp32', 1, 3, None, None, 3, 0, [], 1.5),
        Row('bf16', 2, 6, None, 'step 1: grad.a: 1 of 2 elements, by up to 0.5', 6, 0, [], 1.5),
        Row('fp16', 1, 3, 'step 0: loss: x', None, 0, 0, [], 1.5),
        Row('fp16', 2, 6, None, None, 0, 6, ['network: never replayed in 6 calls'], 1.5),
    ]
    out = StringIO()
    print_parity(Parity('mine.py', 'network', 3, 'tape', rows), console=Console(file=out, width=200))
    text = out.getvalue()
    assert 'No CUDA card in use' in text
    assert 'bf16, accumulate 2: captured differs from eager: step 1: grad.a: 1 of 2 elements, by up to 0.5' in text
    assert 'fp16, accumulate 1: eager differs from eager: step 0: loss: x' in text
    assert 'NO PROOF' in text
    assert 'network: never replayed in 6 calls' in text


def test_host_time_is_what_a_call_takes_beyond_its_launch(config: Config, place: str) -> None:
    measured = host_time(config, precision='fp32', calls=3, device=place)
    for direction in ('forward', 'backward'):
        times = measured[direction]
        assert times['call'] > times['launch'] > 0
        assert 0 < times['beyond'] < times['call']
    assert measured['calls'] == 3
