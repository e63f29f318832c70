"""Case 15 for modules: what is not finite in images or weights has the bits of eager in a replay."""

import math

import pytest
import torch


def bits(value):
    """What tells NaN from NaN, and zero from minus zero."""
    return None if value is None else value.detach().clone().view(torch.int32)


def steps(model, batches, device, *, spoil):
    """The bits of outputs, loss, buffers and gradients, per step; ``spoil`` is put into a weight at the third."""
    found = []
    for step, images in enumerate(batches):
        if step == 2 and spoil is not None:
            with torch.no_grad():
                model.network.head.one2many[0][1].bias[1] = spoil
        images = images.to(device).clone().requires_grad_()
        outputs = model.network(images)
        loss = sum((1.0 + i) * output.square().mean() for i, output in enumerate(outputs))
        loss.backward()
        values = {f'output {i}': bits(output) for i, output in enumerate(outputs)} | {'loss': bits(loss)}
        values |= {name: bits(buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        values |= {name: bits(p.grad) for name, p in model.named_parameters()} | {'images': bits(images.grad)}
        found.append(values)
        model.zero_grad()
    return found


@pytest.mark.parametrize('target', ['network', 'network.head'])
@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('where', ['image', 'weight'])
def test_what_is_not_finite_has_the_bits_of_eager(graph, kit, where, bad, target):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate, target)
    batches = kit.images(4)
    if where == 'image':
        batches[1][2, 0, 5, 7] = bad
    spoil = bad if where == 'weight' else None
    expected, values = (steps(m, batches, graph.device, spoil=spoil) for m in (reference, candidate))
    found = kit.difference(expected, values)
    assert found is None, str(found)
    graph.replays(region, 4)
    finite = [bool(step['loss'].view(torch.float32).isfinite()) for step in values]
    assert finite == ([True, False, True, True] if where == 'image' else [True, True, False, False])
