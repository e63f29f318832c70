import numpy as np

from lucid.evaluation.class_table import class_table

SUMMARY = {'mAP': 0.25, 'mAP50': 0.5, 'AR': 0.75, 'mAP_s': float('nan'), 'mAP_m': 0.1, 'mAP_l': 0.2, 'recall50': 0.9}


def test_a_line_per_class_and_one_for_all_with_a_dash_for_what_has_no_truth():
    columns = {
        'images': np.array([3, 0]),
        'boxes': np.array([7, 0]),
        'AP': np.array([0.25, np.nan]),
        'AP50': np.array([0.5, np.nan]),
        'AR': np.array([0.75, np.nan]),
    }
    text = class_table(('bolt', 'größe [x]'), columns, SUMMARY, num_images=4)
    lines = [line.split() for line in text.splitlines() if line]
    assert lines[0] == ['class', 'images', 'boxes', 'AP', 'AP50', 'AR']
    assert ['bolt', '3', '7', '0.250', '0.500', '0.750'] in lines
    assert ['größe', '[x]', '0', '0', '-', '-', '-'] in lines
    assert ['all', '4', '7', '0.250', '0.500', '0.750'] in lines
    assert lines[-1] == ['mAP_s', '-', 'mAP_m', '0.100', 'mAP_l', '0.200', 'recall50', '0.900']
    assert '\x1b' not in text


def test_two_paths_stand_side_by_side():
    columns = {
        'images': np.array([3]),
        'boxes': np.array([7]),
        'AP': np.array([0.25]),
        'AR': np.array([0.75]),
        'nms/AP': np.array([0.3]),
        'nms/AR': np.array([0.8]),
    }
    summary = {**SUMMARY, **{f'nms/{key}': value / 2 for key, value in SUMMARY.items()}}
    text = class_table(('bolt',), columns, summary, num_images=4)
    lines = [line.split() for line in text.splitlines() if line]
    assert lines[0] == ['class', 'images', 'boxes', 'AP', 'AR', 'nms', 'AP', 'nms', 'AR']
    assert ['all', '4', '7', '0.250', '0.750', '0.125', '0.375'] in lines
    assert lines[-2][-2:] == ['recall50', '0.900']
    assert (lines[-1][0], lines[-1][-2:]) == ('nms', ['recall50', '0.450'])
