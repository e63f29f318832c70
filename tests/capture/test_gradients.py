"""Cases 1 to 6: the gradients of a replay are those of eager, whoever keeps them."""

import pytest
import torch
from torch import nn

from lucid.capture import BackwardError, Pool, RecordingError
from lucid.capture.ownership import Adopt, copy_out
from lucid.capture.recording import Recording

MODES = ('clone', 'adopt')


class CopyInBackward(Adopt):
    """The log's first attempt: copy live gradients out in a pre-hook of the replayed backward."""

    synchronize = False

    def before_forward(self, holders):
        pass

    def before_backward(self, holders):
        if self.synchronize and torch.cuda.is_available():
            torch.cuda.synchronize()
        copy_out(holders)
        if self.synchronize and torch.cuda.is_available():
            torch.cuda.synchronize()


class CopyInBackwardSynchronized(CopyInBackward):
    synchronize = True


class NeverCopy(Adopt):
    def before_forward(self, holders):
        pass

    def before_backward(self, holders):
        pass


class NoHold(Pool):
    held = False

    def settle(self, node):
        return True


def both(kit, graph, batches, *, target='network', gradients='clone', shared=True, parts=None, model=None, **training):
    """Train the reference and the candidate; the first difference, and the region."""
    reference, candidate = kit.pair(graph, model)
    region = graph.capture(candidate, target, gradients=gradients, shared=shared, parts=parts)
    expected = kit.Training(reference, **training).run(batches)
    return kit.difference(expected, kit.Training(candidate, **training).run(batches)), region


@pytest.mark.parametrize('gradients', MODES)
@pytest.mark.parametrize('target', ['network', 'network.head'])
@pytest.mark.parametrize('accumulate', [1, 2, 4])
def test_every_micro_step_has_the_gradients_of_eager(graph, kit, accumulate, target, gradients):
    batches = kit.images(max(2 * accumulate, 4))
    found, region = both(kit, graph, batches, target=target, gradients=gradients, accumulate=accumulate)
    assert found is None, str(found)
    graph.replays(region, len(batches))


@pytest.mark.parametrize('gradients', MODES)
@pytest.mark.parametrize('target', ['network', 'network.head'])
@pytest.mark.parametrize('accumulate', [1, 2])
def test_in_place_zero_grad_equals_eager(graph, kit, accumulate, target, gradients):
    batches = kit.images(6)
    found, region = both(
        kit, graph, batches, target=target, gradients=gradients, accumulate=accumulate, set_to_none=False
    )
    assert found is None, str(found)
    graph.replays(region, 6)


@pytest.mark.cuda
@pytest.mark.parametrize('dtype', [None, torch.float16, torch.bfloat16])
def test_control_eager_equals_eager_on_the_card(on_cuda, kit, dtype):
    """Where this fails, the card's own kernels are not deterministic, and no other test on it says anything."""
    batches = kit.images(6)
    runs = [kit.Training(model, accumulate=2, dtype=dtype).run(batches) for model in kit.pair(on_cuda)]
    found = kit.difference(*runs)
    assert found is None, str(found)


@pytest.mark.parametrize('ownership', [CopyInBackward, CopyInBackwardSynchronized, NeverCopy])
@pytest.mark.usefixtures('no_kept_graph')
def test_control_copying_after_the_forward_replay_is_too_late_in_a_shared_pool(captured, kit, ownership):
    found, _ = both(
        kit, captured, kit.images(4), gradients='adopt', accumulate=2, parts={'ownership': lambda _: ownership()}
    )
    assert found is not None
    assert found.step == 1, str(found)  # the second micro-step of the first window
    assert found.key.startswith('grad.')


def test_copying_in_the_backward_is_right_with_separate_pools(captured, kit):
    batches = kit.images(6)
    parts = {'ownership': lambda _: CopyInBackward()}
    found, _ = both(kit, captured, batches, gradients='adopt', accumulate=3, shared=False, parts=parts)
    assert found is None, str(found)
    parts = {'ownership': lambda _: NeverCopy()}
    found, _ = both(kit, captured, batches, gradients='adopt', accumulate=3, shared=False, parts=parts)
    assert found is not None


def test_no_gradient_shares_memory_with_a_static_buffer_when_a_replay_starts(captured, kit):
    _, candidate = kit.pair(captured)
    seen = []

    class Watch(Adopt):
        def before_forward(self, holders):
            super().before_forward(holders)
            seen.append((self.live(holders), 'forward'))

        def before_backward(self, holders):
            super().before_backward(holders)
            seen.append((self.live(holders), 'backward'))

        @staticmethod
        def live(holders):
            spans = [span for holder in holders for span in holder.gradients.spans()]
            grads = [p.grad for p in candidate.parameters() if p.grad is not None]
            return sum(any(a <= g.data_ptr() < b for a, b in spans) for g in grads)

    captured.capture(candidate, gradients='adopt', parts={'ownership': lambda _: Watch()})
    training = kit.Training(candidate, accumulate=4)
    adopted = []
    for batch in kit.images(8):
        training.micro_step(batch)
        pool = captured.regions[0]._pool
        spans = [span for r in pool.recordings for span in r.gradients.spans()]
        adopted.append(
            any(a <= p.grad.data_ptr() < b for p in candidate.parameters() if p.grad is not None for a, b in spans)
        )
    assert adopted[0], 'autograd did not adopt: this test shows nothing'
    assert {count for count, _ in seen} == {0}


@pytest.mark.parametrize('read', [(0, 1, 2, 3), (0, 1), (2, 3), (1,)])
def test_parameters_that_the_read_outputs_do_not_reach_have_none(graph, kit, read):
    found, region = both(kit, graph, kit.images(4), read=read, accumulate=2)
    assert found is None, str(found)
    graph.replays(region, 4)


def test_control_without_the_reach_of_outputs_unread_parameters_have_zeros(captured, kit):
    class Zeros(Recording):
        def record(self):
            super().record()
            self._reach = [frozenset().union(*self._reach)] * len(self._reach)

    found, _ = both(kit, captured, kit.images(2), read=(0, 1), parts={'recording': Zeros})
    assert found is not None
    assert 'one2one' in found.key


@pytest.mark.parametrize('gradients', MODES)
@pytest.mark.parametrize('read', [(0, 1, 2, 3), (0, 2), (1,)])
def test_two_forwards_before_one_backward_equal_eager(graph, kit, read, gradients):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate, gradients=gradients)

    def run(model):
        training, values = kit.Training(model, read=read), []
        for first, second in zip(kit.images(6), kit.images(6, seed=2), strict=True):
            a, b = training.forward(first.to(graph.device)), training.forward(second.to(graph.device))
            (a + 2 * b).backward()
            values.append(training.finish(a + b))
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 6)


def test_two_forwards_with_a_backward_each_equal_eager(graph, kit):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate)

    def run(model):
        training, values = kit.Training(model), []
        for first, second in zip(kit.images(4), kit.images(4, seed=2), strict=True):
            a, b = training.forward(first.to(graph.device)), training.forward(second.to(graph.device))
            b.backward()
            a.backward()
            values.append(training.finish(a + b))
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 4)


def test_control_without_the_hold_a_second_forward_destroys_the_first(captured, kit):
    reference, candidate = kit.pair(captured)
    captured.capture(candidate, parts={'pool': NoHold})

    def run(model):
        training, values = kit.Training(model), []
        for first, second in zip(kit.images(2), kit.images(2, seed=2), strict=True):
            a, b = training.forward(first.to(captured.device)), training.forward(second.to(captured.device))
            (a + b).backward()
            values.append(training.finish(a + b))
        return values

    assert kit.difference(run(reference), run(candidate)) is not None


def four_steps(kit, model, device, *, replayed):
    """Losses and outputs of four steps, read when all are over; ``replayed`` outputs are those of the loss's call."""
    training, kept = kit.Training(model), []
    for batch in kit.images(4):
        images = batch.to(device)
        first = model.network(images)
        second = model.network(images)  # while the first waits for its backward: eager
        loss = sum((1.0 + i) * output.square().mean() for i, output in enumerate(first))
        loss.backward()
        kept.append((loss, first if replayed else second))
        training.finish(loss)
    return [{'loss': loss.detach(), 'outputs': [o.detach() for o in outputs]} for loss, outputs in kept]


@pytest.mark.parametrize('replayed', [True, False])
def test_losses_and_outputs_of_four_steps_are_read_at_the_end(graph, kit, replayed):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate)
    found = kit.difference(*(four_steps(kit, m, graph.device, replayed=replayed) for m in (reference, candidate)))
    assert found is None, str(found)
    graph.replays(region, 4)


def test_control_replayed_outputs_that_are_not_copied_are_those_of_the_last_step(captured, kit):
    reference, candidate = kit.pair(captured)
    captured.capture(candidate, parts={'recording': Uncopied})
    found = kit.difference(*(four_steps(kit, m, captured.device, replayed=True) for m in (reference, candidate)))
    assert found is not None
    assert (found.step, found.key) == (0, 'outputs.0'), str(found)


class Uncopied(Recording):
    def copies(self):
        return [output.detach() for output in self._outputs]


def test_control_outputs_that_are_not_copied_change_under_the_caller(captured, kit):
    _, candidate = kit.pair(captured)
    captured.capture(candidate, parts={'recording': Uncopied})
    first, second = (batch.to(captured.device) for batch in kit.images(2))
    outputs = candidate.network(first)
    kept = [output.detach().clone() for output in outputs]
    held = [output.detach() for output in outputs]
    del outputs
    candidate.network(second)
    assert not all(torch.equal(a, b) for a, b in zip(kept, held, strict=True))


def keep_gradients(kit, graph, model):
    """Gradients kept by a tensor hook, by who holds the ``.grad`` object, by ``autograd.grad`` and ``retain_grad``."""
    training, kept = kit.Training(model), {'hook': [], 'object': [], 'grad': [], 'retained': []}
    weight = model.network.stem[0][0].weight
    handle = weight.register_hook(lambda grad: kept['hook'].append(grad))
    retained = []
    level = model.network.level2.register_forward_hook(
        lambda m, args, out: (out.retain_grad(), retained.append(out))[0]
    )
    for batch in kit.images(4):
        batch = batch.to(graph.device)
        kept['grad'].append(torch.autograd.grad(training.forward(batch), [weight])[0])
        loss = training.forward(batch)
        loss.backward()
        kept['object'].append(weight.grad)
        training.finish(loss)
    kept['retained'] = [tensor.grad for tensor in retained]
    handle.remove()
    level.remove()
    return kept


def test_gradients_kept_by_anyone_stay_those_of_their_step(graph, kit):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate, 'network.head')  # level2's output is an input of the region
    whole = graph.capture(kit.pair(graph, candidate)[1], 'network.stem')
    found = kit.difference([keep_gradients(kit, graph, reference)], [keep_gradients(kit, graph, candidate)])
    assert found is None, str(found)
    graph.replays(region, 8)
    graph.replays(whole, 8)


def test_control_adopted_gradients_that_a_caller_keeps_are_overwritten(captured, kit):
    reference, candidate = kit.pair(captured)
    captured.capture(candidate, 'network.stem', gradients='adopt')
    found = kit.difference([keep_gradients(kit, captured, reference)], [keep_gradients(kit, captured, candidate)])
    assert found is not None


def test_a_tensor_hook_that_changes_the_gradient_runs_once_per_backward(graph, kit):
    reference, candidate = kit.pair(graph)
    for model in (reference, candidate):
        model.network.stem[0][0].weight.register_hook(lambda grad: grad * 2)
    region = graph.capture(candidate)
    batches = kit.images(3)
    found = kit.difference(kit.Training(reference).run(batches), kit.Training(candidate).run(batches))
    assert found is None, str(found)
    graph.replays(region, 3)


@pytest.mark.parametrize('gradients', MODES)
def test_gradients_have_nothing_to_do_with_their_neighbours(graph, kit, gradients):
    """Who changes one in place, in a hook or after the backward, changes neither another nor its version."""
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate, gradients=gradients)

    def run(model):
        training, values = kit.Training(model), []
        conv, norm = model.network.stem[0][0].weight, model.network.stem[0][1].weight
        conv.register_hook(lambda grad: grad.mul_(2.0))
        for images in kit.images(3):
            training.forward(images.to(graph.device)).backward()
            versions = [p.grad._version for p in model.parameters()]
            norm.grad.add_(1.0)
            changed = [p.grad._version - v for p, v in zip(model.parameters(), versions, strict=True)]
            assert changed == [int(p is norm) for p in model.parameters()]
            assert all(p.grad._base is None for p in model.parameters())
            values.append(training.finish(torch.zeros(())))
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 3)


def test_tied_weights_equal_eager(graph, kit):
    model = kit.Detector()
    model.network.head.one2many[0][1].weight = model.network.head.one2one[0][1].weight
    model.network.head.one2many[1] = nn.Sequential(
        kit.ConvBNSiLU(16, 8), model.network.head.one2many[0][1]
    )  # one module used at both levels
    found, region = both(kit, graph, kit.images(4), model=model, accumulate=2)
    assert found is None, str(found)
    graph.replays(region, 4)


class TiedOutside(nn.Module):
    """A weight that the target uses ``inside`` times, and another module once more."""

    def __init__(self, inside: int) -> None:
        super().__init__()
        shared = nn.Linear(24, 24, bias=False)
        self.target = nn.Sequential(*[layer for _ in range(inside) for layer in (shared, nn.Tanh())])
        self.outside = nn.Linear(24, 24, bias=False)
        self.outside.weight = shared.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.outside(self.target(rows)).square().sum()


def _tied_gradients(graph, kit, inside, *, unguarded=False):
    torch.manual_seed(3)
    reference, candidate = kit.pair(graph, TiedOutside(inside))
    region = graph.capture(candidate, 'target')
    if unguarded:
        region._outside = frozenset()
    rows = torch.randn(7, 24).to(graph.device)
    for model in (reference, candidate):
        model(rows).backward()
    return reference.outside.weight.grad, candidate.outside.weight.grad, region


def test_a_weight_used_once_inside_and_once_outside_the_target_has_the_sum_of_eager(graph, kit):
    expected, found, region = _tied_gradients(graph, kit, inside=1)
    assert torch.equal(expected, found)
    graph.replays(region, 1)


class TiedAround(nn.Module):
    """One weight before the target, in it, and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(24, 24, bias=False), nn.Linear(24, 24, bias=False)
        self.target = nn.Sequential(nn.Linear(24, 24, bias=False), nn.Tanh())
        self.before.weight = self.after.weight = self.target[0].weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.after(self.target(self.before(rows).tanh())).square().sum()


def _around(graph, kit, *, direct=True):
    torch.manual_seed(3)
    reference, candidate = kit.pair(graph, TiedAround())
    region = graph.capture(candidate, 'target')
    if not direct:
        region._outside = frozenset()
    rows = torch.randn(7, 24).to(graph.device)
    for model in (reference, candidate):
        for _ in range(2):
            model(rows).backward()
    graph.replays(region, 2)
    return reference.before.weight.grad, candidate.before.weight.grad


def test_a_weight_used_before_in_and_after_the_target_has_the_sum_of_eager(graph, kit):
    assert torch.equal(*_around(graph, kit))


def test_control_behind_the_lasting_node_the_three_are_summed_in_another_order(captured, kit):
    expected, found = _around(captured, kit, direct=False)
    assert not torch.equal(expected, found)
    torch.testing.assert_close(expected, found)


def test_hooks_on_parameters_see_the_gradients_of_eager_whenever_they_were_registered(graph, kit):
    """Tensor hooks and hooks after accumulation, from before the first replay and from after it; each in its order."""
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate)
    batches = kit.images(3)

    def run(model):
        training, seen = kit.Training(model), {}
        weight, bias = model.network.stem[0][0].weight, model.network.stem[0][1].bias
        for step, batch in enumerate(batches):
            if step < 2:
                before, after = seen.setdefault(f'hook {step}', []), seen.setdefault(f'after {step}', [])
                weight.register_hook(lambda grad, kept=before: kept.append(grad.clone()))
                bias.register_post_accumulate_grad_hook(lambda p, kept=after: kept.append(p.grad.clone()))
            training.micro_step(batch)
        return seen

    expected, found = run(reference), run(candidate)
    assert {key: len(grads) for key, grads in found.items()} == {'hook 0': 3, 'after 0': 3, 'hook 1': 2, 'after 1': 2}
    for key, grads in expected.items():
        assert all(torch.equal(a, b) for a, b in zip(grads, found[key], strict=True)), key
    graph.replays(region, 3)


class MaskFirst(nn.Module):
    """Returns a mask and whole numbers before what has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, rows):
        values = self.linear(rows)
        return values.detach() > 0, values.detach().argmax(1), values


def test_parameters_get_their_gradients_when_the_first_output_is_a_mask(graph, kit):
    reference, candidate = kit.pair(graph, nn.ModuleDict({'network': MaskFirst()}))
    region = graph.capture(candidate)
    rows = torch.randn(5, 6, device=graph.device)
    for model in (reference, candidate):
        mask, best, values = model['network'](rows)
        (values * mask).sum().add(values.gather(1, best[:, None]).sum()).backward()
    for a, b in zip(reference.parameters(), candidate.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    graph.replays(region, 1)


def test_a_replay_between_eager_calls_of_one_backward_has_the_sum_of_eager(graph, kit):
    """A head over three levels, of which the second has the recorded shape."""
    torch.manual_seed(1)
    reference, candidate = kit.pair(graph, nn.ModuleDict({'network': nn.Linear(16, 16)}))
    region = graph.capture(candidate)
    generator = torch.Generator().manual_seed(2)
    levels = [torch.randn(rows, 16, generator=generator).to(graph.device) for rows in (32, 64, 48)]
    for model in (reference, candidate):
        model['network'](torch.ones(64, 16, device=graph.device)).sum().backward()
        sum(model['network'](x).square().mean() * w for x, w in zip(levels, (1, 3, 7), strict=True)).backward()
    for a, b in zip(reference.parameters(), candidate.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    graph.replays(region, 2)


def test_a_gradient_of_inputs_alone_leaves_nothing_for_the_parameters(graph, kit):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate)
    (images,) = kit.images(1)
    found = []
    for model in (reference, candidate):
        leaf = images.to(graph.device).requires_grad_()
        found.append(torch.autograd.grad(model(leaf), leaf)[0])
        assert all(parameter.grad is None for parameter in model.parameters())
        model(leaf).backward()
    assert torch.equal(*found)
    for a, b in zip(reference.parameters(), candidate.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    graph.replays(region, 2)


def test_a_weight_used_twice_inside_and_once_outside_the_target_is_refused_by_name(captured, kit):
    with pytest.raises(RecordingError, match=r'parameter 0\.weight is used 2 times in the target'):
        _tied_gradients(captured, kit, inside=2)


def test_control_without_the_refusal_the_sum_is_taken_in_another_order(captured, kit):
    expected, found, region = _tied_gradients(captured, kit, inside=2, unguarded=True)
    captured.replays(region, 1)
    assert not torch.equal(expected, found)
    torch.testing.assert_close(expected, found)


def test_a_second_backward_is_refused_by_name(captured, kit):
    _, candidate = kit.pair(captured)
    captured.capture(candidate)
    training = kit.Training(candidate)
    batch = kit.images(1)[0].to(captured.device)
    loss = training.forward(batch)
    loss.backward(retain_graph=True)
    with pytest.raises(BackwardError, match='second backward'):
        loss.backward()
    training.forward(batch).backward()  # the region still works
    captured.replays(captured.regions[0], 2)


def test_create_graph_is_refused_by_name(captured, kit):
    _, candidate = kit.pair(captured)
    captured.capture(candidate)
    loss = kit.Training(candidate).forward(kit.images(1)[0].to(captured.device))
    with pytest.raises(BackwardError, match='create_graph'):
        torch.autograd.grad(loss, list(candidate.parameters()), create_graph=True, allow_unused=True)


def test_a_parameter_written_between_forward_and_backward_is_refused(captured, kit):
    _, candidate = kit.pair(captured)
    captured.capture(candidate)
    loss = kit.Training(candidate).forward(kit.images(1)[0].to(captured.device))
    with torch.no_grad():
        candidate.network.stem[0][0].weight.mul_(0.5)
    with pytest.raises(BackwardError, match='written in place'):
        loss.backward()


@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
def test_a_parameter_written_between_forward_and_backward_is_refused_where_eager_refuses_it(graph, kit, dtype):
    """Each parameter in turn: what autograd does not keep, as biases and what autocast has copied, may change."""
    reference, candidate = kit.pair(graph)
    graph.capture(candidate)
    batch = kit.images(1)[0].to(graph.device)

    def run(model):
        training, found = kit.Training(model, dtype=dtype), {}
        for name, parameter in model.named_parameters():
            loss = training.forward(batch)
            with torch.no_grad():
                parameter.mul_(0.9)
            try:
                loss.backward()
                found[name] = {n: p.grad for n, p in model.named_parameters()}
            except RuntimeError:
                found[name] = 'refused'
            training.optimizer.zero_grad()
        return found

    expected, found = run(reference), run(candidate)
    assert kit.difference([expected], [found]) is None
    refused = [name for name, value in expected.items() if value == 'refused']
    assert 0 < len(refused) < len(expected)
    assert ('network.stem.0.0.weight' in refused) is (dtype is None)
    assert 'network.stem.0.1.bias' not in refused


def test_a_target_that_nobody_may_watch_keeps_all_of_its_parameters(captured):
    class Closed(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x):
            with torch.autograd.graph.disable_saved_tensors_hooks('not here'):
                return (x * self.scale + self.shift).square().mean()

    model = Closed().to(captured.device)
    captured.capture(model, '')
    loss = model(torch.randn(2, 3, device=captured.device))
    with torch.no_grad():
        model.shift.add_(1.0)
    with pytest.raises(BackwardError, match='written in place'):
        loss.backward()


def test_a_capture_while_an_eager_forward_waits_for_its_backward_equals_eager(graph, kit):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate)

    def run(model):
        training = kit.Training(model)
        values = training.run(kit.images(2))
        waiting = training.forward(kit.images(1, batch=2)[0].to(graph.device))  # a partial batch runs eager
        region.invalidate('to capture now')
        loss = training.forward(kit.images(1, seed=3)[0].to(graph.device))
        (waiting + loss).backward()
        return [*values, training.finish(waiting + loss)]

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 3)
    if graph.captures:
        assert region.routes.captures == 2


def test_a_backward_after_the_release_is_refused_by_name(captured, kit):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate)
    loss = candidate(kit.images(1)[0].to(captured.device))
    region.release()
    with pytest.raises(BackwardError, match='released'):
        loss.backward()


class Through(nn.Module):
    """Returns its input, one output twice, and a view."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        return x, y, y, y[:, :1], self.linear.weight


def test_outputs_that_are_inputs_parameters_or_each_other_have_the_gradients_of_eager(graph):
    torch.manual_seed(0)
    models = [nn.ModuleDict({'network': Through()}).to(graph.device) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    region = graph.capture(models[1])
    for read in ((0, 1, 2, 3, 4), (0,), (2, 3), (4,)):
        found = []
        for model in models:
            torch.manual_seed(1)
            x = torch.randn(2, 3, device=graph.device, requires_grad=True)
            model.zero_grad()
            outputs = model['network'](x)
            sum((1 + i) * outputs[i].square().sum() for i in read).backward()
            found.append([x.grad, *(p.grad for p in model.parameters()), *outputs])
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None), read
            assert a is None or torch.equal(a, b), read
    graph.replays(region, 4)


def test_losses_dropped_without_backward_do_not_hold_the_region(graph, kit):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate)

    def run(model):
        training, values = kit.Training(model), []
        for batch in kit.images(10):
            training.forward(batch.to(graph.device))
        values += training.run(kit.images(3, seed=2))
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 13)


class StrongHold(Pool):
    """Holds the autograd node itself."""

    def hold(self, node):
        super().hold(node)
        self.node = node


def test_control_a_strong_hold_never_ends(captured, kit):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate, parts={'pool': StrongHold})
    for batch in kit.images(3):
        candidate(batch.to(captured.device))
    captured.replays(region, 1)


@pytest.mark.parametrize('shared', [True, False])
@pytest.mark.usefixtures('no_kept_graph')
def test_a_forward_replay_alone_destroys_gradient_buffers_in_a_shared_pool_only(captured, kit, shared):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate, shared=shared)
    kit.Training(candidate).run(kit.images(1))
    (recording,) = region._pool.recordings
    owned = (True, True)  # clones: before and after
    positions = range(len(recording.gradients.slots))
    before = recording.gradients.views(positions, owned=owned)
    recording._forward.replay()
    after = recording.gradients.views(positions, owned=owned)
    changed = sum(not torch.equal(before[i], after[i]) for i in before)
    assert (changed > 0) is shared, f'{changed} of {len(before)} gradients changed'


@pytest.mark.parametrize('gradients', MODES)
@pytest.mark.parametrize('order', ['aba', 'baa', 'bab', 'abb'])
def test_two_signatures_in_one_pool_accumulate_in_every_order(graph, kit, order, gradients):
    sizes = {'a': 4, 'b': 2}
    batches = [kit.images(1, batch=sizes[kind], seed=i)[0] for i, kind in enumerate(order * 3)]
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate, gradients=gradients, on_new_signature='capture')
    expected = kit.Training(reference, accumulate=3).run(batches)
    found = kit.difference(expected, kit.Training(candidate, accumulate=3).run(batches))
    assert found is None, str(found)
    graph.replays(region, 9)
    if graph.captures:
        assert region.routes.captures == 2


def test_control_two_adopting_signatures_need_the_copy_before_any_replay(captured, kit):
    class OwnOnly(Adopt):
        """Copies out what its own recording holds, not what another recording of the pool does."""

        def before_forward(self, holders):
            super().before_forward(holders[:1])

        def before_backward(self, holders):
            super().before_backward(holders[:1])

    batches = [kit.images(1, batch=b, seed=i)[0] for i, b in enumerate([4, 2, 4, 2, 4, 4])]
    reference, candidate = kit.pair(captured)
    captured.capture(candidate, gradients='adopt', on_new_signature='capture', parts={'ownership': lambda _: OwnOnly()})
    expected = kit.Training(reference, accumulate=3).run(batches)
    assert kit.difference(expected, kit.Training(candidate, accumulate=3).run(batches)) is not None
