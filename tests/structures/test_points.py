import numpy as np
import pytest

from lucid.structures.affine import translation
from lucid.structures.points import COCO_LIMBS, COCO_SIGMAS, flip_order, limbs_of, warp_keypoints


def test_unlabelled_keypoints_stay_at_the_origin():
    keypoints = np.array([[[1, 2, 2], [3, 4, 1], [0, 0, 0]]], np.float32)
    np.testing.assert_array_equal(
        warp_keypoints(translation(10, 20), keypoints), [[[11, 22, 2], [13, 24, 1], [0, 0, 0]]]
    )


def test_left_and_right_change_places_and_the_rest_stays():
    names = ('nose', 'left_eye', 'right_eye', 'hip_right', 'hip_left')
    np.testing.assert_array_equal(flip_order(names), [0, 2, 1, 4, 3])


def test_a_left_without_its_right_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'left_eye' has no partner 'right_eye'.*rename"):
        flip_order(('nose', 'left_eye'))


def test_limbs_join_the_names_that_there_are():
    assert limbs_of(('left_knee', 'tail', 'left_hip', 'left_ankle')) == ((2, 0), (0, 3))
    assert limbs_of(('top', 'right', 'bottom', 'left')) == ()
    names = list(dict.fromkeys(name for limb in COCO_LIMBS for name in limb))
    assert len(names) == len(COCO_SIGMAS)
    assert len(limbs_of(names)) == len(COCO_LIMBS) == 19


def test_every_limb_of_a_person_has_its_mirror_image():
    swap = {'left': 'right', 'right': 'left'}
    for limb in COCO_LIMBS:
        start, end = ('_'.join(swap.get(word, word) for word in name.split('_')) for name in limb)
        assert (start, end) in COCO_LIMBS or (end, start) in COCO_LIMBS
