"""Keypoints: float32 (N, K, 3), x and y in pixels and visibility: 0 not labelled, 1 hidden, 2 visible; on the host."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lucid.structures.affine import Float32, Matrix, warp_points

COCO_SIGMAS = (
    *(0.026, 0.025, 0.025, 0.035, 0.035),  # nose, eyes, ears
    *(0.079, 0.079, 0.072, 0.072, 0.062, 0.062),  # shoulders, elbows, wrists
    *(0.107, 0.107, 0.087, 0.087, 0.089, 0.089),  # hips, knees, ankles
)
"""How far annotators disagree about each of COCO's 17 keypoints of a person, relative to the object's size."""

COCO_LIMBS = (
    *(('nose', 'left_eye'), ('nose', 'right_eye'), ('left_eye', 'right_eye')),
    *(('left_eye', 'left_ear'), ('right_eye', 'right_ear'), ('left_ear', 'left_shoulder')),
    *(('right_ear', 'right_shoulder'), ('left_shoulder', 'right_shoulder')),
    *(('left_shoulder', 'left_elbow'), ('left_elbow', 'left_wrist')),
    *(('right_shoulder', 'right_elbow'), ('right_elbow', 'right_wrist')),
    *(('left_shoulder', 'left_hip'), ('right_shoulder', 'right_hip'), ('left_hip', 'right_hip')),
    *(('left_hip', 'left_knee'), ('left_knee', 'left_ankle')),
    *(('right_hip', 'right_knee'), ('right_knee', 'right_ankle')),
)
"""The lines of a person in COCO, by the names of its keypoints."""


def warp_keypoints(matrix: Matrix, keypoints_NK3: Float32) -> Float32:
    """Map keypoints; those that are not labelled stay at (0, 0)."""
    labelled_NK1 = keypoints_NK3[..., 2:] > 0
    moved_NK2 = np.where(labelled_NK1, warp_points(matrix, keypoints_NK3[..., :2]), 0)
    return np.concatenate([moved_NK2, keypoints_NK3[..., 2:]], axis=2).astype(np.float32)


def flip_order(names: Sequence[str]) -> NDArray[np.int64]:
    """Who takes whose place in a mirrored image: ``left_eye`` and ``right_eye`` do, ``nose`` keeps its own.

    Args:
        names: Of the K keypoints.

    Returns:
        (K,): for each place the keypoint that takes it.

    Raises:
        ValueError: A name with ``left`` or ``right`` has no partner.
    """
    order = []
    for name in names:
        partner = name.replace('left', '\0').replace('right', 'left').replace('\0', 'right')
        if partner not in names:
            raise ValueError(
                f'keypoint {name!r} has no partner {partner!r} among {list(names)}; '
                'add it, or rename the keypoint so that it holds neither left nor right'
            )
        order.append(names.index(partner))
    return np.array(order, dtype=np.int64)


def limbs_of(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Which keypoints a picture joins by lines, by their places: those of ``COCO_LIMBS`` whose ends both have names."""
    place = {name: i for i, name in enumerate(names)}
    return tuple((place[start], place[end]) for start, end in COCO_LIMBS if start in place and end in place)
