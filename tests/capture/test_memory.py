"""What recordings take: reported one by one, and shared by those of one region."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid.capture import ModuleRegion, Parts, Policy, Report, StepRegion, TapeMemory
from lucid.engine.optim_wrappers import OptimWrapper
from lucid.engine.optimizers import SGD

CAPTURE = Policy(on_new_signature='capture')


class Deep(nn.Module):
    """Activations that dwarf parameters, inputs and outputs; with the seam of a step."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers = [nn.Conv2d(3 if i == 0 else width, width, 3, padding=1) for i in range(6)]
        self.body = nn.Sequential(*(nn.Sequential(layer, nn.SiLU()) for layer in layers), nn.AdaptiveAvgPool2d(1))

    def compute(self, data: Any, optim_wrapper: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.body(data['inputs']).square().mean()
        return loss, {'loss': loss.detach()}

    def step(self, data: Any, optim_wrapper: Any) -> dict[str, Tensor]:
        loss, values = self.compute(data, optim_wrapper)
        optim_wrapper.update_params(loss)
        return values


def train(model: Deep, region: Any, batches: list[Tensor], *, parts: Parts) -> None:
    model.train()
    region.activate(model, policy=CAPTURE, parts=parts)
    wrapper = OptimWrapper(SGD(model.parameters(), lr=0.01))
    for images in batches:
        model.step({'inputs': images}, wrapper)


def batches(sizes: tuple[int, ...], device: torch.device, side: int) -> list[Tensor]:
    return [torch.rand(size, 3, side, side, device=device) for size in sizes]


def made(graph: Any) -> Parts:
    return Parts(memory=lambda _: graph.memory())


def test_the_report_has_the_bytes_of_each_recording(captured: Any) -> None:
    model, region = Deep(4).to(captured.device), ModuleRegion('body')
    captured.regions.append(region)
    train(model, region, batches((4, 2, 4, 2), captured.device, 16), parts=made(captured))
    report = json.loads(json.dumps(Report([region.routes]).as_dict()))['regions']['body']
    assert [one['of'] for one in report['recordings']] == ['4x3x16x16 float32', '2x3x16x16 float32']
    assert report['captures'] == 2
    assert sum(one['bytes'] for one in report['recordings']) == report['bytes'] > 0
    assert sum(one['seconds'] for one in report['recordings']) == pytest.approx(report['capture_seconds'], abs=2e-3)
    rows = [line for line in Report([region.routes]).table().splitlines() if line.split()[1] == 'recording']
    assert len(rows) == 2
    assert '4x3x16x16 float32: +' in rows[0]
    assert 'MiB' in rows[0]


def test_the_end_of_a_window_is_a_recording_of_its_own(captured: Any) -> None:
    model, region = Deep(4).to(captured.device), StepRegion()
    captured.regions.append(region)
    train(model, region, batches((4, 4), captured.device, 16), parts=made(captured))
    names = [one.what for one in region.routes.recordings]
    assert names == ['4x3x16x16 float32', 'the end of a window']
    assert region.routes.num_bytes == sum(one.num_bytes for one in region.routes.recordings)


def told(region: Any) -> tuple[list[tuple[str, bool]], list[str]]:
    """Which recordings the report says are retired, and its rows of them; those that are not hold all its bytes."""
    report = json.loads(json.dumps(Report([region.routes]).as_dict()))['regions'][region.name]
    assert sum(one['bytes'] for one in report['recordings'] if not one['retired']) == report['bytes'] > 0
    assert region._pool.memory.num_bytes() == report['bytes']
    rows = [line for line in Report([region.routes]).table().splitlines() if line.split()[1] == 'recording']
    return [(one['of'], one['retired']) for one in report['recordings']], rows


@pytest.mark.parametrize('kind', ['body', 'step'])
def test_a_retired_recording_is_told_from_those_that_hold_memory(captured: Any, kind: str) -> None:
    model, region = Deep(4).to(captured.device), StepRegion() if kind == 'step' else ModuleRegion('body')
    captured.regions.append(region)
    train(model, region, batches((4, 4), captured.device, 16), parts=made(captured))
    before, _ = told(region)
    assert not any(retired for _, retired in before)
    region.invalidate('to record anew')
    wrapper = OptimWrapper(SGD(model.parameters(), lr=0.01))
    if kind == 'step':
        wrapper = region._wrapper
    for images in batches((4, 4), captured.device, 16):
        model.step({'inputs': images}, wrapper)
    recorded, rows = told(region)
    assert recorded == [(what, True) for what, _ in before] + before
    assert [row.endswith(' s, retired') for row in rows] == [retired for _, retired in recorded]


def test_an_odd_first_call_and_another_layout_of_gradients_retire_one_recording_each(captured: Any) -> None:
    model, region = Deep(4).to(captured.device), ModuleRegion('body')
    captured.regions.append(region)
    region.activate(model.train(), parts=made(captured))
    odd, *others = batches((2, 4, 4), captured.device, 16)
    for images in (odd, *others):
        model.body(images).square().mean().backward()
    recorded = [('2x3x16x16 float32', True), ('4x3x16x16 float32', False)]
    assert told(region)[0] == recorded
    for images in others * 2:
        model.body(images).sum().backward()  # its gradient comes in expanded
    recorded[-1:] = [('4x3x16x16 float32', True), ('4x3x16x16 float32', False)]
    assert told(region)[0] == recorded


class Lasting(TapeMemory):
    """Gives nothing back before its last graph is gone, as a pool on a card does."""

    most = 0

    def num_bytes(self) -> int:
        self.most = max(self.most, super().num_bytes()) if self.tapes else 0
        return self.most


def test_what_a_retired_recording_leaves_in_the_pool_is_told_of_the_next_one() -> None:
    model, region = Deep(4), ModuleRegion('body')
    region.activate(model.train(), policy=CAPTURE, parts=Parts(memory=lambda _: Lasting()))
    large, small = batches((4, 2), torch.device('cpu'), 16)
    model.body(large).square().mean().backward()
    model.body(small).sum().backward()  # its gradient comes in expanded, so that it is recorded anew
    taken = [one.num_bytes for one in region.routes.recordings]
    model.body(small).sum().backward()
    assert [retired for _, retired in told(region)[0]] == [False, True, False]
    assert region.routes.recordings[-1].num_bytes >= taken[1] > 0
    assert region.routes.recordings[0].num_bytes == taken[0]
    region.invalidate('to record anew')
    model.body(small).sum().backward()
    assert [retired for _, retired in told(region)[0]] == [True, True, True, False]
    region.release()


@pytest.mark.cuda
@pytest.mark.parametrize('kind', ['body', 'step'])
def test_on_a_card_several_signatures_do_not_multiply_memory(on_cuda: Any, kind: str) -> None:
    """The largest first, as of an epoch that ends with a partial batch: the others fit into what it has left."""

    def region() -> Any:
        found = StepRegion() if kind == 'step' else ModuleRegion('body')
        on_cuda.regions.append(found)
        return found

    device = on_cuda.device
    shared, other = region(), region()
    torch.cuda.empty_cache()
    train(Deep().to(device), shared, batches((16, 12, 8, 4) * 2, device, 128), parts=made(on_cuda))
    first, *others = [one.num_bytes for one in shared.routes.recordings if one.what[0].isdigit()]
    assert len(others) == 3
    assert shared.routes.replays == 8
    assert first > 200 << 20
    assert sum(others) < first / 4
    # Control: of a region of its own, which shares no pool, the second largest takes its share.
    train(Deep().to(device), other, batches((12, 12), device, 128), parts=made(on_cuda))
    assert other.routes.num_bytes > first / 2
