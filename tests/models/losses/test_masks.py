import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lucid.models.losses.masks import class_map, mask_sum, semantic_loss


class TestMaskSum:
    @staticmethod
    def inputs(dtype: torch.dtype = torch.float64, picks: int = 3) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, dtype=dtype)

        low = uniform(2, 4, 2) * 5
        boxes = torch.cat((low, low + uniform(2, 4, 2) * 6), dim=-1)
        kept = uniform(2, 4, picks) < 0.6
        return (uniform(2, 4, picks, 3) - 0.5) * 4, uniform(2, 3, 9, 11) - 0.5, uniform(2, 4, 9, 11) < 0.5, boxes, kept

    def test_its_gradient_is_the_numeric_one(self) -> None:
        coefficients, prototypes, *rest = self.inputs()
        leaves = coefficients.requires_grad_(), prototypes.requires_grad_()
        assert torch.autograd.gradcheck(lambda c, p: mask_sum(c, p, *rest), leaves)

    def test_it_is_the_plain_form_which_keeps_all_logits(self) -> None:
        coefficients, prototypes, masks, boxes, kept = self.inputs()
        leaves = [coefficients.requires_grad_(), prototypes.requires_grad_()]
        logits = torch.einsum('bmpk,bkhw->bmphw', *leaves)
        x, y = torch.arange(11) + 0.5, torch.arange(9) + 0.5
        x1, y1, x2, y2 = boxes[..., None].unbind(2)
        inside = ((y >= y1) & (y < y2)).unsqueeze(-1) & ((x >= x1) & (x < x2)).unsqueeze(-2)
        truth = masks.double().unsqueeze(2).expand_as(logits)
        each = F.binary_cross_entropy_with_logits(logits, truth, reduction='none') * inside.unsqueeze(2)
        area = ((x2 - x1) * (y2 - y1)).clamp(min=1)
        plain = (each.sum(dim=(-1, -2)) / area * kept).sum()
        found = mask_sum(*leaves, masks, boxes, kept)
        torch.testing.assert_close(found, plain, rtol=1e-13, atol=0)
        for one, other in zip(
            torch.autograd.grad(3 * found, leaves), torch.autograd.grad(3 * plain, leaves), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)

    def test_no_tensor_is_as_large_as_the_logits_of_two_anchors_of_each_box(self) -> None:
        coefficients, prototypes, masks, boxes, kept = self.inputs(picks=10)
        largest = 0

        class Sizes(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
                nonlocal largest
                result = func(*args, **(kwargs or {}))
                largest = max([largest, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
                return result

        leaves = [coefficients.requires_grad_(), prototypes.requires_grad_()]
        with Sizes():
            torch.autograd.grad(mask_sum(*leaves, masks, boxes, kept), leaves)
        assert largest == masks.numel()
        with Sizes():  # the control
            torch.einsum('bmpk,bkhw->bmphw', *leaves)
        assert largest == 10 * masks.numel()

    @pytest.mark.parametrize('bad', [float('nan'), float('inf')])
    def test_what_is_not_kept_may_hold_anything(self, bad: float) -> None:
        coefficients, prototypes, masks, boxes, kept = self.inputs(torch.float32)
        boxes[0, 0], kept[0, 0] = bad, False
        coefficients[~kept] = bad
        leaves = [coefficients.requires_grad_(), prototypes.requires_grad_()]
        found = mask_sum(*leaves, masks, boxes, kept)
        gradients = torch.autograd.grad(found, leaves)
        clean = [coefficients.detach().nan_to_num(0, 0, 0).requires_grad_(), leaves[1]]
        expected = mask_sum(*clean, masks, boxes.nan_to_num(0, 0, 0), kept)
        assert torch.equal(found, expected)
        assert all(map(torch.equal, gradients, torch.autograd.grad(expected, clean)))
        assert not gradients[0][~kept].any()

    def test_a_prototype_that_is_not_finite_spoils_its_own_image_alone(self) -> None:
        coefficients, prototypes, masks, boxes, kept = self.inputs(torch.float32)
        prototypes[0], kept[0] = float('nan'), False
        leaves = [coefficients.requires_grad_(), prototypes.requires_grad_()]
        found = mask_sum(*leaves, masks, boxes, kept)
        assert found.isfinite()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found, leaves))

    def test_what_is_not_kept_of_a_box_is_no_product_of_zero_and_an_infinite_prototype(self) -> None:
        # The kept anchor is infinitely right about the one cell, which costs nothing.
        coefficients, kept = torch.ones(1, 1, 2, 1), torch.tensor([[[True, False]]])
        ones = torch.ones(1, 1, 1, 1)
        found = mask_sum(coefficients, ones * float('inf'), ones > 0, torch.tensor([[[0.0, 0, 1, 1]]]), kept)
        assert found.item() == 0

    @pytest.mark.parametrize('with_others', [False, True])
    def test_a_second_derivative_is_refused_and_two_first_ones_are_not(self, with_others: bool) -> None:
        coefficients, prototypes, *rest = self.inputs()
        leaves = [coefficients.requires_grad_(), prototypes.requires_grad_()]
        found = mask_sum(*leaves, *rest) + with_others * coefficients.square().sum()
        first, again = (torch.autograd.grad(found, leaves, retain_graph=True) for _ in range(2))
        assert all(map(torch.equal, first, again))
        with pytest.raises(RuntimeError, match='no second derivative; take its gradient without create_graph'):
            torch.autograd.grad(found, leaves, create_graph=True)

    @pytest.mark.parametrize('one', [0, 1])
    def test_one_of_the_two_may_need_no_gradient(self, one: int) -> None:
        coefficients, prototypes, *rest = self.inputs()
        both = torch.autograd.grad(
            mask_sum(*(leaves := [coefficients.requires_grad_(), prototypes.requires_grad_()]), *rest), leaves
        )
        leaves[1 - one].requires_grad_(False)
        (alone,) = torch.autograd.grad(mask_sum(*leaves, *rest), leaves[one])
        assert torch.equal(alone, both[one])

    def test_a_wrong_logit_of_21_keeps_its_digits(self) -> None:
        # softplus(21) - 21 is 7.6e-10, which a threshold of 20, torch's own, would lose.
        logit, ones = torch.full((1, 1, 1, 1), 21.0, dtype=torch.float64), torch.ones(1, 1, 1, 1, dtype=torch.float64)
        box = torch.tensor([[[0.0, 0, 1, 1]]], dtype=torch.float64)
        found = mask_sum(logit, ones, ones < 0, box, torch.ones(1, 1, 1) > 0)
        assert found.item() == pytest.approx(21 + math.log1p(math.exp(-21)), rel=1e-14)

    def test_huge_logits_have_the_gradient_of_their_side(self) -> None:
        ones = torch.ones(1, 1, 1, 1)
        for logit, slope in ((1e30, 0.0), (-1e30, -1.0)):
            leaf = torch.full((1, 1, 1, 1), logit, requires_grad=True)
            found = mask_sum(leaf, ones, ones > 0, torch.tensor([[[0.0, 0, 1, 1]]]), torch.ones(1, 1, 1) > 0)
            assert torch.autograd.grad(found, leaf)[0].item() == slope

    def test_a_mask_far_on_the_right_side_keeps_its_digits(self) -> None:
        # softplus(-25) is 1.4e-11; softplus(25) - 25 would have no digit of it in float32.
        coefficients = torch.full((1, 1, 1, 1), 25.0)
        ones = torch.ones(1, 1, 1, 1)
        found = mask_sum(coefficients, ones, ones > 0, torch.tensor([[[0.0, 0, 1, 1]]]), torch.ones(1, 1, 1) > 0)
        assert found.item() == pytest.approx(math.exp(-25), rel=1e-5)


class TestSemantic:
    def test_the_map_is_the_union_of_each_class_s_masks_on_the_coarser_grid(self) -> None:
        masks = torch.zeros(1, 3, 4, 4, dtype=torch.bool)
        masks[0, 0, 0, 1] = masks[0, 1, 3, 3] = masks[0, 2, :, :] = True
        labels, valid = torch.tensor([[1, 1, 0]]), torch.tensor([[True, True, False]])
        found = class_map(labels, masks, valid, num_classes=2, cells=2)
        assert found.tolist() == [[[[False, False], [False, False]], [[True, False], [False, True]]]]

    def test_labels_of_the_padding_may_be_no_class(self) -> None:
        masks = torch.ones(1, 2, 2, 2, dtype=torch.bool)
        found = class_map(torch.tensor([[0, -(2**40)]]), masks, torch.tensor([[True, False]]), num_classes=2, cells=2)
        assert found.tolist() == [[[[True]], [[False]]]]

    def test_entropy_and_dice_by_hand(self) -> None:
        # Probabilities 3/4 and 1/4, the first is covered: entropy -ln(3/4) each, Dice 1 - (3/2 + 1) / (1 + 1 + 1).
        logits = torch.tensor([[[[math.log(3), -math.log(3)]]]], dtype=torch.float64)
        found = semantic_loss(logits, torch.tensor([[[[True, False]]]]))
        assert found.item() == pytest.approx(-math.log(3 / 4) + 1 - 2.5 / 3, rel=1e-12)

    def test_a_wrong_logit_of_21_keeps_its_digits(self) -> None:
        logits = torch.full((1, 1, 1, 1), 21.0, dtype=torch.float64)
        p = 1 / (1 + math.exp(-21))
        dice = 1 - 1 / (p + 1)
        found = semantic_loss(logits, torch.zeros(1, 1, 1, 1, dtype=torch.bool))
        assert found.item() == pytest.approx(21 + math.log1p(math.exp(-21)) + dice, rel=1e-14)

    def test_dice_is_taken_of_each_class_and_then_averaged(self) -> None:
        # No class is covered or predicted but one, which is covered and predicted by nobody: 0, 0 and 1 - 1 / (8 + 1).
        logits = torch.full((1, 3, 2, 4), -1e4, dtype=torch.float64)
        covered = torch.zeros(1, 3, 2, 4, dtype=torch.bool)
        covered[0, 2] = True
        found = semantic_loss(logits, covered)
        assert found.item() == pytest.approx(1e4 / 3 + (1 - 1 / 9) / 3, rel=1e-12)
