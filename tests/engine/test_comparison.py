import pickle
from typing import Any

import numpy as np
import torch

from lucid.engine.comparison import comparisons
from lucid.structures import PackedTargets


def batch() -> dict[str, Any]:
    """Two images of 40 x 80 pixels, scaled by 0.8 and moved 16 pixels down; one box in the first."""
    inputs = torch.full((2, 64, 64, 3), 114, dtype=torch.uint8)
    inputs[:, 16:48] = 200
    zero = torch.zeros(1, dtype=torch.int64)
    targets = PackedTargets(torch.tensor([[16.0, 24, 48, 40]]), zero, zero, zero, [1, 0])
    matrix = np.array([[0.8, 0, 0], [0, 0.8, 16], [0, 0, 1]])
    metas = [{'image_id': i, 'file': f'a/{i}.jpg', 'original_hw': (40, 80), 'matrix': matrix} for i in range(2)]
    return {'inputs': inputs, 'targets': targets, 'metas': metas}


def output() -> dict[str, Any]:
    return {
        'boxes': torch.tensor([[20.0, 10, 60, 30]]),
        'scores': torch.tensor([0.5], dtype=torch.bfloat16),
        'labels': torch.tensor([1]),
    }


def test_as_many_images_as_there_are_predictions_without_their_padding() -> None:
    (first,) = comparisons(batch(), [output()])
    assert (first.image.shape, first.window) == ((32, 64, 3), (0, 16, 64, 48))
    assert (first.image == 200).all()
    assert (str(first.file), first.image_id) == ('a/0.jpg', 0)
    assert first.truth['boxes'].tolist() == [[16, 24, 48, 40]]
    assert len(comparisons(batch(), [output(), output()])) == 2
    assert comparisons(batch(), []) == []


def test_what_they_were_made_from_may_change_and_they_can_be_sent() -> None:
    data, found = batch(), output()
    (first,) = comparisons(data, [found])
    data['inputs'].zero_()
    data['targets'].boxes_N4.zero_()
    data['metas'][0]['matrix'][:] = 0
    for tensor in found.values():
        tensor.zero_()
    sent = pickle.loads(pickle.dumps(first))
    assert (sent.image == 200).all()
    assert sent.truth['boxes'].tolist() == [[16, 24, 48, 40]]
    assert sent.matrix[0, 0] == 0.8
    assert {key: values.tolist() for key, values in sent.found.items()} == {
        'boxes': [[20, 10, 60, 30]],
        'scores': [0.5],
        'labels': [1],
    }
