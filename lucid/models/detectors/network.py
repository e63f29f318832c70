"""Backbone, neck and head as the one module that is counted, captured and deployed."""

import copy
from itertools import chain
from typing import Any

from torch import Tensor, nn


class YOLONetwork(nn.Module):
    """Images (B, 3, H, W), RGB in 0..1, sides a multiple of 32, to the raw outputs of the head."""

    def __init__(self, backbone: nn.Module, *, neck: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.head: Any = head  # Any: torch types every attribute of a module as tensor or module.

    def forward(self, images_B3HW: Tensor) -> Any:
        """The outputs of the head's task, ``RawOutputs`` and its kin; of a deployed view those of inference alone.

        A deployed view gives a plain tuple of the one-to-one branch: (logits_BAC, boxes_BA4), followed by nothing for
        the task ``detect``, (coefficients_BAK, prototypes_BKHW) for ``segment``, angles_BA1 for ``oriented`` and
        points_BAJ2 for ``keypoint``, each as ``lucid.structures.outputs`` says. ``decode_end_to_end`` takes the first
        two, and the anchors that it names select the rows of the others.
        """
        return self.head(self.neck(self.backbone(images_B3HW)))

    def deployed(self) -> 'YOLONetwork':
        """The network without the branches that only training needs; it owns its modules but no tensors.

        Parameters and buffers are the very tensors of this network, so that training this one in place changes the
        view. The modules are copies: ``eval()`` on the view leaves this network in training mode. Make it again after
        tensors were replaced: buffers by a move to another device, all by ``load_state_dict(assign=True)``.
        """
        shared = {id(tensor): tensor for tensor in chain(self.parameters(), self.buffers())}
        return copy.deepcopy(YOLONetwork(self.backbone, neck=self.neck, head=self.head.deployed()), shared)
