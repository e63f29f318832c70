import sys

import numpy as np

from lucid.visualization.figures import DPI, MOST_ROWS, bar_chart, new_figure, plain, to_image


def test_a_figure_becomes_an_rgb_image_of_its_size_that_the_caller_owns():
    figure = new_figure(3, 2)
    figure.subplots().plot([0, 1], [0, 1], color='red')
    image = to_image(figure)
    assert (image.shape, image.dtype) == ((2 * DPI, 3 * DPI, 3), np.uint8)
    assert ((image == (255, 0, 0)).all(axis=2)).any()
    image[:] = 0
    assert to_image(figure).any()


def test_no_figure_touches_the_state_of_pyplot():
    to_image(new_figure(1, 1))
    pyplot = sys.modules.get('matplotlib.pyplot')
    assert pyplot is None or pyplot.get_fignums() == []


def test_bars_have_the_lengths_and_names_that_were_given():
    figure = bar_chart(['bolt', 'nut'], {'AP': [0.5, float('nan')], 'AP50': [0.75, 1.0]}, title='t', label='AP')
    (axes,) = figure.axes
    lengths = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert lengths == [[0.5, 0.0], [0.75, 1.0]]
    assert [text.get_text() for text in axes.get_yticklabels()] == ['bolt', 'nut']
    assert [text.get_text() for text in axes.texts] == ['0.500', '-', '0.750', '1.000']


def test_thousands_of_names_are_cut_and_the_title_says_so():
    names = [f'class {i}' for i in range(MOST_ROWS + 1)]
    figure = bar_chart(names, {'boxes': [1.0] * len(names)}, title='boxes', label='boxes', digits=0)
    assert figure.axes[0].get_title() == f'boxes (first {MOST_ROWS} of {MOST_ROWS + 1})'
    assert len(figure.axes[0].patches) == MOST_ROWS


def test_names_are_no_formulas_and_a_lone_surrogate_does_not_end_the_run():
    assert plain('a$b$\udc80\n') == r'a\$b\$??'
    figure = bar_chart(['a$\\frac$', '\udc80'], {'n': [1, 2]}, title='$x$', label='n', digits=0)
    to_image(figure)
