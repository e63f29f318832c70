import numpy as np
import pytest
from faster_coco_eval import mask as coco_mask

from lucid.structures.masks import fill_rings, mask_rings
from lucid.structures.run_lengths import decode_run_lengths

# Down the columns: one pixel outside, two inside, three outside.
MASK = np.array([[False, True, False], [True, False, False]])


def test_runs_go_down_the_columns_and_begin_outside():
    np.testing.assert_array_equal(decode_run_lengths({'size': [2, 3], 'counts': [1, 2, 3]}, (2, 3)), MASK)
    np.testing.assert_array_equal(decode_run_lengths({'size': [2, 3], 'counts': '123'}, (2, 3)), MASK)
    assert decode_run_lengths({'size': [2, 3], 'counts': [0, 6]}, (2, 3)).all()
    assert not decode_run_lengths({'size': [2, 3], 'counts': [6]}, (2, 3)).any()


@pytest.mark.parametrize('seed', range(5))
def test_both_forms_lead_to_rings_that_give_the_mask_back(seed):
    rng = np.random.default_rng(seed)
    mask = fill_rings([rng.uniform(0, 50, (8, 2)).astype(np.float32)], (40, 50)) & (rng.random((40, 50)) < 0.9)
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *edges, flat.size]).tolist()
    numbers = {'size': [40, 50], 'counts': [0, *counts] if flat[0] else counts}
    text = {'size': [40, 50], 'counts': coco_mask.encode(np.asfortranarray(mask, np.uint8))['counts'].decode()}
    for packed in (numbers, text):
        np.testing.assert_array_equal(decode_run_lengths(packed, (40, 50)), mask)
        np.testing.assert_array_equal(fill_rings(mask_rings(decode_run_lengths(packed, (40, 50))), (40, 50)), mask)


@pytest.mark.parametrize(
    ('packed', 'message'),
    [
        ({'counts': [6]}, 'needs counts, .* and size'),
        ({'size': [2, 3]}, 'needs counts'),
        ({'size': [2, 3], 'counts': 7}, 'needs counts'),
        ({'size': [3, 2], 'counts': [6]}, r'size \[3, 2\], height and width of the image are \[2, 3\]'),
        ({'size': [2, 3], 'counts': [5]}, 'cannot be decoded .*5 pixels'),
        ({'size': [2, 3], 'counts': [1, 200]}, 'cannot be decoded .*exceed'),
        ({'size': [2, 3], 'counts': [1, 2**40]}, 'cannot be decoded'),
        ({'size': [2, 3], 'counts': [10, -4]}, 'not all whole numbers from 0'),
        ({'size': [2, 3], 'counts': [1.5, 4.5]}, 'not all whole numbers from 0'),
        ({'size': [2, 3], 'counts': ['6']}, 'not all whole numbers from 0'),
        ({'size': [2, 3], 'counts': 'abc'}, 'cannot be decoded'),
        ({'size': [2, 3], 'counts': 'zzzzzzzz'}, 'cannot be decoded'),
        ({'size': [2, 3], 'counts': '\u00e9\u20ac'}, 'cannot be decoded'),
        ({'size': [2, 3], 'counts': ''}, 'cannot be decoded'),
    ],
)
def test_what_is_damaged_is_refused(packed, message):
    with pytest.raises(ValueError, match=message):
        decode_run_lengths(packed, (2, 3))
