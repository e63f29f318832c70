"""The detector: one class for all tasks and sizes; the head makes the task.

Shape suffixes: B images, H rows, W columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lucid.models.detectors.network import YOLONetwork
from lucid.models.detectors.parts import Config, build_head, build_loss, build_part, check_options
from lucid.models.detectors.predicting import Inferred, decode, first, place, select
from lucid.models.freezing import freeze, frozen_names, hold
from lucid.models.heads.paths import Rules, Run
from lucid.models.layers import fuse_norms, set_cast_together
from lucid.registry import MODELS
from lucid.structures import AnchorGrid, Targets
from lucid.structures.anchors import make_anchor_grid


@MODELS.register_module()
class YOLODetector(BaseModel):
    """Network, loss and data preprocessor behind mmengine's model interface, with the step that can be captured.

    ``prepare`` decides every shape and may read the host; ``step`` runs on the device without a host read. Attributes:
    ``network`` (images to raw outputs; parameter counts are its), ``criterion`` (the loss module), and, to be changed
    between predictions at will, ``max_detections``, the three thresholds and ``paths`` (the ways from the one forward
    to detections that ``predict`` takes, of ``known_paths``; ``('one_to_one',)`` unless somebody asks for others).

    A part whose config states no ``type`` is the default: YOLOBackbone, YOLONeck, DetectHead, the loss of the head's
    task (DetectionLoss, SegmentationLoss, OrientedLoss, KeypointLoss), DetDataPreprocessor.

    Args:
        scale: size, ``'n'`` to ``'x'``; default of backbone and neck.
        num_classes: of the data set.
        num_keypoints: of the data set, for a head that predicts keypoints; parts that take it get it.
        backbone: MODELS; built with ``scale``, has ``out_channels`` and ``strides``.
        neck: MODELS; built with ``in_channels`` and ``scale``, has ``out_channels``.
        head: HEADS; built with ``in_channels`` and ``num_classes``, is a ``heads.paths.Head`` and has ``deployed``.
        loss: LOSSES; built with ``num_classes``, called with the raw outputs, the targets and the anchor grid.
        data_preprocessor: MODELS; built with ``num_classes``, ``size_divisor`` and ``channels_last``, and with the
            head's ``task`` where it takes that.
        channels_last: keep weights and images in torch's ``channels_last`` format.
        fused_norm: compute BatchNorm and SiLU of each ``ConvUnit`` as one operator, which rounds otherwise than the two
            modules do; parameters and buffers, and their names, are the same.
        cast_together: under autocast, cast the weights of many convolutions, and their gradients, by one operator. The
            numbers are the same.
        max_detections: rows kept per image.
        score_threshold: detections below it are dropped.
        nms_score_threshold: the same on the path ``'nms'`` alone, which would else rank every anchor.
        nms_iou_threshold: on the path ``'nms'``, what overlaps a better box of its class by more is dropped.
        frozen: paths of modules of ``network`` that training leaves alone, such as ``('backbone',)``: no gradient,
            no step, no decay, and BatchNorm in evaluation mode whatever mode the detector is in. A segmentation head
            that is frozen whole gives no semantic map, as in evaluation, and the loss then has no such term.
        init_cfg: mmengine's initialisation, for example from a checkpoint.

    Raises:
        ValueError: ``num_classes`` is missing or not positive, ``num_keypoints`` is missing or needless, a threshold
            of NMS is out of range, a switch is no bool, or ``scale`` or a ``frozen`` module does not exist.

    Source: arXiv:2606.03748.
    """

    def __init__(
        self,
        *,
        scale: str = 'n',
        num_classes: int | None = None,
        num_keypoints: int | None = None,
        backbone: Config | None = None,
        neck: Config | None = None,
        head: Config | None = None,
        loss: Config | None = None,
        data_preprocessor: Config | None = None,
        channels_last: bool = True,
        fused_norm: bool = False,
        cast_together: bool = False,
        max_detections: int = 300,
        score_threshold: float = 0.0,
        nms_score_threshold: float = 0.001,
        nms_iou_threshold: float = 0.7,
        frozen: Sequence[str] = (),
        init_cfg: Config | list[Config] | None = None,
    ) -> None:
        check_options(
            num_classes,
            nms_score_threshold=nms_score_threshold,
            nms_iou_threshold=nms_iou_threshold,
            switches={'channels_last': channels_last, 'fused_norm': fused_norm, 'cast_together': cast_together},
        )
        body = MODELS.build({'type': 'YOLOBackbone', **(backbone or {})}, default_args={'scale': scale})
        mixer = MODELS.build(
            {'type': 'YOLONeck', **(neck or {})}, default_args={'in_channels': body.out_channels, 'scale': scale}
        )
        top = build_head(
            {'type': 'DetectHead', **(head or {})},
            given={'in_channels': mixer.out_channels, 'num_classes': num_classes},
            num_keypoints=num_keypoints,
        )
        task = getattr(top, 'task', None)
        num_keypoints = getattr(top, 'num_keypoints', None)
        super().__init__(
            data_preprocessor=build_part(
                MODELS,
                {'type': 'DetDataPreprocessor', **(data_preprocessor or {})},
                given={
                    'num_classes': num_classes,
                    'size_divisor': max(body.strides),
                    'channels_last': channels_last,
                },
                optional={'task': task, 'num_keypoints': num_keypoints},
            ),
            init_cfg=init_cfg,
        )
        self.num_classes = num_classes
        self.num_keypoints = num_keypoints
        self.strides: tuple[int, ...] = tuple(body.strides)
        self.max_detections = max_detections
        self.score_threshold = score_threshold
        self.nms_score_threshold = nms_score_threshold
        self.nms_iou_threshold = nms_iou_threshold
        self.paths: tuple[str, ...] = ('one_to_one',)
        self.network = YOLONetwork(body, neck=mixer, head=top)
        fuse_norms(self.network, fused=fused_norm)
        set_cast_together(self.network, together=cast_together)
        self.criterion = build_loss(
            loss or {}, task=task, given={'num_classes': num_classes}, num_keypoints=num_keypoints
        )
        if channels_last:
            self.network.to(memory_format=torch.channels_last)
        self.frozen = tuple(frozen)
        freeze(self.network, self.frozen)
        # Never evicted: a recording holds the addresses of the grids it was captured with.
        self._grids: dict[tuple[int, int, torch.device], AnchorGrid] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy makes its own grids: these may lie on a device that the copy does not live on. And it is not captured.
        state = {**super().__getstate__(), '_grids': {}}
        for method in ('step', 'infer'):
            state.pop(method, None)
        return state

    # Modules whose training calls have no branch on a value and no shape from data, for who compiles.
    branch_free = ('network', 'criterion')

    @property
    def task(self) -> str | None:
        """What the head predicts: ``'detect'``, ``'segment'``, ``'oriented'``, ``'keypoint'``; None if it says none."""
        return getattr(self.network.head, 'task', None)

    @property
    def frozen_state(self) -> frozenset[str]:
        """Names in the detector's state of what ``frozen`` keeps as it is, parameters and buffers."""
        return frozenset(f'network.{name}' for name in frozen_names(self.network, self.frozen))

    @property
    def class_rows(self) -> frozenset[str]:
        """Names in the detector's state of tensors that have a row per class, by label, in dimension 0."""
        return frozenset(f'network.head.{name}' for name in getattr(self.network.head, 'class_rows', ()))

    def train(self, mode: bool = True) -> 'YOLODetector':
        """Set the mode of all that is not frozen; that stays in evaluation mode."""
        super().train(mode)
        hold(self.network, self.frozen)
        return self

    @property
    def known_paths(self) -> tuple[str, ...]:
        """The ways from raw outputs to detections that the head has."""
        return tuple(getattr(self.network.head, 'paths', ('one_to_one',)))

    @property
    def rules(self) -> dict[str, Rules]:
        """Which detections become predictions, by each of ``paths``."""
        if unknown := [path for path in self.paths if path not in self.known_paths]:
            raise ValueError(f'path {unknown[0]!r} is none of {self.known_paths}, which this head knows; set another')
        threshold, iou_threshold = self.score_threshold, self.nms_iou_threshold
        lowest = {path: max(threshold, self.nms_score_threshold) if path == 'nms' else threshold for path in self.paths}
        return {path: Rules(path, self.max_detections, lowest[path], iou_threshold) for path in self.paths}

    def anchor_grid(self, images: Tensor) -> AnchorGrid:
        """The grid for (B, 3, H, W) ``images``, on their device; made at the first use of a size and kept."""
        height, width = images.shape[2:]
        key = (height, width, images.device)
        if key not in self._grids:
            self._grids[key] = make_anchor_grid((height, width), strides=self.strides, device=images.device)
        return self._grids[key]

    def prepare(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A batch as collate made it to ``dict(inputs, targets, metas)`` on the device, every shape decided."""
        prepared: dict[str, Any] = self.data_preprocessor(data, self.training)
        self.anchor_grid(prepared['inputs'])
        return prepared

    def step(self, data: Mapping[str, Any], optim_wrapper: OptimWrapper) -> dict[str, Tensor]:
        """Forward, loss, backward and update, without a host read.

        Args:
            data: a batch from ``prepare``.
            optim_wrapper: whose parameters are updated.

        Returns:
            Named 0-d tensors on the device, detached; ``loss`` is their sum over the names that contain it.
        """
        loss, values = self.compute(data, optim_wrapper)
        optim_wrapper.update_params(loss)
        return values

    def compute(self, data: Mapping[str, Any], optim_wrapper: OptimWrapper) -> tuple[Tensor, dict[str, Tensor]]:
        """Forward and loss of ``step``, without a host read.

        Args:
            data: a batch from ``prepare``.
            optim_wrapper: whose precision is used.

        Returns:
            The loss, 0-d, and what ``step`` returns.
        """
        with optim_wrapper.optim_context(self):
            losses = self(**data, mode='loss')
        loss, values = self.parse_losses(losses)
        return loss, {name: value.detach() for name, value in values.items()}

    def train_step(self, data: Mapping[str, Any], optim_wrapper: OptimWrapper) -> dict[str, Tensor]:
        """``step(prepare(data), optim_wrapper)``."""
        return self.step(self.prepare(data), optim_wrapper)

    def forward(
        self,
        inputs: Tensor,
        targets: Targets | None = None,
        metas: Sequence[Mapping[str, Any]] | None = None,
        mode: str = 'tensor',
    ) -> Any:
        """Run a prepared batch as far as ``mode`` says; the entry that mmengine calls.

        Args:
            inputs: float (B, 3, H, W), RGB in 0..1.
            targets: needed by ``'loss'``.
            metas: needed by ``'predict'``.
            mode: ``'tensor'``, ``'loss'`` or ``'predict'``.

        Returns:
            Raw outputs, the dict of ``loss``, or the list of ``predict``.

        Raises:
            ValueError: the mode does not exist, or lacks what it needs.
        """
        if mode == 'tensor':
            return self.network(inputs)
        if mode == 'loss':
            if targets is None:
                raise ValueError("mode='loss' needs targets; give the batch a 'targets' entry")
            return self.loss(self.network(inputs), targets, self.anchor_grid(inputs))
        if mode == 'predict':
            if metas is None:
                raise ValueError("mode='predict' needs metas; give the batch a 'metas' entry, one dict per image")
            return self._predictions(self.infer(inputs), metas)
        raise ValueError(f"mode={mode!r} does not exist; use 'tensor', 'loss' or 'predict'")

    def loss(self, outputs: Any, targets: Targets, grid: AnchorGrid) -> dict[str, Tensor]:
        """The loss terms, computed without autocast in float32 or more."""
        with torch.autocast(grid.centers_A2.device.type, enabled=False):
            exact = type(outputs)(*map(_exact, outputs))
            losses: dict[str, Tensor] = self.criterion(exact, targets, grid)
            return losses

    def infer(self, images: Tensor) -> Inferred:
        """Network and decoding by each of ``paths``, without a host read; ``select`` and ``place`` make predictions.

        Apart, so that the three can be captured, overlapped and handed to other processes.
        """
        return decode(self.network.head, self.network(images), self.anchor_grid(images), self.rules)

    def first(self, inferred: Inferred, count: int) -> Inferred:
        """What ``infer`` gave of the first ``count`` images, as views."""
        return first(inferred, count)

    def select(self, inferred: Inferred) -> Inferred:
        """Rows only, on the device: the NMS of upright boxes, for a path that has one, reads it."""
        return select(inferred, self.rules)

    def place(
        self, selected: Inferred, metas: Sequence[Mapping[str, Any]], *, run: Run = map
    ) -> Iterator[dict[str, Any]]:
        """One prediction per image, in pixels of the original image, on the CPU; see ``predicting.place``."""
        return place(self.network.head, selected, metas, self.rules, run=run)

    def predict(self, outputs: Any, metas: Sequence[Mapping[str, Any]], grid: AnchorGrid) -> list[dict[str, Any]]:
        """One prediction per image, in pixels of the original image, on the CPU, by each of ``paths``."""
        return self._predictions(decode(self.network.head, outputs, grid, self.rules), metas)

    def _predictions(self, inferred: Inferred, metas: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return list(self.place(tree_map_only(Tensor, Tensor.cpu, self.select(inferred)), metas))


def _exact(output: Tensor | None) -> Tensor | None:
    """In float32, or float64 if it is; None where a head gives nothing, as the semantic map in evaluation."""
    return None if output is None else output.to(torch.promote_types(output.dtype, torch.float32))
