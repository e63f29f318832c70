from itertools import combinations

import pytest

from lucid.visualization import class_color, text_color


def test_colours_depend_on_the_index_alone():
    assert [class_color(i) for i in range(100)] == [class_color(i) for i in range(100)]
    assert all(0 <= value <= 255 for i in range(100) for value in class_color(i))


def test_the_first_ten_colours_are_far_apart_and_a_hundred_are_all_different():
    colors = [class_color(i) for i in range(100)]
    assert len(set(colors)) == 100
    nearest = min(sum(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in combinations(colors[:10], 2))
    assert nearest > 80


@pytest.mark.parametrize(
    ('background', 'ink'),
    [((255, 255, 255), 0), ((0, 0, 0), 255), ((255, 255, 0), 0), ((0, 0, 255), 255), ((139, 139, 139), 255)],
)
def test_text_is_black_on_light_and_white_on_dark(background, ink):
    assert text_color(background) == (ink, ink, ink)
