"""The bytes floor, of networks small enough to count by hand."""

import json

import pytest
import torch
from torch import nn

from lucid.apis import benchmark_floor as module
from lucid.apis.benchmark_floor import Floor, copy_bandwidth, floor_of
from lucid.models.layers import ConvUnit

CPU = torch.device('cpu')


class Model(nn.Module):
    """8x16 pixels: a unit of 3 to 4 channels at half the size, then a head of 4 to 2 at that size."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(ConvUnit(3, out_channels=4, kernel_size=3, stride=2), nn.Conv2d(4, 2, 1))


STEM = 3 * 8 * 16 + 4 * 4 * 8  # elements in and out, of one image
HEAD = 4 * 4 * 8 + 2 * 4 * 8


@pytest.fixture(autouse=True)
def _bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, 'copy_bandwidth', lambda device: 1e9)


def counted(path: str, *, batch_size: int = 1, element_size: int = 2) -> Floor:
    found = floor_of(
        Model(), module=path, image_size=(8, 16), batch_size=batch_size, element_size=element_size, device=CPU
    )
    assert found is not None
    return found


def test_five_passes_over_what_convolutions_read_and_write() -> None:
    floor = counted('network')
    assert floor.step_bytes == floor.part_bytes == 5 * 2 * (STEM + HEAD)
    assert counted('network', batch_size=3, element_size=4).step_bytes == 3 * 5 * 4 * (STEM + HEAD)


def test_a_module_alone_has_the_bytes_of_its_own_convolutions() -> None:
    assert counted('network.1').part_bytes == 5 * 2 * HEAD
    assert counted('network.1').step_bytes == 5 * 2 * (STEM + HEAD)
    assert counted('criterion').part_bytes == 0
    assert counted('network.').part_bytes == 0, 'a path, not the beginning of a name'


def test_milliseconds_are_bytes_over_the_bandwidth_of_a_copy() -> None:
    # The published network of scale n: 0.474 GB per image, 16 images, a card that copies 4.3 TB/s.
    floor = Floor(16 * 474_000_000, 8 * 474_000_000, 4.3e12)
    assert floor.step == pytest.approx(1.7637, abs=1e-4)
    assert floor.part == pytest.approx(0.8819, abs=1e-4)
    assert json.loads(json.dumps(floor.to_json()))['step_ms'] == floor.step


def test_a_model_without_a_network_or_without_convolutions_has_no_floor() -> None:
    without = nn.Module()
    without.network = nn.Identity()
    for model in (nn.Conv2d(3, 3, 1), without):
        assert floor_of(model, module='network', image_size=(8, 16), batch_size=1, element_size=2, device=CPU) is None


def test_a_copy_counts_what_it_reads_and_what_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []

    def four_seconds(copy, device, *, times):
        copy()
        copies.append(times)
        return 4.0

    monkeypatch.setattr(module, 'seconds', four_seconds)
    monkeypatch.setattr(module, 'COPIED', {'cpu': 1000})
    # 1,000 bytes read and 1,000 written, twice, in four seconds.
    assert copy_bandwidth(CPU) == 1000.0
    assert copies == [2] * 5


@pytest.mark.cuda
def test_a_card_copies_faster_than_any_processor_and_keeps_no_memory() -> None:
    before = torch.cuda.memory_reserved()
    assert copy_bandwidth(torch.device('cuda')) > 1e11
    assert torch.cuda.memory_reserved() <= before
