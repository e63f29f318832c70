"""Building the parts of a detector from their configs."""

import inspect
from collections.abc import Mapping
from typing import Any

from mmengine.registry import Registry

from lucid.registry import HEADS, LOSSES

Config = Mapping[str, Any]

LOSS_OF_TASK: Config = {
    'detect': 'DetectionLoss',
    'segment': 'SegmentationLoss',
    'oriented': 'OrientedLoss',
    'keypoint': 'KeypointLoss',
}
"""The loss of a head whose config states none."""

NUMBERS_OF_DATA = ('num_classes', 'num_keypoints')
"""What all parts of a detector must agree about."""


def check_options(
    num_classes: int | None, *, nms_score_threshold: float, nms_iou_threshold: float, switches: Mapping[str, object]
) -> None:
    """Raise ``ValueError`` for values of a detector's config that cannot be meant; ``switches`` are on or off."""
    for key, value in switches.items():
        if not isinstance(value, bool):  # any text would count as on, 'no' too
            raise ValueError(f'{key}={value!r} is neither on nor off; set model.{key} to True or False')
    if num_classes is None:
        raise ValueError(
            'num_classes is not stated: set model.num_classes to the number of classes of the data set, or build '
            'the detector through lucid.apis, which reads it from there'
        )
    if num_classes < 1:
        raise ValueError(f'num_classes={num_classes} leaves nothing to detect; make it 1 or more')
    if not (0 <= nms_score_threshold <= 1 and 0 < nms_iou_threshold <= 1):
        raise ValueError(
            f'nms_score_threshold={nms_score_threshold} and nms_iou_threshold={nms_iou_threshold} must be in 0..1, '
            'the second above 0; the usual ones are 0.001 and 0.7'
        )


def build_part(registry: Registry, config: Config, *, given: Config, optional: Config | None = None) -> Any:
    """Build a part of a detector; what its config states comes first.

    Args:
        registry: Where its type is looked up.
        config: With a type.
        given: Arguments that every such part takes.
        optional: Arguments that it gets if its constructor names them and they are not None.

    Returns:
        The part.

    Raises:
        ValueError: The config states another number of classes or keypoints than it is given.
    """
    names = _arguments(registry, config)
    more = {name: value for name, value in (optional or {}).items() if name in names and value is not None}
    for name, value in {**given, **more}.items():
        if name in NUMBERS_OF_DATA and config.get(name, value) != value:
            raise ValueError(
                f'model.{name} is {value} and the config of {_name(config)} says {name}={config[name]}; '
                'remove the second'
            )
    return registry.build(dict(config), default_args={**given, **more})


def build_head(config: Config, *, given: Config, num_keypoints: int | None) -> Any:
    """Build a head, with the number of keypoints if it predicts some.

    Args:
        config: With a type.
        given: Arguments that every head takes.
        num_keypoints: What the detector's config states.

    Returns:
        The head.

    Raises:
        ValueError: The number is missing, disagrees with the head's own, or is stated for a head without keypoints.
    """
    stated = config.get('num_keypoints')
    if 'num_keypoints' not in _arguments(HEADS, config):
        if num_keypoints is not None:
            raise ValueError(
                f'num_keypoints={num_keypoints} is stated, but {_name(config)} predicts no keypoints; remove '
                "model.num_keypoints, or set model.head.type='KeypointHead'"
            )
    elif num_keypoints is None and stated is None:
        raise ValueError(
            'num_keypoints is not stated: set model.num_keypoints to the number of keypoints of the data set, or build '
            'the detector through lucid.apis, which reads it from there'
        )
    elif num_keypoints is not None and stated not in (None, num_keypoints):
        raise ValueError(
            f'model.num_keypoints is {num_keypoints} and model.head.num_keypoints is {stated}; remove the second'
        )
    return build_part(HEADS, config, given=given, optional={'num_keypoints': num_keypoints})


def build_loss(config: Config, *, task: str | None, given: Config, num_keypoints: int | None) -> Any:
    """Build a loss; without a type it is the one of the head's task.

    Args:
        config: What a detector's config states.
        task: Of the head.
        given: Arguments that every loss takes.
        num_keypoints: Of the head, for a loss that takes it.

    Returns:
        The loss.

    Raises:
        ValueError: It is the loss of another task, which would train a part of the head, or none, in silence.
    """
    complete = {'type': default_loss(task), **config}
    if problem := loss_problem(_name(complete), task):
        raise ValueError(problem)
    return build_part(LOSSES, complete, given=given, optional={'num_keypoints': num_keypoints})


def loss_problem(name: str, task: str | None) -> str | None:
    """Why a loss cannot train a head of a task, with the remedy; None where it can, or is none of ``LOSS_OF_TASK``."""
    others = {loss: other for other, loss in LOSS_OF_TASK.items() if task in LOSS_OF_TASK and other != task}
    if name not in others:
        return None
    return (
        f'model.loss.type={name!r} is the loss of the task {others[name]!r}, and the head predicts {task!r}; '
        f'remove model.loss.type, which is then {default_loss(task)!r}, or change model.head.type'
    )


def default_loss(task: str | None) -> str:
    """Name of the loss of a task; of a head that names none, the loss of boxes and classes."""
    name: str = LOSS_OF_TASK.get(task or 'detect', LOSS_OF_TASK['detect'])
    return name


def takes_keypoints(head: Config) -> bool:
    """Whether the head of a config predicts keypoints, and so must be told how many."""
    return 'num_keypoints' in _arguments(HEADS, head)


def _arguments(registry: Registry, config: Config) -> tuple[str, ...]:
    """Names in the constructor's signature; none where the type does not exist, which building will say."""
    kind = config['type']
    target = registry.get(kind) if isinstance(kind, str) else kind
    return tuple(inspect.signature(target).parameters) if callable(target) else ()


def _name(config: Config) -> str:
    kind = config['type']
    return kind if isinstance(kind, str) else str(kind.__name__)
