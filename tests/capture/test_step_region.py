"""Cases 19 to 21: a captured step equals the eager one, whatever moves from step to step."""

import copy
import pickle

import pytest
import torch
from torch import nn

from lucid.capture import (
    AccumulationTable,
    CaptureError,
    EvalRegion,
    GuardError,
    Parts,
    Policy,
    Reason,
    StepRegion,
    TargetError,
    activate_together,
    training_values,
)
from lucid.capture import step as step_module
from lucid.capture.accumulator import Accumulator
from lucid.engine.ema import ExponentialMovingAverage
from lucid.engine.optim_wrappers import AmpOptimWrapper, OptimWrapper
from lucid.engine.optimizers import SGD, AdamW, MuSGD

OPTIMIZERS = {
    'MuSGD': lambda params: MuSGD(params, lr=0.01, momentum=0.8, ns_steps=2),
    'SGD': lambda params: SGD(params, lr=0.01, momentum=0.8, weight_decay=1e-3, nesterov=True),
    'AdamW': lambda params: AdamW(params, lr=1e-3),
}


class Stepped(nn.Module):
    """A detector with the seam of a step, a term that switches with a buffer, and a parameter that no loss reaches."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector
        self.idle = nn.Parameter(torch.ones(3))
        self.register_buffer('weight', torch.ones(()))

    def compute(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            loss = self.detector(data['inputs']) * self.weight
        values = {'loss': loss.detach(), 'half': (loss / 2).detach()}
        return loss, values

    def step(self, data, optim_wrapper):
        loss, values = self.compute(data, optim_wrapper)
        optim_wrapper.update_params(loss)
        return values

    def __getstate__(self):
        state = super().__getstate__()
        state.pop('step', None)
        return state


class Side:
    """One training: model, wrapper and average; ``run`` returns all that must be equal after each micro-batch."""

    def __init__(self, model, *, optimizer='SGD', dtype=None, accumulate=1, epoch=None, clip=True, **options):
        torch.manual_seed(0)
        self.model = model.train()
        options |= {'accumulative_counts': accumulate, 'clip_grad': {'max_norm': 1.0} if clip else None}
        made = OPTIMIZERS[optimizer](model.parameters())
        self.wrapper = AmpOptimWrapper(made, dtype=dtype, **options) if dtype else OptimWrapper(made, **options)
        self.ema = ExponentialMovingAverage(model, decay=0.99, warmup=5.0)
        self.wrapper.add_post_step(self.ema)
        self.epoch = epoch
        self.count = 0
        self.logs = []

    def micro_step(self, images):
        if self.epoch and self.count % self.epoch == 0:
            self.wrapper.start_epoch(self.epoch)
        for group in self.wrapper.param_groups:  # a warm-up of both, then a decay
            group['lr'] = 0.01 * min(1.0, (self.count + 1) / 10) * 0.99**self.count
            if 'momentum' in group:
                group['momentum'] = 0.8 + 0.1 * min(1.0, self.count / 10)
        self.model.weight.fill_(1.0 - 0.01 * self.count)
        device = self.model.weight.device
        logs = self.model.step({'inputs': images.to(device), 'metas': [{'file': 'a.jpg'}]}, self.wrapper)
        self.logs.append(logs)
        self.count += 1
        values = {f'log.{key}': value.clone() for key, value in logs.items()}
        values |= training_values(self.model, self.wrapper.optimizer)
        values |= {f'ema.{key}': value.clone() for key, value in self.ema.shadow.items()}
        if getattr(self.wrapper, 'loss_scaler', None) is not None:
            values['scaler'] = self.wrapper.loss_scaler.state_dict()
        norm = self.wrapper.grad_norm
        values |= {'steps': self.wrapper.num_steps, 'norm': None if norm is None else norm.clone()}
        values['generator'] = torch.get_rng_state()
        if device.type == 'cuda':
            values['generator.cuda'] = torch.cuda.get_rng_state(device)
        return values

    def run(self, batches):
        return [self.micro_step(images) for images in batches]


def activate(graph, model, **policy):
    """A step region in the runs that capture, else the stand-in for eager."""
    if not graph.captures:
        return graph.capture(model)
    region = StepRegion()
    region.activate(model, policy=Policy(**policy), parts=Parts(memory=lambda _: graph.memory()))
    graph.regions.append(region)
    return region


def both(graph, kit, batches, *, dropout=0.0, policy=None, memory_format=torch.contiguous_format, **options):
    """The first difference of a captured training from the eager one, and the region."""
    detector = kit.Detector(dropout).to(memory_format=memory_format)
    reference, candidate = kit.pair(graph, Stepped(detector))
    expected = Side(reference, **options).run(batches)
    side = Side(candidate, **options)
    region = activate(graph, candidate, **(policy or {}))
    return kit.difference(expected, side.run(batches)), region


@pytest.mark.parametrize('accumulate', [1, 2])
@pytest.mark.parametrize('optimizer', list(OPTIMIZERS))
def test_thirty_steps_with_everything_moving_equal_eager(graph, kit, optimizer, accumulate):
    batches = kit.images(30 * accumulate, size=32)
    found, region = both(graph, kit, batches, optimizer=optimizer, accumulate=accumulate)
    assert found is None, str(found)
    graph.replays(region, len(batches))


@pytest.mark.parametrize('accumulate', [1, 3])
@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_half_precision_equals_eager_from_a_scale_that_overflows(graph, kit, dtype, accumulate):
    batches = kit.images(24, size=32)
    options = {'init_scale': 2.0**24, 'growth_interval': 3} if dtype == 'float16' else {}
    found, region = both(graph, kit, batches, dtype=dtype, accumulate=accumulate, dropout=0.2, **options)
    assert found is None, str(found)
    graph.replays(region, len(batches))


@pytest.mark.parametrize('dtype', [None, 'bfloat16'])
def test_a_network_in_channels_last_under_a_loss_that_is_not_equals_eager(graph, kit, dtype):
    """No gradient comes into the recording from outside: inside it, all have the strides of eager."""
    batches = kit.images(6, size=32)
    found, region = both(graph, kit, batches, dtype=dtype, accumulate=2, memory_format=torch.channels_last)
    assert found is None, str(found)
    graph.replays(region, 6)


def test_a_short_last_window_has_its_own_factor(graph, kit):
    batches = kit.images(15, size=32)
    found, region = both(graph, kit, batches, accumulate=2, epoch=5)
    assert found is None, str(found)
    graph.replays(region, 15)


@pytest.mark.parametrize('policy', ['eager', 'capture'])
@pytest.mark.parametrize('sizes', [(4, 4, 2, 4, 4, 4, 4, 2), (4, 4, 4, 2, 4, 2, 2, 4), (2, 4, 4, 4, 4, 4, 2, 2, 4)])
def test_a_partial_batch_first_between_and_last_in_a_window_equals_eager(graph, kit, sizes, policy):
    batches = [kit.images(1, batch=batch, size=32, seed=i)[0] for i, batch in enumerate(sizes)]
    found, region = both(graph, kit, batches, accumulate=3, policy={'on_new_signature': policy})
    assert found is None, str(found)
    if graph.captures:
        assert 0 < region.routes.replays <= len(sizes)
        assert (region.routes.replays == len(sizes)) is (policy == 'capture')


@pytest.mark.parametrize('policy', ['eager', 'capture'])
@pytest.mark.parametrize('accumulate', [1, 2, 3])
def test_epochs_that_end_in_a_batch_of_one_image_with_validation_between_them_equal_eager(
    graph, kit, accumulate, policy
):
    """A data set of k B + 1 images: 4, 4, 4 and 1 of them; validation sees the averaged weights."""
    epochs = [kit.images(3, size=32, seed=e) + kit.images(1, batch=1, size=32, seed=9 + e) for e in range(3)]
    reference, candidate = kit.pair(graph, Stepped(kit.Detector()))

    def run(side):
        values = []
        for epoch in epochs:
            values += side.run(epoch)
            side.model.eval()
            side.ema.swap()
            with torch.no_grad():
                values[-1]['validation'] = side.model.detector(epoch[0].to(graph.device))
            side.ema.swap()
            side.model.train()
        return values

    expected = run(Side(reference, accumulate=accumulate, epoch=4))
    side = Side(candidate, accumulate=accumulate, epoch=4)
    region = activate(graph, candidate, on_new_signature=policy)
    found = kit.difference(expected, run(side))
    assert found is None, str(found)
    graph.replays(region, 12 if policy == 'capture' else 9)
    if graph.captures:
        assert not region.routes.retired
        assert region.routes.captures == (2 if policy == 'capture' else 1)
        assert {reason for reason, _ in region.routes.eager} <= {Reason.NEW_SIGNATURE}


@pytest.mark.parametrize('dtype', [None, 'float16'])
@pytest.mark.parametrize('first', ['evaluation', 'training'])
def test_replayed_evaluations_inside_and_between_windows_in_one_memory_equal_eager(graph, kit, first, dtype):
    """Windows of two; the averaged weights are evaluated after each micro-batch, and in one case before all of them."""
    reference, candidate = kit.pair(graph, Stepped(kit.Detector()))
    batches = kit.images(8, size=32)

    def evaluate(side, images):
        side.model.eval()
        side.ema.swap()
        with torch.no_grad():
            found = side.model.detector.network(images.to(graph.device))
        side.ema.swap()
        side.model.train()
        return {f'evaluation.{i}': value for i, value in enumerate(found)}

    def run(side):
        values = [evaluate(side, batches[0])] if first == 'evaluation' else []
        return values + [side.micro_step(images) | evaluate(side, images) for images in batches]

    options = {'dtype': dtype, 'init_scale': 2.0**24, 'growth_interval': 3} if dtype else {}
    expected = run(Side(reference, accumulate=2, **options))
    side, regions = Side(candidate, accumulate=2, **options), [StepRegion(), EvalRegion('detector.network')]
    if graph.captures:
        activate_together(regions, candidate, parts=Parts(memory=lambda _: graph.memory()))
        graph.regions += reversed(regions)
    found = kit.difference(expected, run(side))
    assert found is None, str(found)
    graph.replays(regions[0], 8)
    graph.replays(regions[1], 8 + (first == 'evaluation'))
    if graph.captures:
        assert regions[0]._pool.memory is regions[1]._pool.memory
        assert [region.routes.captures for region in regions] == [1, 1]
        assert not any(region.routes.retired for region in regions)


@pytest.mark.parametrize('accumulate', [1, 2])
def test_dropout_draws_the_sequence_of_eager_and_honours_a_seed_between_steps(graph, kit, accumulate):
    batch, sides = kit.images(1, size=32)[0], []
    reference, candidate = kit.pair(graph, Stepped(kit.Detector(dropout=0.5)))
    for model in (reference, candidate):
        side = Side(model, accumulate=accumulate)
        region = activate(graph, candidate) if model is candidate else None
        values = []
        for seed in (3, None, 3, 4):  # from a seed, on from there, from it again, from another
            if seed is not None:
                torch.manual_seed(seed)
            values += side.run([batch, batch])
        sides.append(values)
    found = kit.difference(*sides)
    assert found is None, str(found)
    graph.replays(region, 8)


def test_a_seed_brings_the_drops_of_a_captured_step_back(graph, kit):
    _, candidate = kit.pair(graph, Stepped(kit.Detector(dropout=0.5)))
    side = Side(candidate)
    activate(graph, candidate)
    batch, losses = kit.images(1, size=32)[0], []
    for seed in (3, None, 3):
        for group in side.wrapper.param_groups:
            group['lr'] = 0.0
        if seed is not None:
            torch.manual_seed(seed)
        losses.append(side.model.step({'inputs': batch.to(graph.device)}, side.wrapper)['loss'].clone())
    assert torch.equal(losses[0], losses[2])
    assert not torch.equal(losses[0], losses[1])  # the control: without the seed other values are dropped


def test_a_parameter_that_no_loss_reaches_keeps_its_value_and_has_no_gradient(graph, kit):
    reference, candidate = kit.pair(graph, Stepped(kit.Detector()))
    region = activate(graph, candidate)
    Side(candidate, optimizer='AdamW', accumulate=2).run(kit.images(3, size=32))
    assert candidate.idle.grad is None
    assert torch.equal(candidate.idle, reference.idle)
    assert candidate.detector.network.stem[0][0].weight.grad is not None  # inside a window
    graph.replays(region, 3)


def test_values_for_the_log_stay_those_of_their_step(graph, kit):
    reference, candidate = kit.pair(graph, Stepped(kit.Detector()))
    sides = Side(reference), Side(candidate)
    activate(graph, candidate)
    batches = kit.images(4, size=32)
    for side in sides:
        side.run(batches)
    for expected, found in zip(sides[0].logs, sides[1].logs, strict=True):
        assert list(expected) == list(found)
        assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_release_in_the_middle_of_a_window_goes_on_eager_and_a_second_capture_too(graph, kit):
    reference, candidate = kit.pair(graph, Stepped(kit.Detector()))
    batches = kit.images(9, size=32)
    expected = Side(reference, accumulate=2).run(batches)
    side, found = Side(candidate, accumulate=2), []
    for start in (0, 3, 6):
        region = activate(graph, candidate)
        found += side.run(batches[start : start + 2])
        graph.replays(region, 2)
        region.release()
        assert 'step' not in vars(candidate)
        found += side.run(batches[start + 2 : start + 3])
    assert kit.difference(expected, found) is None


@pytest.mark.parametrize(
    'change',
    [
        lambda side: setattr(side.wrapper, 'clip_grad_kwargs', {'max_norm': 0.1}),
        lambda side: side.wrapper.param_groups[0].update(ns_steps=3),
        lambda side: side.wrapper.param_groups[0].update(w_muon=0.0),
        lambda side: side.model.detector.network.stem[0][1].eval(),
        lambda side: setattr(side.model.detector.network.stem[0][1], 'momentum', 0.5),
        lambda side: side.wrapper.load_state_dict(side.wrapper.state_dict()),
    ],
)
def test_what_a_recording_holds_may_change_in_mid_run(graph, kit, change):
    reference, candidate = kit.pair(graph, Stepped(kit.Detector()))
    sides = Side(reference, optimizer='MuSGD', accumulate=2), Side(candidate, optimizer='MuSGD', accumulate=2)
    region = activate(graph, candidate)
    batches = kit.images(6, size=32)
    runs = [side.run(batches[:2]) for side in sides]
    for side in sides:
        change(side)
    for values, side in zip(runs, sides, strict=True):
        values += side.run(batches[2:])
    assert kit.difference(*runs) is None
    graph.replays(region, 6)


def test_control_without_the_guard_an_option_of_the_optimizer_is_frozen(captured, kit, monkeypatch):
    monkeypatch.setattr(OptimWrapper, 'baked', lambda self: ())
    reference, candidate = kit.pair(captured, Stepped(kit.Detector()))
    sides = Side(reference, optimizer='MuSGD'), Side(candidate, optimizer='MuSGD')
    activate(captured, candidate)
    batches = kit.images(3, size=32)
    for side in sides:
        side.run(batches[:2])
        side.wrapper.param_groups[0]['ns_steps'] = 4
    assert kit.difference(*(side.run(batches[2:]) for side in sides)) is not None


def test_a_hook_on_a_parameter_runs_eager_by_name_and_replays_again_without_it(captured, kit):
    reference, candidate = kit.pair(captured, Stepped(kit.Detector()))
    sides = Side(reference), Side(candidate)
    region = activate(captured, candidate)
    batches = kit.images(4, size=32)
    runs = []
    for side in sides:
        values = side.run(batches[:1])
        handle = side.model.detector.network.stem[0][0].weight.register_hook(lambda grad: grad * 2)
        values += side.run(batches[1:3])
        handle.remove()
        runs.append(values + side.run(batches[3:]))
    assert kit.difference(*runs) is None
    assert region.routes.eager == {(Reason.HOOK, 'a hook on a parameter'): 2}
    captured.replays(region, 2)


def test_another_wrapper_retires_the_recordings(captured, kit):
    reference, candidate = kit.pair(captured, Stepped(kit.Detector()))
    region = activate(captured, candidate)
    batches = kit.images(4, size=32)
    runs = []
    for model in (reference, candidate):
        values = Side(model, optimizer='SGD').run(batches[:2])
        runs.append(values + Side(model, optimizer='AdamW').run(batches[2:]))
    assert kit.difference(*runs) is None
    assert region.routes.retired == {'the optimizer wrapper': 1}
    captured.replays(region, 4)


def test_on_change_raise_names_what_changed(captured, kit):
    _, candidate = kit.pair(captured, Stepped(kit.Detector()))
    side = Side(candidate)
    activate(captured, candidate, on_change='raise')
    side.run(kit.images(1, size=32))
    side.wrapper.clip_grad_kwargs = {'max_norm': 0.1}
    with pytest.raises(GuardError, match='an option of the optimizer, or of its wrapper, changed after capture'):
        side.run(kit.images(1, size=32))


def test_a_step_that_reads_the_host_is_refused_by_name_and_trains_on_eager(captured, kit):
    class Reads(Stepped):
        def compute(self, data, optim_wrapper):
            loss, values = super().compute(data, optim_wrapper)
            return loss * (1.0 if float(loss) > 0 else 2.0), values

    reference, candidate = kit.pair(captured, Reads(kit.Detector()))
    batches = kit.images(3, size=32)
    expected = Side(reference).run(batches)
    side = Side(candidate)
    region = activate(captured, candidate, on_error='eager')
    assert kit.difference(expected, side.run(batches)) is None
    assert {reason for reason, _ in region.routes.eager} == {Reason.FAILED}
    region.release()
    activate(captured, candidate)
    with pytest.raises(CaptureError, match='reads a tensor on the host'):
        side.run(batches[:1])


def test_an_optimizer_step_that_reads_the_host_is_refused_by_name_and_trains_on_eager(captured, kit):
    class Reading(ExponentialMovingAverage):
        def update(self, *given):
            if float(self._keep) >= 0:
                super().update(*given)

    reference, candidate = kit.pair(captured, Stepped(kit.Detector()))
    batches = kit.images(3, size=32)
    runs = []
    for model in (reference, candidate):
        side = Side(model, accumulate=1)
        side.wrapper.add_post_step(Reading(model))
        if model is candidate:
            region = activate(captured, candidate, on_error='eager')
        runs.append(side.run(batches))
    assert kit.difference(*runs) is None
    assert any('reads a tensor on the host' in detail for _, detail in region.routes.eager)


def test_the_accumulation_table_has_its_row(captured, kit):
    _, candidate = kit.pair(captured, Stepped(kit.Detector()))
    side = Side(candidate, accumulate=2)
    region = StepRegion(task='segment')
    table = AccumulationTable({('segment', 'step'): 'eager'})
    region.activate(candidate, accumulation=table, parts=Parts(memory=lambda _: captured.memory()))
    captured.regions.append(region)
    region.micro_batches = 2
    side.run(kit.images(2, size=32))
    assert region.routes.eager == {(Reason.ACCUMULATION, ''): 2}


def test_copies_and_pickles_of_a_captured_model_are_plain(captured, kit):
    _, candidate = kit.pair(captured, Stepped(kit.Detector()))
    side = Side(candidate)
    activate(captured, candidate)
    side.run(kit.images(2, size=32))
    for other in (copy.deepcopy(candidate), pickle.loads(pickle.dumps(candidate))):
        assert 'step' not in vars(other)
        assert all(torch.equal(a, b) for a, b in zip(candidate.parameters(), other.parameters(), strict=True))


def test_what_has_no_seam_is_refused_by_name(kit):
    with pytest.raises(TargetError, match=r"Detector has no compute and no step, .*type='ModuleRegion'"):
        StepRegion().activate(kit.Detector())
    region, model = StepRegion(), Stepped(kit.Detector())
    region.activate(model)
    with pytest.raises(TargetError, match='captured already'):
        StepRegion().activate(model)
    region.release()
    with pytest.raises(TargetError, match=r"torch\.optim\.sgd\.SGD has no scale_loss.*use lucid's OptimWrapper"):
        StepRegion.check_wrapper(torch.optim.SGD(model.parameters(), lr=0.1))


def test_control_a_rehearsal_that_is_not_undone_is_found_in_the_first_step(captured, kit, monkeypatch):
    class Nothing:
        written = ()

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(step_module, 'Undo', Nothing)
    found, _ = both(captured, kit, kit.images(2, size=32))
    assert found is not None
    assert found.step == 0


def test_control_sums_that_start_with_the_last_window_are_found_in_the_second_step(captured, kit, monkeypatch):
    monkeypatch.setattr(Accumulator, 'clear', lambda self: None)
    found, _ = both(captured, kit, kit.images(4, size=32), accumulate=2)
    assert found is not None
    assert found.step == 2


def test_control_a_rate_that_nobody_refills_is_frozen(captured, kit, monkeypatch):
    reference, candidate = kit.pair(captured, Stepped(kit.Detector()))
    batches = kit.images(3, size=32)
    expected = Side(reference).run(batches)
    side = Side(candidate)
    activate(captured, candidate)
    values = side.run(batches[:1])
    monkeypatch.setattr(SGD, 'refresh', lambda self: None)
    found = kit.difference(expected, values + side.run(batches[1:]))
    assert found is not None
    assert found.step == 1


@pytest.mark.cuda
@pytest.mark.parametrize('accumulate', [1, 3])
def test_three_hundred_steps_have_the_losses_of_eager_and_end_in_its_state(on_cuda, kit, accumulate):
    reference, candidate = kit.pair(on_cuda, Stepped(kit.Detector()))
    batches = [images.cuda() for images in kit.images(30, size=32)] * 10 * accumulate
    sides = (
        Side(reference, optimizer='MuSGD', accumulate=accumulate),
        Side(candidate, optimizer='MuSGD', accumulate=accumulate),
    )
    region = activate(on_cuda, candidate)
    losses, ends = [], []
    for side in sides:
        for images in batches[:-1]:
            side.model.weight.fill_(1.0 - 0.001 * side.count)
            side.logs.append(side.model.step({'inputs': images}, side.wrapper))
            side.count += 1
        losses.append(torch.stack([logs['loss'] for logs in side.logs]))
        ends.append(side.run(batches[-1:]))
    assert torch.equal(*losses)
    assert losses[0][-1] < losses[0][0]
    assert kit.difference(*ends) is None
    on_cuda.replays(region, 300 * accumulate)


@pytest.mark.cuda
def test_a_replayed_step_never_waits_for_the_device(on_cuda, kit):
    _, candidate = kit.pair(on_cuda, Stepped(kit.Detector()))
    side = Side(candidate, optimizer='MuSGD', dtype='float16', accumulate=2)
    region = activate(on_cuda, candidate)
    batches = [images.cuda() for images in kit.images(8, size=32)]
    side.run(batches[:4])
    kept = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode('error')
    try:
        for images in batches[4:]:
            candidate.step({'inputs': images}, side.wrapper)
        with pytest.raises(RuntimeError, match='synchronizing'):  # the control: a read is seen
            float(side.wrapper.grad_norm)
    finally:
        torch.cuda.set_sync_debug_mode(kept)
    on_cuda.replays(region, 8)
