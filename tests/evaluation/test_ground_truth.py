import json

import pytest

from lucid.evaluation import read_ground_truth

CONTENT = {
    'images': [{'id': 12, 'file_name': 'a.jpg'}],
    'annotations': [
        {'id': 0, 'image_id': 12, 'category_id': 3, 'bbox': [1, 2, 3, 4], 'segmentation': [[0, 0, 1, 1, 2, 2]]},
        {'id': 1, 'image_id': 12, 'category_id': 3, 'bbox': [1, 2, float('nan'), 4]},
        {'id': 2, 'image_id': 12, 'category_id': 3, 'bbox': [1, 2, 3]},
        {'id': 3, 'image_id': 12, 'category_id': 3},
        {'id': 4, 'image_id': None, 'category_id': 3, 'bbox': [1, 2, 3, 4]},
        {'id': 5, 'image_id': 12, 'category_id': None, 'bbox': [1, 2, 3, 4]},
        {'id': 6, 'image_id': 12, 'category_id': 3, 'bbox': [1, 2, None, 'x']},
    ],
    'categories': [{'id': 3, 'name': 'nut'}, {'id': 1, 'name': 'bolt'}],
}


def test_only_what_evaluation_needs_is_kept(tmp_path):
    (tmp_path / 'a.json').write_text(json.dumps(CONTENT))
    truth = read_ground_truth(tmp_path / 'a.json')
    assert truth.classes == ('bolt', 'nut')
    assert truth.category_ids == (1, 3)
    row = {'id': 1, 'image_id': 12, 'category_id': 3, 'bbox': [1, 2, 3, 4], 'area': 12, 'iscrowd': 0}
    assert truth.coco.anns == {1: row}


@pytest.mark.parametrize(
    ('text', 'message'),
    [('{"images": [', 'is no JSON'), ('{"images": []}', 'no annotations, categories'), ('\xff', 'is no JSON')],
)
def test_a_file_that_is_none_is_named(tmp_path, text, message):
    (tmp_path / 'a.json').write_text(text, encoding='latin-1')
    with pytest.raises(ValueError, match=rf'a\.json.*{message}'):
        read_ground_truth(tmp_path / 'a.json')
