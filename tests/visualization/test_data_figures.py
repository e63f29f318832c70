import numpy as np

from lucid.visualization.data_figures import box_figure, class_figure
from lucid.visualization.figures import to_image


def test_four_charts_show_sizes_places_proportions_and_numbers():
    sides = np.array([[10.0, 20.0], [100.0, 50.0], [0.5, 0.5]])
    figure = box_figure(
        sides, np.full((3, 2), 0.5), np.array([1, 2, 0]), title='train $x$', image_size=(64, 96), capacity=(2, 64)
    )
    sizes, places, aspects, numbers = figure.axes[:4]
    assert sizes.get_title().startswith('size in the 96x64 input')
    assert sizes.get_xlim()[0] <= 0.5
    assert places.get_ylim() == (1, 0)  # as an image lies
    assert sum(bar.get_height() for bar in aspects.patches) == 3
    assert [bar.get_height() for bar in numbers.patches] == [1, 1, 1]
    assert [line.get_xdata()[0] for line in numbers.lines] == [2]
    assert sizes.get_title().endswith('(dashed: areas of 32² and 96²)')
    assert numbers.get_title().endswith('(dashed: what targets are padded to)')
    assert numbers.get_xlim()[0] == -0.5  # an image without boxes has a bar
    assert to_image(figure).shape == (900, 1200, 3)


def test_a_split_without_boxes_has_charts_that_say_so():
    figure = box_figure(np.zeros((0, 2)), np.zeros((0, 2)), np.array([0, 0]), title='val', image_size=(64, 64))
    assert [text.get_text() for axes in figure.axes[:3] for text in axes.texts] == ['no boxes'] * 3
    assert to_image(figure).any()


def test_classes_have_a_bar_for_each_split():
    figure = class_figure(['cat', 'ant'], {'train': [5, 0], 'val': [1, 2]})
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [5, 0, 1, 2]


def test_titles_name_no_dashed_line_that_is_out_of_range_and_counts_begin_at_zero():
    figure = box_figure(
        np.full((3, 2), 9.0), np.full((3, 2), 0.5), np.array([1, 2]), title='a', image_size=(64, 64), capacity=(64,)
    )
    sizes, _, _, numbers = figure.axes[:4]
    assert sizes.get_title().endswith('(dashed: area of 32²)')
    assert numbers.get_title() == 'boxes per image'
    assert numbers.get_xlim()[0] == 0
