import cv2
import numpy as np
import pytest

from lucid.datasets import VocDataset
from lucid.datasets.xml_lines import XmlError, line_of, parse_xml
from lucid.registry import DATASETS


def item(name='cat', box='11 21 30 40', extra=''):
    sides = zip(('xmin', 'ymin', 'xmax', 'ymax'), box.split(), strict=False)
    tags = ''.join(f'<{side}>{value}</{side}>' for side, value in sides)
    return f'  <object>\n    <name>{name}</name>{extra}\n    <bndbox>{tags}</bndbox>\n  </object>\n'


def page(*items, name='a.jpg', size='<width>60</width><height>40</height>'):
    return f'<annotation>\n  <filename>{name}</filename><size>{size}</size>\n{"".join(items)}</annotation>\n'


@pytest.fixture
def voc(tmp_path):
    """Writes a data set of two images, a.jpg and b.png, of 60x40 pixels; XML files by name (None: no file)."""

    def write(split='a\nb\n', **pages):
        pages = {'a': page(item()), 'b': page(item(), name='b.png'), **pages}
        for folder in ('Annotations', 'ImageSets/Main', 'JPEGImages'):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        picture = cv2.resize(np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8), (60, 40))
        for name in ('a.jpg', 'b.png'):
            cv2.imwrite(str(tmp_path / 'JPEGImages' / name), picture)
        for name, text in pages.items():
            if text is not None:
                (tmp_path / f'Annotations/{name}.xml').write_text(text)
        (tmp_path / 'ImageSets/Main/train.txt').write_text(split)
        return tmp_path

    return write


def build(root, **changes):
    return VocDataset(root, **{'split': 'train', 'image_size': 64, **changes})


def test_pixels_are_counted_from_one_and_the_last_one_is_inside(voc):
    whole, one = item('dog', '1 1 60 40'), item('ant', '60 40 60 40')
    data = build(voc(a=page(whole, one, item('cat', '3.5 2 7.25 9')), b=page()))
    np.testing.assert_array_equal(data[0].boxes, [[0, 0, 60, 40], [59, 39, 60, 40], [2.5, 1, 7.25, 9]])
    np.testing.assert_array_equal(data[0].labels, [2, 0, 1])
    assert data[1].boxes.shape == (0, 4), 'a file without objects is an image without objects'
    assert data.classes == ('ant', 'cat', 'dog')
    assert [file[-5:] for file in data.files] == ['a.jpg', 'b.png']
    assert (data.layout, data.annotation_file) == ('voc', None)
    assert data.source == voc() / 'ImageSets/Main/train.txt'


def test_classes_are_those_of_all_splits_so_that_splits_agree(voc):
    root = voc(split='a\n', b=page(item('ant')))
    (root / 'ImageSets/Main/val.txt').write_text('b\n')
    train, val = (build(root, split=split) for split in ('train', 'val'))
    assert train.classes == val.classes == ('ant', 'cat')
    assert (train[0].labels.tolist(), val[0].labels.tolist()) == ([1], [0])


def test_classes_may_be_stated_in_their_order(voc):
    root = voc()
    (root / 'classes.txt').write_text('dog\n\ncat \n')
    assert build(root).classes == ('dog', 'cat')
    assert build(root)[0].labels.tolist() == [1]
    assert build(root, classes=['cat', 'bird']).classes == ('cat', 'bird')
    (root / 'classes.txt').write_text('dog\ndog\n')
    with pytest.raises(ValueError, match=r'classes\.txt lists a class twice; write each once'):
        build(root)


def test_difficult_objects_are_ignored_regions_unless_they_are_kept(voc):
    root = voc(a=page(item(extra='<difficult>1</difficult>'), item(box='1 1 2 2', extra='<difficult>0</difficult>')))
    data = build(root)
    np.testing.assert_array_equal(data[0].boxes, [[0, 0, 2, 2]])
    np.testing.assert_array_equal(data.ground_truth(0).iscrowd, [True, False])
    assert [row['iscrowd'] for row in data.as_coco()['annotations']] == [1, 0, 0]
    assert len(build(root, difficult='keep')[0].boxes) == 2
    with pytest.raises(ValueError, match="difficult='drop' is unknown; choose one of ignore, keep"):
        build(root, difficult='drop')


def test_a_list_may_carry_the_flags_of_one_class_and_names_may_hold_spaces(voc):
    assert len(build(voc('a  1\nb -1\n\na  1\n'))) == 2
    root = voc('a 1\n', **{'a 1': page(item('dog'))})
    (root / 'JPEGImages/a.jpg').rename(root / 'JPEGImages/a 1.jpg')
    assert build(root).files[0].endswith('a 1.jpg')


def test_a_size_that_is_not_stated_is_that_of_the_file(voc):
    data = build(voc(a=page(item(), size=''), b=page(item(), size='<width>0</width><height>0</height>')))
    assert [data.ground_truth(index).original_hw for index in range(2)] == [(40, 60)] * 2


def test_of_two_files_of_one_name_the_one_that_is_stated_is_taken(voc):
    root = voc(a=page(item(), name='a.png'))
    (root / 'JPEGImages/a.png').write_bytes((root / 'JPEGImages/b.png').read_bytes())
    assert build(root).files[0].endswith('a.png')


def test_it_is_described_by_a_config(voc):
    config = {'type': 'VocDataset', 'data_root': str(voc()), 'split': 'train', 'image_size': 32}
    assert DATASETS.build({**config, 'pipeline': [{'type': 'Letterbox'}]})[0].image.shape == (32, 32, 3)


@pytest.mark.parametrize(
    ('kind', 'bad', 'message'),
    [
        ('unknown_class', item('bird'), "name 'bird' is none of cat, dog"),
        ('unknown_class', item(''), "name '' is none of"),
        ('empty_box', item(box='5 5 4 9'), 'bndbox 5 5 4 9 has no area'),
        ('empty_box', item(box='5 5 9 4'), 'has no area'),
        ('inverted_box', item(box='9 5 5 9'), 'negative width or height'),
        ('inverted_box', item(box='5 9 9 5'), 'negative width or height'),
        ('outside_box', item(box='61 5 70 9'), 'outside the 60x40 image'),
        ('outside_box', item(box='5 -9 9 0'), 'outside the 60x40 image'),
        ('nan_box', item(box='nan 5 9 9'), 'not finite'),
        ('nan_box', item(box='5 5 9 inf'), 'not finite'),
        ('malformed_box', item(box='5 5 9'), r'bndbox 5 5 9 \? has not four numbers xmin, ymin, xmax, ymax'),
        ('malformed_box', item(box='5 5 9 x'), 'bndbox 5 5 9 x has not four numbers'),
        ('malformed_box', '  <object>\n<name>cat</name></object>\n', r'bndbox \? \? \? \? has not'),
    ],
)
def test_a_bad_object_is_refused_by_file_and_line_or_left_out_and_counted(voc, kind, bad, message):
    root = voc(a=page(item(), bad, item()))
    (root / 'classes.txt').write_text('cat\ndog\n')
    with pytest.raises(ValueError, match=rf'(?s)\(1 {kind}\).*Annotations/a\.xml:7: object 2: .*{message}') as caught:
        build(root)
    (problem,) = caught.value.problems
    assert (problem.image, problem.annotation) == (0, 2)
    lenient = build(root, on_bad='skip_box')
    assert lenient.problems == {kind: 1}
    assert [len(lenient[index].boxes) for index in range(2)] == [2, 1]
    strict = build(root, on_bad='skip_image')
    assert [file[-5:] for file in strict.files] == ['b.png']


@pytest.mark.parametrize(
    ('kind', 'damage', 'message'),
    [
        ('missing_label', lambda root: (root / 'Annotations/a.xml').unlink(), "does not exist; .*='background'"),
        ('broken_label', lambda root: (root / 'Annotations/a.xml').write_text(''), 'is no XML .no element found.'),
        ('broken_label', lambda root: (root / 'Annotations/a.xml').write_text('<a>\n<b>\n</a>'), 'is no XML .mismatch'),
        ('missing_image', lambda root: (root / 'JPEGImages/a.jpg').unlink(), 'No such file'),
        ('empty_file', lambda root: (root / 'JPEGImages/a.jpg').write_bytes(b''), 'empty'),
        (
            'broken_image',
            lambda root: (root / 'JPEGImages/a.jpg').write_bytes((root / 'JPEGImages/a.jpg').read_bytes()[:-200]),
            'truncated or no image',
        ),
        (
            'wrong_size',
            lambda root: (root / 'Annotations/a.xml').write_text(page(size='<width>9</width><height>9</height>')),
            '60x40 pixels, the annotations say 9x9',
        ),
    ],
)
def test_a_bad_file_is_refused_by_name_or_left_out_with_its_image(voc, kind, damage, message):
    root = voc()
    damage(root)
    for policy in ('error', 'skip_box'):
        with pytest.raises(ValueError, match=rf'(?s)\(1 {kind}\).*/a\.\w+(:\d+)?: .*{message}'):
            build(root, on_bad=policy)
    data = build(root, on_bad='skip_image')
    assert data.problems == {kind: 1}
    assert [file[-5:] for file in data.files] == ['b.png']


def test_a_missing_label_file_may_mean_background(voc):
    data = build(voc(a=None), missing_labels='background')
    assert [len(data[index].boxes) for index in range(2)] == [0, 1]


def test_an_image_that_cannot_be_read_is_one_problem_even_if_its_size_is_not_stated(voc):
    root = voc(a=page(item(), size=''))
    (root / 'JPEGImages/a.jpg').write_bytes(b'')
    assert build(root, on_bad='skip_image').problems == {'empty_file': 1}


def test_what_is_missing_as_a_whole_is_named(voc):
    root = voc(split='\n')
    with pytest.raises(ValueError, match=r'val\.txt does not exist; set split to one of train'):
        build(root, split='val')
    with pytest.raises(ValueError, match=r'train\.txt lists no images'):
        build(root)
    with pytest.raises(ValueError, match='Annotations: no file names an object; correct data_root, or set classes'):
        build(voc(a=page(), b=page()))


def test_a_data_set_is_never_written_to(voc):
    root = voc(a=page(item(box='5 5 4 9')))
    state = {path: path.stat().st_mtime_ns for path in root.rglob('*')}
    data = build(root, on_bad='skip_box', cache_mb=1)
    data[0], data.as_coco()
    assert {path: path.stat().st_mtime_ns for path in root.rglob('*')} == state


def test_elements_know_their_line(tmp_path):
    path = tmp_path / 'a.xml'
    path.write_text('<?xml version="1.0"?>\n<a>\n\n<b x="1">text</b><c/></a>')
    root = parse_xml(path)
    assert [line_of(root), *(line_of(child) for child in root)] == [2, 4, 4]
    assert (root[0].text, root[0].get('x')) == ('text', '1')
    with pytest.raises(XmlError, match='cannot be read'):
        parse_xml(tmp_path)
    with pytest.raises(FileNotFoundError):
        parse_xml(tmp_path / 'none.xml')
