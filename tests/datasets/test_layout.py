import pytest

from lucid.datasets.layout import NoLayoutError, find_annotations, find_images, find_layout, has_split


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize(
    ('file', 'folder'),
    [
        ('annotations/train.json', 'train'),
        ('annotations/instances_train.json', 'images/train'),
        ('annotations/instances_train2017.json', 'train2017'),
        ('train/_annotations.coco.json', 'train'),
        ('annotations/train.json', '.'),
    ],
)
def test_the_usual_places_are_found(tmp_path, file, folder):
    expected = touch(tmp_path / file)
    touch(tmp_path / folder / 'sub/a.jpg')
    assert find_annotations(tmp_path, 'train') == expected
    assert find_images(tmp_path, 'train', ['missing.jpg', 'sub/a.jpg']) == tmp_path / folder


def test_stated_places_win(tmp_path):
    touch(tmp_path / 'annotations/train.json')
    other = touch(tmp_path / 'annotations/train_raw.json')
    touch(tmp_path / 'train/a.jpg')
    (tmp_path / 'pictures').mkdir()
    assert find_annotations(tmp_path, 'train', 'annotations/train_raw.json') == other
    assert find_images(tmp_path, 'train', ['a.jpg'], 'pictures') == tmp_path / 'pictures'


def test_ambiguous_places_are_refused_and_listed(tmp_path):
    touch(tmp_path / 'annotations/train.json')
    touch(tmp_path / 'train/_annotations.coco.json')
    with pytest.raises(ValueError, match=r'several annotations.*annotations/train\.json.*_annotations.*set ann_file'):
        find_annotations(tmp_path, 'train')
    touch(tmp_path / 'train/a.jpg')
    touch(tmp_path / 'images/train/a.jpg')
    with pytest.raises(ValueError, match=r'several folders.*images/train.*set image_dir'):
        find_images(tmp_path, 'train', ['a.jpg'])


def test_missing_places_list_what_was_looked_for(tmp_path):
    with pytest.raises(
        ValueError, match=r'no annotations for split .val.; looked for .*instances_val2017.*set ann_file'
    ):
        find_annotations(tmp_path, 'val')
    with pytest.raises(ValueError, match=r'a\.jpg are in none of the folders.*images/val.*set image_dir'):
        find_images(tmp_path, 'val', ['a.jpg'])
    with pytest.raises(ValueError, match=r'x\.json does not exist; correct ann_file'):
        find_annotations(tmp_path, 'val', 'x.json')
    with pytest.raises(ValueError, match='pics does not exist; correct image_dir'):
        find_images(tmp_path, 'val', ['a.jpg'], 'pics')
    with pytest.raises(ValueError, match='nowhere is no folder; set data_root'):
        find_annotations(tmp_path / 'nowhere', 'val')


def test_val_may_be_called_valid(tmp_path):
    expected = touch(tmp_path / 'valid/_annotations.coco.json')
    touch(tmp_path / 'valid/a.jpg')
    assert find_annotations(tmp_path, 'val') == expected
    assert find_images(tmp_path, 'val', ['a.jpg']) == tmp_path / 'valid'
    touch(tmp_path / 'annotations/val.json')
    with pytest.raises(ValueError, match='several annotations for split'):
        find_annotations(tmp_path, 'val')


class TestFindLayout:
    def test_each_layout_is_known_by_its_files(self, tmp_path):
        touch(tmp_path / 'coco/annotations/instances_train2017.json')
        touch(tmp_path / 'yolo/data.yaml').write_text('names: [a]\ntest: images\n')
        touch(tmp_path / 'voc/ImageSets/Main/train.txt')
        (tmp_path / 'voc/Annotations').mkdir()
        assert [find_layout(tmp_path / name, 'train') for name in ('coco', 'yolo', 'voc')] == ['coco', 'yolo', 'voc']
        assert find_layout(tmp_path / 'yolo/data.yaml', 'train') == 'yolo'
        known = [(name, split) for name in ('coco', 'yolo', 'voc') for split in ('train', 'val', 'test')]
        found = [pair for pair in known if has_split(tmp_path / pair[0], *pair)]
        assert found == [('coco', 'train'), ('yolo', 'test'), ('voc', 'train')]

    def test_several_layouts_are_refused_by_their_files(self, tmp_path):
        touch(tmp_path / 'annotations/train.json')
        touch(tmp_path / 'data.yaml')
        with pytest.raises(ValueError, match=r"coco \(.*train\.json\); yolo \(.*data\.yaml\); set layout='coco'"):
            find_layout(tmp_path, 'train')
        assert find_layout(tmp_path, 'val') == 'yolo'

    def test_what_was_looked_for_is_listed_where_none_fits(self, tmp_path):
        message = (
            r'coco: .*annotations/val\.json, .*_annotations\.coco\.json.*; yolo: .*data\.yaml or another .*; '
            r'voc: .*Annotations and .*ImageSets/Main; dota: .*val/images and .*val/labelTxt; arrange .* set ann_file'
        )
        with pytest.raises(NoLayoutError, match=message):
            find_layout(tmp_path, 'val')
        with pytest.raises(ValueError, match='nowhere does not exist; set data_root'):
            find_layout(tmp_path / 'nowhere', 'val')


def test_a_folder_that_is_not_there_names_its_nearest_neighbour(tmp_path):
    (tmp_path / 'bccd_yolo').mkdir()
    with pytest.raises(ValueError, match=r'bccd_yol does not exist; did you mean .*/bccd_yolo\? set data_root'):
        find_layout(tmp_path / 'bccd_yol', 'train')
    with pytest.raises(ValueError, match='zebra does not exist; set data_root'):
        find_layout(tmp_path / 'zebra', 'train')
