"""From a checkpoint to a detector, and from images to detections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.model import BaseModel
from mmengine.registry import init_default_scope

from lucid.apis.build import load_config
from lucid.apis.device_option import find_device
from lucid.datasets import Sample, detection_collate, read_image
from lucid.datasets.picture import Picture
from lucid.datasets.transforms import Transform, build_pipeline
from lucid.engine.checkpoint import Weights, load, load_weights
from lucid.registry import MODELS, SCOPE
from lucid.structures.detections import Prediction

Image = str | Path | np.ndarray
ROWS = ('boxes', 'scores', 'labels', 'masks', 'rboxes', 'keypoints')
"""What a prediction has a row of per detection."""


@dataclass(frozen=True)
class TrainedDetector:
    """A detector with what it needs to look at an image.

    model:    in evaluation mode, on ``device``
    classes:  names by label
    pipeline: the transforms of validation, which fit an image to the network input
    keypoint_names: of each object's keypoints, in order; empty where the detector predicts none
    """

    model: BaseModel
    classes: tuple[str, ...]
    pipeline: tuple[Transform, ...]
    device: torch.device
    keypoint_names: tuple[str, ...] = ()


def init_detector(
    checkpoint: str | Path,
    *,
    config: str | Path | None = None,
    device: str | torch.device | None = None,
    weights: Weights = 'auto',
    path: str = 'one_to_one',
) -> TrainedDetector:
    """Build a detector from a checkpoint of a training run, which holds its config and class names as plain data.

    Args:
        checkpoint: A file that training wrote, such as ``best.pth``.
        config: Config file to build from instead of the checkpoint's own config.
        device: Where the detector runs; None takes a CUDA card where there is one.
        weights: ``'ema'`` the averaged values, ``'raw'`` the trained ones, ``'auto'`` averaged where there are such.
        path: From the forward to detections: ``'one_to_one'`` end to end, ``'nms'`` the one-to-many branch through NMS.

    Returns:
        What ``inference_detector`` takes; its model is the caller's own.

    Raises:
        FileNotFoundError: There is no checkpoint.
        ValueError: It is damaged, has no config or classes, or does not fit the config; or the device is not there, or
            the model has no such path.
    """
    place = find_device(device)
    content = load(checkpoint)
    classes = tuple(content.get('classes') or ())
    if not classes:
        raise ValueError(f'{checkpoint} names no classes; use a checkpoint that tools/train.py wrote')
    cfg = content['meta'].get('cfg') if config is None else load_config(config).to_dict()
    if not cfg:
        raise ValueError(f'{checkpoint} holds no config; give the config file that it was trained with')
    source = config or checkpoint

    init_default_scope(SCOPE)
    model_cfg = dict(cfg['model'])
    if model_cfg.setdefault('num_classes', len(classes)) != len(classes):
        raise ValueError(
            f'{source} builds {model_cfg["num_classes"]} classes, {checkpoint} names {len(classes)}; '
            'use the config that it was trained with'
        )
    keypoints = tuple(content.get('keypoint_names') or ())
    if keypoints and model_cfg.setdefault('num_keypoints', len(keypoints)) != len(keypoints):
        raise ValueError(
            f'{source} builds {model_cfg["num_keypoints"]} keypoints, {checkpoint} names {len(keypoints)}; '
            'use the config that it was trained with'
        )
    model = MODELS.build(model_cfg)
    known = getattr(model, 'known_paths', ('one_to_one',))
    if path not in known:
        raise ValueError(f'path {path!r} is none of {type(model).__name__}; use one of {", ".join(known)}')
    if hasattr(model, 'paths'):
        model.paths = (path,)
    load_weights(model, content, weights)
    return TrainedDetector(model.to(place).eval(), classes, _pipeline(cfg, str(source)), place, keypoints)


def inference_detector(
    detector: TrainedDetector,
    images: Image | Sequence[Image],
    *,
    batch_size: int = 1,
    score_threshold: float = 0.25,
) -> list[Prediction]:
    """Detect objects in images, by the path that ``init_detector`` set.

    Args:
        detector: What ``init_detector`` returned.
        images: Paths, or uint8 (H, W, 3) arrays in RGB (OpenCV reads BGR: turn it round first); one of them or a list.
        batch_size: Images per forward pass.
        score_threshold: Detections below it are left out.

    Returns:
        One prediction per image, in order, always as a list: ``boxes`` float32 (K, 4) xyxy in pixels of the image as it
        was given, ``scores``, ``labels``, and ``masks``, ``rboxes`` or ``keypoints`` where the detector predicts them;
        tensors on the CPU. ``image_id`` is the position, ``file`` the path, if any.

    Raises:
        ImageError: A ValueError: a file is missing, truncated or no image; it is named.
        ValueError: An array is no RGB image.
    """
    given = iter([images] if isinstance(images, str | Path | np.ndarray) else images)
    predictions: list[Prediction] = []
    while batch := [_sample(image, i) for i, image in enumerate(islice(given, batch_size), start=len(predictions))]:
        for transform in detector.pipeline:
            batch = [transform(sample) for sample in batch]
        # Not inference_mode: grids that the model keeps for later training must be usable in a backward.
        with torch.no_grad():
            found = detector.model.test_step(detection_collate(batch))
        predictions += [_above(prediction, score_threshold) for prediction in found]
    return predictions


def _sample(image: Image, position: int) -> Sample:
    file = '' if isinstance(image, np.ndarray) else str(image)
    pixels = image if isinstance(image, np.ndarray) else read_image(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ValueError(
            f'image {position} is an array of {pixels.dtype} {pixels.shape}; give uint8 (height, width, 3) in RGB'
        )
    return Sample(
        picture=Picture.of(pixels),
        boxes=np.zeros((0, 4), np.float32),
        labels=np.zeros(0, np.int64),
        image_id=position,
        file=file,
        original_hw=pixels.shape[:2],
        rng=np.random.default_rng(0),
    )


def _above(prediction: Prediction, threshold: float) -> Prediction:
    # Scores fall, so that what stays comes first; of masks there is a list.
    count = int((prediction['scores'] >= threshold).sum())
    rows = {name: prediction[name][:count] for name in ROWS if name in prediction}  # type: ignore[literal-required]
    return {**prediction, **rows}  # type: ignore[typeddict-item]


def _pipeline(cfg: Mapping[str, Any], source: str) -> tuple[Transform, ...]:
    """The transforms of the config's validation set, else of its test set, else a letterbox."""
    datasets = [cfg[key]['dataset'] for key in ('val_dataloader', 'test_dataloader') if cfg.get(key)]
    # A data set that wraps another has no pipeline of its own.
    stated = next((dataset for dataset in map(_innermost, datasets) if dataset.get('pipeline')), {})
    size = stated.get('image_size', cfg.get('image_size'))
    if size is None:
        raise ValueError(f'{source} states no image_size; add it to the config')
    return tuple(build_pipeline(stated.get('pipeline') or [{'type': 'Letterbox'}], image_size=size))


def _innermost(dataset: Mapping[str, Any]) -> Mapping[str, Any]:
    while isinstance(inner := dataset.get('dataset'), Mapping):
        dataset = inner
    return dataset
