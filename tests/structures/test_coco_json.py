import pytest

from lucid.structures.coco_json import Category, read_categories, read_coco_json, whole_number


def test_categories_are_sorted_by_id_and_keep_their_keypoints(tmp_path):
    entries = [{'id': 7.0, 'name': 'b', 'keypoints': ['nose']}, {'id': 3, 'name': 5, 'keypoints': None}]
    assert read_categories(tmp_path, entries) == [Category(3, '5', ()), Category(7, 'b', ('nose',))]
    assert read_categories(tmp_path, []) == []


def test_what_is_missing_in_a_file_is_named(tmp_path):
    path = tmp_path / 'a.json'
    path.write_text('{"images": [], "annotations": [], "categories": []}')
    assert read_coco_json(path) == {'images': [], 'annotations': [], 'categories': []}
    path.write_text('{"images": [], "annotations": [], "categories": {}}')
    with pytest.raises(ValueError, match=r"a\.json has no list 'categories'; give COCO instances JSON"):
        read_coco_json(path)
    with pytest.raises(ValueError, match=r'annotation file .* cannot be read \(Is a directory\); correct ann_file'):
        read_coco_json(tmp_path)


@pytest.mark.parametrize('value', [1.5, float('nan'), float('inf'), True, '3', None, [3], 2**63, 1e300])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match='is no whole number of 64 bits'):
        whole_number(value)


@pytest.mark.parametrize(('value', 'number'), [(3, 3), (3.0, 3), (-2, -2), (0, 0), (2**63 - 1, 2**63 - 1)])
def test_a_whole_number_may_be_written_as_a_float(value, number):
    assert whole_number(value) == number
    assert type(whole_number(value)) is int
