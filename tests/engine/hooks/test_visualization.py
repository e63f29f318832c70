import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import mmcv
import numpy as np
import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import Dataset

from lucid.engine.comparison import comparisons
from lucid.engine.drawing import DrawingError
from lucid.engine.hooks.visualization import VisualizationHook
from lucid.registry import HOOKS
from lucid.structures import PackedTargets

SIZE = 64


class Scenes(Dataset):
    """Images of 40 x 80 pixels, letterboxed to 64 x 64 with one box each; odd ones are empty."""

    metainfo = {'classes': ('bolt', 'nut')}

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index


def batch(indices):
    """As collate makes it: 80 x 40 pixels scaled by 0.8 and moved 16 pixels down."""
    inputs = torch.full((len(indices), SIZE, SIZE, 3), 114, dtype=torch.uint8)
    inputs[:, 16:48] = 200
    counts = [1 - i % 2 for i in indices]
    rows = [b for b, count in enumerate(counts) if count]
    targets = PackedTargets(
        torch.tensor([[16.0, 24, 48, 40]] * len(rows)).reshape(-1, 4),
        torch.zeros(len(rows), dtype=torch.int64),
        torch.tensor(rows, dtype=torch.int64),
        torch.zeros(len(rows), dtype=torch.int64),
        counts,
    )
    matrix = np.array([[0.8, 0, 0], [0, 0.8, 16], [0, 0, 1]])
    metas = [{'image_id': i, 'file': f'somewhere/{i}.jpg', 'original_hw': (40, 80), 'matrix': matrix} for i in indices]
    return {'inputs': inputs, 'targets': targets, 'metas': metas}


class Toy(BaseModel):
    """Finds in every image the box (20, 10, 60, 30) of the original."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, inputs, targets=None, metas=None, mode='tensor'):
        if mode == 'loss':
            return {'loss': self.weight * 2}
        return [
            {
                'image_id': meta['image_id'],
                'file': meta['file'],
                'boxes': torch.tensor([[20.0, 10, 60, 30]]),
                'scores': torch.tensor([0.9]),
                'labels': torch.tensor([1]),
            }
            for meta in metas
        ]


class Silent(Evaluator):
    """Evaluates nothing."""

    def process(self, data_samples, data_batch=None):
        pass

    def evaluate(self, size):
        return {'score': 1.0}


class Spy:
    """A painter that remembers what it was asked to draw."""

    def __init__(self):
        self.batches, self.comparisons = [], []

    def draw_batch(self, images, truths, captions, classes):
        self.batches.append((images, truths, captions, classes))
        return np.zeros((4, 4, 3), np.uint8)

    def draw_comparison(self, image, truth, prediction, caption, classes):
        self.comparisons.append((image, truth, prediction, caption, classes))
        return np.zeros((4, 4, 3), np.uint8)

    def stack(self, panels):
        return np.concatenate(panels)


@pytest.fixture
def spy(drawn_here):
    hook = VisualizationHook(batch_images=2, val_images=3)
    hook.painter = Spy()
    return hook, hook.painter


def toy_runner(folder: Path, hook: VisualizationHook, epochs=2, tensorboard=False):
    loader = {'batch_size': 2, 'num_workers': 0, 'dataset': Scenes(), 'collate_fn': batch}
    backends = [{'type': 'LocalVisBackend'}] + [{'type': 'TensorboardVisBackend'}] * tensorboard
    return Runner(
        Toy(),
        str(folder),
        train_dataloader={**loader, 'sampler': {'type': 'DefaultSampler', 'shuffle': False}},
        val_dataloader={**loader, 'sampler': {'type': 'DefaultSampler', 'shuffle': False}},
        test_dataloader={**loader, 'sampler': {'type': 'DefaultSampler', 'shuffle': False}},
        train_cfg={'by_epoch': True, 'max_epochs': epochs, 'val_interval': 1},
        val_cfg={},
        test_cfg={},
        val_evaluator=Silent([]),
        test_evaluator=Silent([]),
        optim_wrapper={'type': 'mmengine.OptimWrapper', 'optimizer': {'type': 'SGD', 'lr': 0.1}},
        custom_hooks=[hook],
        visualizer={'type': 'Visualizer', 'vis_backends': backends},
        experiment_name=folder.name,
        default_hooks={'checkpoint': None},
        default_scope='lucid',
        log_level='ERROR',
    )


def compare(painter, data, outputs, keypoint_names=()):
    """The pictures of the first images of a batch."""
    return [each.draw(painter, ('bolt', 'nut'), keypoint_names) for each in comparisons(data, outputs, keypoint_names)]


def names(folder):
    return sorted(path.name for path in folder.glob('*.*'))


def test_the_hook_is_found_by_its_bare_name_and_refuses_senseless_numbers():
    assert HOOKS.build({'type': 'VisualizationHook', 'painter': {'side': 200}}).painter.side == 200
    for wrong in (
        {'interval': 0},
        {'batch_images': 0},
        {'val_images': -1},
        {'num_batches': -1},
        {'keep': 0},
        {'time_share': 2.0},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            VisualizationHook(**wrong)


def test_three_batches_and_every_validation_leave_a_picture(tmp_path):
    toy_runner(tmp_path, VisualizationHook(), epochs=2).train()
    assert names(tmp_path / 'pictures') == [
        *(f'train_batch_{i}.jpg' for i in range(3)),
        'val_epoch_01.jpg',
        'val_epoch_02.jpg',
    ]
    picture = mmcv.imread(str(tmp_path / 'pictures' / 'val_epoch_02.jpg'))
    assert picture.shape[1] > 4 * 320


def test_a_training_batch_is_drawn_with_its_targets_from_the_host(tmp_path, spy):
    hook, painter = spy
    toy_runner(tmp_path, hook, epochs=1).train()
    assert len(painter.batches) == 3
    images, truths, captions, classes = painter.batches[1]
    assert images.dtype == np.uint8
    assert images.shape == (2, SIZE, SIZE, 3)
    assert captions == ['2.jpg', '3.jpg']
    assert classes == ('bolt', 'nut')
    assert truths[0]['boxes'].tolist() == [[16, 24, 48, 40]]
    assert truths[1]['boxes'].shape == (0, 4)


def test_validation_shows_the_first_images_without_padding_and_boxes_in_their_pixels(tmp_path, spy):
    hook, painter = spy
    toy_runner(tmp_path, hook, epochs=1).train()
    assert [row[3] for row in painter.comparisons] == ['0.jpg', '1.jpg', '2.jpg']
    image, truth, prediction, _, classes = painter.comparisons[0]
    assert image.shape == (32, 64, 3)
    assert (image == 200).all()
    assert truth['boxes'].tolist() == [[16, 8, 48, 24]]
    np.testing.assert_allclose(prediction['boxes'], [[16, 8, 48, 24]], atol=1e-5)
    assert prediction['labels'].tolist() == [1]
    assert classes == ('bolt', 'nut')
    assert painter.comparisons[1][1]['boxes'].shape == (0, 4)


def test_an_interval_skips_validations_and_zero_draws_nothing(tmp_path):
    toy_runner(tmp_path, VisualizationHook(num_batches=0, interval=2), epochs=3).train()
    assert names(tmp_path / 'pictures') == ['val_epoch_01.jpg', 'val_epoch_03.jpg']
    toy_runner(tmp_path / 'none', VisualizationHook(num_batches=0, val_images=0), epochs=1).train()
    assert not (tmp_path / 'none' / 'pictures').exists()


def test_drawing_keeps_to_its_share_of_the_time_but_for_the_first_and_the_last_validation(tmp_path):
    """A share that no picture can keep to."""
    toy_runner(tmp_path, VisualizationHook(num_batches=0, keep=9, time_share=1e-9), epochs=4).train()
    assert names(tmp_path / 'pictures') == ['val_epoch_01.jpg', 'val_epoch_04.jpg']


def test_pictures_of_the_newest_validations_stay_and_none_of_a_run_that_is_replaced(tmp_path):
    folder = tmp_path / 'pictures'
    folder.mkdir()
    for name in ('val_epoch_50.jpg', 'val_epoch_mine.jpg', 'curves.png'):
        (folder / name).touch()
    toy_runner(tmp_path, VisualizationHook(num_batches=0, keep=2), epochs=4).train()
    assert names(folder) == ['curves.png', 'val_epoch_03.jpg', 'val_epoch_04.jpg', 'val_epoch_mine.jpg']


def test_a_run_that_is_resumed_does_not_draw_its_first_batches_again(tmp_path, spy):
    hook, painter = spy
    loader = SimpleNamespace(dataset=Scenes())
    for iteration in (0, 2, 3, 50):
        runner = SimpleNamespace(iter=iteration, epoch=0, work_dir=tmp_path, train_dataloader=loader)
        hook.before_train_iter(runner, 0, batch([0, 1]))
    assert names(tmp_path / 'pictures') == ['train_batch_0.jpg', 'train_batch_2.jpg']
    assert len(painter.batches) == 2


def test_validation_pictures_go_to_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runner = toy_runner(tmp_path, VisualizationHook(), epochs=2, tensorboard=True)
    runner.train()
    runner.visualizer.close()
    events = EventAccumulator(str(next(tmp_path.rglob('events*')).parent)).Reload()
    assert [image.step for image in events.Images('validation')] == [1, 2]
    assert events.Tags()['images'] == ['validation']
    assert not list(tmp_path.rglob('vis_image'))
    shown = mmcv.imfrombytes(events.Images('validation')[0].encoded_image_string)
    height, width = mmcv.imread(str(tmp_path / 'pictures' / 'val_epoch_01.jpg')).shape[:2]
    assert (events.Images('validation')[0].height, events.Images('validation')[0].width) == shown.shape[:2]
    assert max(shown.shape) == min(max(height, width), 1500)


def pictures(folder):
    return {path.name: path.read_bytes() for path in folder.glob('pictures/*')}


def test_the_files_are_those_that_drawing_here_gives(tmp_path, request):
    toy_runner(tmp_path / 'apart', VisualizationHook(), epochs=2).train()
    request.getfixturevalue('drawn_here')
    toy_runner(tmp_path / 'here', VisualizationHook(), epochs=2).train()
    assert len(pictures(tmp_path / 'here')) == 5
    assert pictures(tmp_path / 'apart') == pictures(tmp_path / 'here')


class Broken(Spy):
    """Cannot draw what it is made for."""

    def stack(self, panels):
        raise ArithmeticError('no room')


def test_a_painter_that_fails_ends_the_training_when_its_validation_is_over(tmp_path):
    hook = VisualizationHook(num_batches=0)
    hook.painter = Broken()
    runner = toy_runner(tmp_path, hook, epochs=9)
    with pytest.raises(DrawingError, match='VisualizationHook could not draw: ArithmeticError: no room'):
        runner.train()
    assert not (tmp_path / 'pictures').exists()


def test_other_processes_of_a_distributed_run_draw_nothing(tmp_path, monkeypatch):
    runner = toy_runner(tmp_path, VisualizationHook(), epochs=1)
    monkeypatch.setattr('mmengine.dist.utils.get_rank', lambda group=None: 1)
    before = multiprocessing.active_children()
    runner.train()
    assert not (tmp_path / 'pictures').exists()
    assert multiprocessing.active_children() == before


def test_a_validation_alone_is_drawn_at_once(tmp_path, spy):
    hook, painter = spy
    toy_runner(tmp_path, hook).val()
    assert names(tmp_path / 'pictures') == ['val_epoch_00.jpg']
    assert len(painter.comparisons) == 3


def test_a_test_writes_a_picture_per_image_where_a_folder_is_named(tmp_path):
    toy_runner(tmp_path, VisualizationHook(test_dir=tmp_path / 'shown')).test()
    assert names(tmp_path / 'shown') == [f'{i}_{i}.png' for i in range(6)]
    toy_runner(tmp_path / 'other', VisualizationHook()).test()
    assert not list((tmp_path / 'other').rglob('*.png'))


def test_a_batch_without_targets_is_drawn_without_truth(tmp_path, spy):
    _, painter = spy
    data = {**batch([0]), 'targets': None}
    compare(painter, data, Toy()(**data, mode='predict'))
    assert painter.comparisons[0][1]['boxes'].shape == (0, 4)


def test_targets_of_every_kind_are_drawn_in_the_pixels_of_what_is_shown(tmp_path, spy):
    _, painter = spy
    data = batch([0, 1])
    masks = torch.zeros(1, 16, 16, dtype=torch.bool)
    masks[:, 6:10, 4:12] = True  # cells of 4 pixels: x 16 to 48, y 24 to 40
    rboxes = torch.tensor([[32.0, 32, 32, 16, 0.5]])
    points = torch.tensor([[[16.0, 24, 2], [48, 40, 1], [0, 0, 0]]])
    data['targets'] = data['targets']._replace(masks_NHW=masks, rboxes_N5=rboxes, keypoints_NJ3=points)
    found = {
        'masks': [{'size': [40, 80], 'counts': 'anything'}],
        'rboxes': torch.tensor([[40.0, 20, 40, 20, 0.5]]),
        'keypoints': torch.tensor([[[20.0, 10], [60, 30], [0, 0]]]),
    }
    outputs = [{**each, **found} for each in Toy()(**data, mode='predict')]
    compare(painter, data, outputs, ('nose', 'left_eye', 'tail'))
    _, truth, shown, *_ = painter.comparisons[0]
    # The window begins 16 pixels down; its image is 0.8 of the original.
    assert truth['masks'].shape == (1, 32, 64)
    assert truth['masks'][0, 8:24, 16:48].all()
    assert truth['masks'].sum() == 16 * 32
    np.testing.assert_allclose(truth['rboxes'], [[32, 16, 32, 16, 0.5]])
    np.testing.assert_allclose(truth['keypoints'][0, :2], [[16, 8, 2], [48, 24, 1]])
    assert truth['keypoints'][0, 2, 2] == 0
    np.testing.assert_allclose(shown['rboxes'], [[32, 16, 32, 16, 0.5]], atol=1e-4)
    np.testing.assert_allclose(shown['keypoints'][0], [[16, 8], [48, 24], [0, 0]], atol=1e-4)
    assert shown['masks'] == found['masks']  # of the whole original image, which the window shows
    assert truth['limbs'] == shown['limbs'] == ((0, 1),)
    # An image without objects has none of any kind.
    assert {key: len(painter.comparisons[1][1][key]) for key in ('masks', 'rboxes', 'keypoints')} == {
        'masks': 0,
        'rboxes': 0,
        'keypoints': 0,
    }


def test_a_training_batch_and_a_validation_with_every_kind_leave_pictures(tmp_path):
    """The painter itself, with the masks, rotated boxes and points of generated shapes."""
    from lucid.datasets import ShapesDataset
    from lucid.datasets.collate import detection_collate

    kinds = ('boxes', 'masks', 'rboxes', 'keypoints')
    data = ShapesDataset(
        tmp_path, split='val', num_images=2, image_size=96, targets=kinds, pipeline=[{'type': 'Letterbox'}]
    )
    samples = detection_collate([data[0], data[1]], masks=True)
    runner = SimpleNamespace(iter=0, epoch=0, work_dir=tmp_path, train_dataloader=SimpleNamespace(dataset=data))
    hook = VisualizationHook()
    hook.before_train_iter(runner, 0, samples)
    assert names(tmp_path / 'pictures') == ['train_batch_0.jpg']
    targets, (count, _) = samples['targets'], samples['targets'].counts
    output = {
        'boxes': targets.boxes_N4[:count],
        'labels': targets.labels_N[:count],
        'scores': torch.linspace(0.9, 0.3, count),
        'rboxes': targets.rboxes_N5[:count],
        'keypoints': targets.keypoints_NJ3[:count, :, :2],
    }
    (picture,) = compare(hook.painter, samples, [output], data.keypoint_names)
    # Truth and prediction are the same objects; the prediction has no masks.
    assert picture.shape[1] > 2 * 320
