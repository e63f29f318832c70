"""Case 20: a NaN batch inside a captured step is found and undone on the device, as in eager."""

import math

import pytest
import torch
from torch import nn

from lucid.capture import Parts, StepRegion, training_values
from lucid.engine.ema import ExponentialMovingAverage
from lucid.engine.optim_wrappers import AmpOptimWrapper, OptimWrapper
from lucid.engine.optimizers import MuSGD

BAD = 5  # the micro-batch with a NaN image


class Stepped(nn.Module):
    """A detector with the seam of a step."""

    def __init__(self, detector):
        super().__init__()
        self.detector = detector

    def compute(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            loss = self.detector(data['inputs'])
        return loss, {'loss': loss.detach()}

    def step(self, data, optim_wrapper):
        loss, values = self.compute(data, optim_wrapper)
        optim_wrapper.update_params(loss)
        return values


def train(model, batches, *, dtype, accumulate, policy):
    """Everything that lasts after each micro-batch, the verdicts of windows, and the wrapper."""
    model.train()
    options = {'accumulative_counts': accumulate, 'clip_grad': {'max_norm': 1.0}, 'on_nonfinite': policy}
    optimizer = MuSGD(model.parameters(), lr=0.01, momentum=0.8, ns_steps=2)
    if dtype is None:
        wrapper = OptimWrapper(optimizer, **options)
    else:
        wrapper = AmpOptimWrapper(optimizer, dtype=dtype, init_scale=2.0**8, **options)
    wrapper.initialize_count_status(model, 0, len(batches))
    ema = ExponentialMovingAverage(model, decay=0.9, warmup=2.0)
    wrapper.add_post_step(ema)
    device = next(model.parameters()).device
    values, verdicts = [], []
    for images in batches:
        model.step({'inputs': images.to(device), 'metas': []}, wrapper)
        lasting = training_values(model, wrapper.optimizer)
        lasting |= {f'ema.{key}': value.clone() for key, value in ema.shadow.items()}
        values.append(lasting)
        if wrapper.window_ended and wrapper.faults is not None:
            verdicts.append(bool(wrapper.faults.failed))
    return values, verdicts, wrapper


def faulty(graph, kit, *, dtype=None, accumulate=1, policy='skip', pixel=math.nan):
    batches = kit.images(8 * accumulate, size=32)
    batches[BAD][0, 0, 0, 0] = pixel
    reference, candidate = kit.pair(graph, Stepped(kit.Detector()))
    expected = train(reference, batches, dtype=dtype, accumulate=accumulate, policy=policy)
    region = graph.capture(candidate) if not graph.captures else StepRegion()
    if graph.captures:
        region.activate(candidate, parts=Parts(memory=lambda _: graph.memory()))
        graph.regions.append(region)
    found = train(candidate, batches, dtype=dtype, accumulate=accumulate, policy=policy)
    graph.replays(region, len(batches))
    return kit.difference(expected[0], found[0]), expected, found


@pytest.mark.parametrize('accumulate', [1, 2])
@pytest.mark.parametrize('policy', ['raise', 'skip'])
@pytest.mark.parametrize('dtype', [None, 'bfloat16', 'float16'])
def test_a_nan_batch_is_undone_in_a_captured_step_as_in_eager(graph, kit, dtype, policy, accumulate):
    difference, expected, found = faulty(graph, kit, dtype=dtype, accumulate=accumulate, policy=policy)
    assert difference is None, str(difference)
    failed = [window == BAD // accumulate for window in range(8)]
    assert expected[1] == found[1] == failed
    assert found[2].faults.count == 1
    assert all(value.isfinite().all() for value in found[0][-1].values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize('policy', ['raise', 'skip'])
@pytest.mark.parametrize('dtype', [None, 'bfloat16', 'float16'])
def test_an_infinite_pixel_is_undone_in_a_captured_step_as_in_eager(graph, kit, dtype, policy):
    difference, expected, found = faulty(graph, kit, dtype=dtype, accumulate=2, policy=policy, pixel=math.inf)
    assert difference is None, str(difference)
    assert expected[1] == found[1] == [window == BAD // 2 for window in range(8)]
    assert found[2].faults.count == 1
    assert all(value.isfinite().all() for value in found[0][-1].values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize('pixel', [math.nan, math.inf])
@pytest.mark.parametrize('dtype', [None, 'float16'])
@pytest.mark.parametrize('accumulate', [1, 2])
def test_what_is_ignored_lasts_in_both(graph, kit, accumulate, dtype, pixel):
    difference, _, found = faulty(graph, kit, dtype=dtype, accumulate=accumulate, policy='ignore', pixel=pixel)
    assert difference is None, str(difference)  # nan equals nan here
    assert any(value.isnan().any() for name, value in found[0][-1].items() if name.startswith('buffer.'))
    if dtype is not None:
        return  # the loss scaler skips the step by itself: no weight and no average has learnt from it
    values = [value for name, value in found[0][-1].items() if name.startswith('ema.')]
    assert any(value.isnan().any() for value in values)
