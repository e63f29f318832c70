"""Classification loss against soft targets.

Shape suffixes: B images, A anchors, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def soft_cross_entropy(logits_BAC: Tensor, labels_BA: Tensor, weight_BA: Tensor) -> Tensor:
    """Sum over anchors and classes of the binary cross entropy with logits, 0-d.

    The target is ``weight_BA`` at the anchor's label and zero elsewhere; label -1 is background. It is never built:
    BCE(x, y) = softplus(x) - x·y, and y is zero at all but one class.

    Source: task alignment, TOOD (arXiv:2108.07755); soft targets, GFL (arXiv:2006.04388).
    """
    assigned_BA = logits_BAC.gather(2, labels_BA.clamp(min=0).unsqueeze(2)).squeeze(2)
    reward_BA = torch.where(labels_BA >= 0, weight_BA * assigned_BA, 0.0)
    # From 40 on softplus(x) is x even in float64; the default threshold of 20 is off by 2e-9.
    return F.softplus(logits_BAC, threshold=40.0).sum() - reward_BA.sum()
