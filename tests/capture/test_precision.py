"""Cases 17 and 18: half precision, the scaler, and weight casts that must not go stale."""

import contextlib
import itertools

import pytest
import torch

from lucid.capture import capturing, leaves

HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize('gradients', ['clone', 'adopt'])
@pytest.mark.parametrize('accumulate', [1, 2])
@pytest.mark.parametrize('dtype', [None, *HALF])
def test_five_optimizer_steps_equal_eager(graph, kit, dtype, accumulate, gradients):
    reference, candidate = kit.pair(graph)
    captured = graph.capture(candidate, gradients=gradients)
    batches = kit.images(5 * accumulate)
    options = {'accumulate': accumulate, 'dtype': dtype}
    expected = kit.Training(reference, **options).run(batches)
    found = kit.difference(expected, kit.Training(candidate, **options).run(batches))
    assert found is None, str(found)
    graph.replays(captured, len(batches))
    weights = [values['parameter.network.stem.0.0.weight'] for values in expected]
    assert not torch.equal(weights[0], weights[-1])


@pytest.mark.parametrize('dtype', HALF)
def test_control_with_autocast_s_weight_cache_on_the_weights_of_the_first_step_go_stale(
    captured, kit, dtype, monkeypatch
):
    @contextlib.contextmanager
    def loud():
        """`quiet`, but the cache stays on: the warm-up's casts are what the recording reads."""
        with kept():
            torch.set_autocast_cache_enabled(True)
            yield

    kept = capturing.quiet
    monkeypatch.setattr(capturing, 'quiet', loud)
    monkeypatch.setattr(leaves, 'was_caching', lambda: False)
    reference, candidate = kit.pair(captured)
    captured.capture(candidate)
    batches = kit.images(5)
    expected = kit.Training(reference, dtype=dtype).run(batches)
    found = kit.difference(expected, kit.Training(candidate, dtype=dtype).run(batches))
    assert found is not None


@pytest.mark.parametrize('accumulate', [1, 2])
def test_fp16_from_a_scale_that_overflows_skips_and_recovers_like_eager(graph, kit, accumulate):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate)
    batches = kit.images(20 if accumulate == 1 else 32)
    runs = [
        kit.Training(model, dtype=torch.float16, scale=2.0**24, accumulate=accumulate).run(batches)
        for model in (reference, candidate)
    ]
    found = kit.difference(*runs)
    assert found is None, str(found)
    graph.replays(region, len(batches))
    scales = [values['scale'] for values in runs[0]]
    assert scales[0] == 2.0**24
    assert min(scales) < scales[0], 'nothing overflowed: this test shows nothing'
    assert any(b > a for a, b in itertools.pairwise(scales)), 'the scale never grew again'
