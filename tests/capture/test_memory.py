"""What recordings take: reported one by one, and shared by those of one region."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid.capture import ModuleRegion, Parts, Policy, Report, StepRegion
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
