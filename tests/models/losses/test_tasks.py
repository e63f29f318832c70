"""What the losses of masks, oriented boxes and keypoints have in common."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from lucid.registry import LOSSES
from lucid.structures import AnchorGrid, Targets

TASKS = {'segment': {}, 'oriented': {}, 'keypoint': {'oks_gain': 24.0}}
TERMS = {
    'segment': ('box', 'cls', 'l1', 'mask'),
    'oriented': ('cls', 'rbox', 'rl1', 'angle'),
    'keypoint': ('box', 'cls', 'l1', 'keypoint', 'oks'),
}
# Terms of positives at fixed capacity: sums in another order at another capacity.
ROUNDED = ('mask', 'keypoint', 'oks')
each_task = pytest.mark.parametrize('task', TASKS)


@pytest.fixture(name='make')
def fixture_make(task_scene: Callable) -> Callable[..., Any]:
    def make(task: str, seed: int, **scene: Any) -> Any:
        return task_scene(task, seed, TASKS[task], **scene)

    return make


def total(losses: dict[str, Tensor]) -> Tensor:
    return sum(value for name, value in losses.items() if 'loss' in name)


def with_leaves(scene: Any) -> Any:
    return type(scene.outputs)(*(tensor.detach().clone().requires_grad_() for tensor in scene.outputs))


def same(one: tuple[dict, list], other: tuple[dict, list]) -> bool:
    """Equal bits, or NaN in the same places."""
    pairs = [(value, other[0][name]) for name, value in one[0].items()] + list(zip(one[1], other[1], strict=True))
    return all(torch.equal(a.nan_to_num(nan=7e37), b.nan_to_num(nan=7e37)) for a, b in pairs)


@each_task
class TestPadding:
    def test_at_one_capacity_the_bits_do_not_depend_on_what_the_padding_holds(
        self, task: str, device: torch.device, make: Callable, poison: Callable
    ) -> None:
        for seed in range(3):
            scene = make(task, seed, dtype=torch.float32, tied=seed == 0).to(device)
            dirty = scene._replace(targets=poison(scene.targets, 8)).to(device)
            assert same(scene.run(), dirty.run())

    def test_another_capacity_gives_the_same_bits_but_for_the_sums_over_positives(
        self, task: str, device: torch.device, make: Callable, poison: Callable
    ) -> None:
        for seed in range(3):
            scene = make(task, seed, dtype=torch.float32, tied=seed == 0, side=96).to(device)
            expected, expected_gradients = scene.run()
            for capacity in (9, 64):
                found, gradients = scene._replace(targets=poison(scene.targets, capacity)).to(device).run()
                for name, value in expected.items():
                    if name.split('_')[-1] in ROUNDED:
                        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=0)
                    else:
                        assert torch.equal(found[name], value), (name, capacity)
                for one, other in zip(gradients, expected_gradients, strict=True):
                    if task == 'oriented':
                        assert torch.equal(one, other)
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * other.abs().max().item())

    @pytest.mark.parametrize('value', [float('nan'), float('inf'), 1e30])
    def test_where_predictions_are_not_finite_the_padding_still_plays_no_part(
        self, task: str, value: float, make: Callable, poison: Callable
    ) -> None:
        scene = make(task, 0, dtype=torch.float32)
        for tensor in scene.outputs:
            tensor[0, ::3] = value
        dirty = scene._replace(targets=poison(scene.targets, 8))
        assert same(scene.run(), scene.run())
        assert same(scene.run(), dirty.run())


@each_task
class TestGradients:
    def test_a_batch_without_boxes_leaves_exact_zeros_and_a_gradient_for_everything(
        self, task: str, device: torch.device, make: Callable
    ) -> None:
        scene = make(task, 0, dtype=torch.float32).without_boxes().to(device)
        losses, gradients = scene.run()
        for term in TERMS[task]:
            assert losses[f'loss_{term}'].requires_grad
            assert (losses[f'loss_{term}'].item() == 0) == (term != 'cls')
        fields = list(scene.outputs._fields)
        fields += [name for name, _ in scene.loss.named_parameters()]
        for name, gradient in zip(fields, gradients, strict=True):
            assert gradient.isfinite().all(), name
            assert gradient.any() == ('logits' in name or 'semantic' in name), name

    def test_without_boxes_what_is_not_finite_reaches_no_term_of_positives(self, task: str, make: Callable) -> None:
        scene = make(task, 0, dtype=torch.float32).without_boxes()
        for name, tensor in zip(scene.outputs._fields, scene.outputs, strict=True):
            if 'logits' not in name and 'semantic' not in name:
                tensor.fill_(float('nan'))
        losses, gradients = scene.run()
        assert all(value.isfinite() for value in losses.values())
        assert all(gradient.isfinite().all() for gradient in gradients)

    def test_nan_in_the_background_harms_no_other_anchor(self, task: str, make: Callable) -> None:
        scene = make(task, 0, tied=False, dtype=torch.float32)
        first = torch.zeros_like(scene.targets.valid_BM).index_fill_(1, torch.tensor([0]), True)
        scene = scene._replace(targets=scene.targets._replace(valid_BM=first))
        far = (scene.grid.centers_A2 > scene.targets.boxes_BM4[:, 0, None, 2:] + 16).all(dim=-1)
        assert far.any()
        clean = scene.run()
        for name, tensor in zip(scene.outputs._fields, scene.outputs, strict=True):
            if name.startswith('o2') and 'logits' not in name:
                tensor[far] = float('nan')
        assert same(scene.run(), clean)

    def test_nan_predictions_reach_the_terms_of_their_branch(self, task: str, make: Callable) -> None:
        scene = make(task, 0, dtype=torch.float32)
        for name, tensor in zip(scene.outputs._fields, scene.outputs, strict=True):
            if name.startswith('o2m') and 'logits' not in name:
                tensor.fill_(float('nan'))
        losses, _ = scene.run()
        assert all(losses[f'o2m_{term}'].isnan() for term in TERMS[task] if term != 'cls')
        assert all(losses[f'o2o_{term}'].isfinite() for term in TERMS[task])

    @pytest.mark.parametrize('raw', [(-2, -2, -2, -2), (0, 0, 0, 0), (5e4, 5e4, 5e4, 5e4), (-1e4, -1e4, 1e4, 1e4)])
    @pytest.mark.parametrize('size', [0.0, 1e-3, 1.0, 64.0])
    def test_gradients_are_finite_for_boxes_of_any_size_true_or_predicted(
        self, task: str, raw: tuple[float, ...], size: float, make: Callable
    ) -> None:
        scene = make(task, 2, dtype=torch.float32)
        boxes = torch.tensor(raw, dtype=torch.float32).expand_as(scene.outputs.o2m_boxes_BA4)
        targets = scene.targets
        targets = targets._replace(boxes_BM4=torch.cat((targets.boxes_BM4[..., :2],) * 2, dim=-1))
        targets.boxes_BM4[..., 2:] += size
        if targets.rboxes_BM5 is not None:
            targets.rboxes_BM5[..., 2:4] = size
        outputs = scene.outputs._replace(o2m_boxes_BA4=boxes, o2o_boxes_BA4=boxes)
        losses, gradients = scene._replace(outputs=outputs, targets=targets).run()
        assert all(value.isfinite() for value in losses.values()), losses
        assert all(gradient.isfinite().all() for gradient in gradients)


@each_task
class TestCapturability:
    def test_forward_and_backward_never_read_the_device(
        self, task: str, make: Callable, no_host_read: Callable
    ) -> None:
        scene = make(task, 0)
        with no_host_read():
            scene.run()

    def test_a_trace_of_one_batch_computes_another(self, task: str, make: Callable) -> None:
        scene = make(task, 0, dtype=torch.float32)

        def step(outputs: Any, targets: Targets, grid: AnchorGrid) -> tuple[list[Tensor], list[Tensor]]:
            losses = scene.loss(outputs, targets, grid)
            return list(losses.values()), list(torch.autograd.grad(total(losses), tuple(outputs)))

        traced = make_fx(step, tracing_mode='fake', _allow_non_fake_inputs=True)(
            with_leaves(scene), scene.targets, scene.grid
        )
        for seed in (1, 2, 3):
            other = make(task, seed, dtype=torch.float32)
            few = other.targets._replace(valid_BM=other.targets.valid_BM & (torch.arange(8) < seed - 1))
            expected, found = (one(with_leaves(other), few, other.grid) for one in (step, traced))
            assert all(map(torch.equal, found[0] + found[1], expected[0] + expected[1]))

    def test_it_compiles_as_one_graph_with_the_same_bits(self, task: str, make: Callable) -> None:
        scene = make(task, 1, dtype=torch.float32)
        expected = scene.run()
        torch._dynamo.reset()
        compiled = torch.compile(scene.loss, backend='eager', fullgraph=True)
        assert same(scene._replace(loss=compiled).run(), expected)

    @pytest.mark.cuda
    def test_a_card_is_never_waited_for(self, task: str, make: Callable) -> None:
        scene = make(task, 0, dtype=torch.float32).to(torch.device('cuda'))
        scene.run()
        torch.cuda.set_sync_debug_mode('error')
        try:
            scene.run()
            with pytest.raises(RuntimeError, match='synchroniz'):
                scene.outputs[0].sum().item()
        finally:
            torch.cuda.set_sync_debug_mode('default')

    @pytest.mark.cuda
    def test_deterministic_algorithms_suffice_and_give_the_same_bits_again(
        self, task: str, make: Callable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
        scene = make(task, 0, dtype=torch.float32).to(torch.device('cuda'))
        torch.use_deterministic_algorithms(True)
        try:
            assert same(scene.run(), scene.run())
        finally:
            torch.use_deterministic_algorithms(False)


@each_task
class TestInterface:
    def test_what_is_for_the_log_is_detached_and_not_called_loss(self, task: str, make: Callable) -> None:
        losses, _ = make(task, 0).run()
        extra = {'segment': ('loss_semantic', 'semantic')}.get(task, ())
        names = [f'{kind}_{term}' for kind in ('loss', 'o2m', 'o2o') for term in TERMS[task]]
        assert set(losses) == {*names, *extra}
        for name, value in losses.items():
            assert value.shape == ()
            assert value.requires_grad == ('loss' in name)

    def test_the_branch_weight_blends_the_branches_of_every_term(self, task: str, make: Callable) -> None:
        scene = make(task, 0)
        assert scene.loss.branch_weight.shape == ()
        assert scene.loss.branch_weight.item() == 0.5
        assert 'branch_weight' not in scene.loss.state_dict()
        for weight in (0.0, 0.25, 1.0):
            scene.loss.branch_weight.fill_(weight)
            losses, _ = scene.run()
            for term in TERMS[task]:
                expected = weight * losses[f'o2m_{term}'] + (1 - weight) * losses[f'o2o_{term}']
                torch.testing.assert_close(losses[f'loss_{term}'], expected, rtol=1e-14, atol=0)

    def test_the_gains_scale_their_terms(self, task: str, make: Callable, task_scene: Callable) -> None:
        plain, _ = make(task, 1).run()
        terms = [*TERMS[task], *(['semantic'] if task == 'segment' else [])]
        gains = {f'{term}_gain': getattr(make(task, 1).loss, f'{term}_gain') for term in terms}
        tripled, _ = task_scene(task, 1, {name: 3 * gain for name, gain in gains.items()}).run()
        for term in terms:
            torch.testing.assert_close(tripled[f'loss_{term}'], 3 * plain[f'loss_{term}'], rtol=1e-12, atol=0)

    @pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
    def test_half_precision_outputs_are_computed_in_float32(
        self, task: str, dtype: torch.dtype, make: Callable
    ) -> None:
        scene = make(task, 0, tied=False, dtype=torch.float32)
        half = [tensor.to(dtype) for tensor in scene.outputs]
        found, gradients = scene._replace(outputs=type(scene.outputs)(*half)).run()
        exact = scene._replace(outputs=type(scene.outputs)(*(tensor.float() for tensor in half)))
        expected, expected_gradients = exact.run()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        for one, other in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(one, other.to(one.dtype), rtol=0, atol=0)

    def test_targets_without_what_the_task_needs_are_refused_with_the_remedy(self, task: str, make: Callable) -> None:
        scene = make(task, 0)
        kind = {'segment': 'masks', 'oriented': 'rboxes', 'keypoint': 'keypoints'}[task]
        targets = Targets(*scene.targets[:3])
        with pytest.raises(ValueError, match=rf"targets=\('boxes', '{kind}'\)"):
            scene.loss(scene.outputs, targets, scene.grid)

    def test_another_number_of_classes_is_refused_with_both_numbers(self, task: str, make: Callable) -> None:
        scene = make(task, 0)
        scene.loss.num_classes = 4
        with pytest.raises(ValueError, match=r'3 classes.*num_classes=4'):
            scene.loss(scene.outputs, scene.targets, scene.grid)

    def test_the_registry_builds_it_with_other_assigners(self, task: str, make: Callable) -> None:
        name = type(make(task, 0).loss).__name__
        points = {'num_keypoints': 4} if task == 'keypoint' else {}
        built = LOSSES.build({'type': name, 'num_classes': 3, 'assigner_o2m': {'topk': 13}, **points})
        assert isinstance(built, nn.Module)
        assert (built.assigner_o2m.topk, built.assigner_o2o.topk, built.assigner_o2o.topk_final) == (13, 7, 1)
        assert built.assigner_o2m.rotated == built.assigner_o2o.rotated == (task == 'oriented')

    def test_naming_the_usual_assigner_changes_nothing_and_another_is_taken_as_it_is(
        self, task: str, make: Callable
    ) -> None:
        name = type(make(task, 0).loss).__name__
        points = {'num_keypoints': 4} if task == 'keypoint' else {}
        named = {'type': 'TaskAlignedAssigner', 'topk': 13}
        built = LOSSES.build({'type': name, 'num_classes': 3, 'assigner_o2o': named, **points})
        assert (built.assigner_o2o.topk, built.assigner_o2o.topk_final) == (13, 1)
        assert built.assigner_o2o.rotated == (task == 'oriented')
        built = LOSSES.build({'type': name, 'num_classes': 3, 'assigner_o2o': {'type': nn.Identity}, **points})
        assert type(built.assigner_o2o) is nn.Identity

    @pytest.mark.parametrize('gain', [-0.5, float('nan'), float('inf')])
    def test_a_gain_that_is_none_is_refused_by_name(self, task: str, gain: float, make: Callable) -> None:
        name = type(make(task, 0).loss).__name__
        points = {'num_keypoints': 4} if task == 'keypoint' else {}
        gains = [argument for argument in inspect.signature(LOSSES.get(name)).parameters if argument.endswith('_gain')]
        assert len(gains) >= 3
        for argument in gains:
            with pytest.raises(ValueError, match=rf'model\.loss\.{argument}={gain} .*make it 0 or more'):
                LOSSES.build({'type': name, 'num_classes': 3, argument: gain, **points})
        LOSSES.build({'type': name, 'num_classes': 3, gains[0]: 0.0, **points})
