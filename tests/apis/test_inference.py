from pathlib import Path

import cv2
import mmcv
import numpy as np
import pytest
import torch
from mmengine.model import BaseModel

from lucid.apis import train
from lucid.apis.inference import TrainedDetector, inference_detector, init_detector
from lucid.datasets import Letterbox
from lucid.engine.checkpoint import save
from lucid.registry import MODELS
from lucid.structures import Detections
from lucid.structures.detections import pack_rows, place_detections

CONFIG = {
    'model': {'type': 'YOLODetector', 'scale': 'n', 'num_classes': 2},
    'image_size': 64,
    'val_dataloader': {
        'dataset': {'type': 'CocoDataset', 'split': 'val', 'image_size': [32, 96], 'pipeline': [{'type': 'Letterbox'}]}
    },
}


class SquareFinder(BaseModel):
    """Finds the square with much red in the letterboxed input, with score 0.9; and the whole input, with 0.3."""

    def __init__(self):
        super().__init__()
        self.batch_sizes = []

    def forward(self, inputs, targets=None, metas=None, mode='tensor'):
        self.batch_sizes.append(len(inputs))
        rows = []
        for image in inputs:
            ys, xs = np.nonzero(image.numpy()[..., 0] > 250)
            height, width = image.shape[:2]
            rows.append([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1], [0, 0, width, height]])
        count = len(rows)
        detections = Detections(
            torch.tensor(np.array(rows), dtype=torch.float32),
            torch.tensor([[0.9, 0.3]] * count),
            torch.tensor([[1, 0]] * count),
            torch.tensor([[0, 1]] * count),
        )
        return list(map(place_detections, pack_rows(detections).numpy(), metas))


def scene(height, width, box):
    image = np.zeros((height, width, 3), np.uint8)
    image[box[1] : box[3], box[0] : box[2]] = 255
    return image


def finder(size=(64, 64)):
    pipeline = (Letterbox(image_size=size),)
    return TrainedDetector(SquareFinder(), ('square', 'scene'), pipeline, torch.device('cpu'))


@pytest.fixture(scope='module')
def model():
    torch.manual_seed(0)
    return MODELS.build(CONFIG['model']).eval()


@pytest.fixture
def checkpoint(tmp_path, model):
    def write(name='best.pth', **changes):
        content = {
            'meta': {'cfg': CONFIG},
            'classes': ['bolt', 'nut'],
            'state_dict': model.state_dict(),
        }
        save({**content, **changes}, tmp_path / name)
        return tmp_path / name

    return write


def test_boxes_are_in_pixels_of_the_image_whatever_its_shape():
    boxes = [(40, 20, 120, 60), (30, 80, 90, 180), (8, 8, 24, 16)]
    images = [scene(h, w, box) for (h, w), box in zip([(100, 200), (240, 120), (32, 32)], boxes, strict=True)]
    found = inference_detector(finder((128, 96)), images, batch_size=2)
    assert [row['image_id'] for row in found] == [0, 1, 2]
    for row, image, box in zip(found, images, boxes, strict=True):
        height, width = image.shape[:2]
        pixel = max(1.0, height / 128, width / 96)  # of the network input, in pixels of the image
        np.testing.assert_allclose(row['boxes'][0], box, atol=2 * pixel)
        assert row['boxes'][1].tolist() == [0, 0, width, height]  # clipped to the image
        assert row['labels'].tolist() == [1, 0]


def test_one_image_or_a_list_a_path_or_an_array_are_all_taken(tmp_path):
    image = scene(64, 64, (16, 8, 40, 48))
    image[..., 2] //= 2  # yellow where white was: read as BGR, nothing has much red
    path = tmp_path / 'a.png'
    cv2.imwrite(str(path), image[..., ::-1])
    detector = finder()
    single = inference_detector(detector, path)
    assert len(single) == 1
    assert single[0]['file'] == str(path)
    several = inference_detector(detector, [str(path), image, path])
    assert [row['file'] for row in several] == [str(path), '', str(path)]
    for row in (*single, *several):
        assert row['boxes'][0].tolist() == [16, 8, 40, 48]
        assert {key: row[key].dtype for key in ('boxes', 'scores', 'labels')} == {
            'boxes': torch.float32,
            'scores': torch.float32,
            'labels': torch.int64,
        }
    assert inference_detector(detector, []) == []


def test_images_go_through_in_batches_and_stay_in_order():
    detector = finder()
    images = [scene(64, 64, (4 * i, 8, 4 * i + 16, 24)) for i in range(5)]
    found = inference_detector(detector, images, batch_size=2)
    assert detector.model.batch_sizes == [2, 2, 1]
    assert [row['boxes'][0, 0].item() for row in found] == [0, 4, 8, 12, 16]
    assert [row['image_id'] for row in found] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(('threshold', 'count'), [(0.0, 2), (0.5, 1), (0.95, 0)])
def test_detections_below_the_threshold_are_left_out(threshold, count):
    (found,) = inference_detector(finder(), scene(64, 64, (8, 8, 24, 24)), score_threshold=threshold)
    assert len(found['boxes']) == len(found['scores']) == len(found['labels']) == count


@pytest.mark.parametrize(
    'wrong',
    [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3)), np.zeros((8, 8, 4), np.uint8), np.zeros((0, 8, 3), np.uint8)],
)
def test_an_array_that_is_no_rgb_image_is_refused(wrong):
    with pytest.raises(ValueError, match=r'image 1 .*RGB'):
        inference_detector(finder(), [scene(64, 64, (8, 8, 24, 24)), wrong], batch_size=2)


def test_a_file_that_is_no_image_is_named(tmp_path):
    (tmp_path / 'broken.jpg').write_bytes(b'\xff\xd8 no picture')
    (tmp_path / 'empty.jpg').touch()
    for name in ('broken.jpg', 'empty.jpg', 'missing.jpg'):
        with pytest.raises(ValueError, match=name):
            inference_detector(finder(), tmp_path / name)


def test_a_checkpoint_alone_is_enough_and_gives_what_its_model_gave(checkpoint, model):
    detector = init_detector(checkpoint(), device='cpu')
    assert detector.classes == ('bolt', 'nut')
    assert not detector.model.training
    assert [transform.size for transform in detector.pipeline] == [(32, 96)]  # of the validation set
    image = np.random.default_rng(0).integers(0, 256, (40, 100, 3), dtype=np.uint8)
    (found,) = inference_detector(detector, image, score_threshold=0)
    (expected,) = inference_detector(
        TrainedDetector(model, (), detector.pipeline, detector.device), image, score_threshold=0
    )
    assert len(found['boxes']) > 0
    assert all(torch.equal(found[key], expected[key]) for key in ('boxes', 'scores', 'labels'))


def test_what_training_writes_is_enough(tiny, tmp_path):
    options = {
        'data_root': str(tmp_path),  # its own: validation images of another size
        'train_cfg__max_epochs': 1,
        'train_dataloader__batch_size': 20,
        'val_dataloader__dataset__image_size': 96,
    }
    cfg = tiny(**options)
    runner = train(cfg)
    detector = init_detector(Path(cfg.work_dir, 'last.pth'), device='cpu')
    dataset = runner.val_dataloader.dataset
    assert detector.classes == dataset.classes
    assert [transform.size for transform in detector.pipeline] == [(96, 96)]
    (found,) = inference_detector(detector, str(dataset.files[0]), score_threshold=0)
    assert found['scores'].isfinite().all()


def test_prediction_leaves_the_model_able_to_train(checkpoint):
    detector = init_detector(checkpoint(), device='cpu')
    inference_detector(detector, np.zeros((32, 96, 3), np.uint8))
    outputs = detector.model.network(torch.zeros(1, 3, 32, 96))
    (outputs.o2m_boxes_BA4 * detector.model.anchor_grid(torch.zeros(1, 3, 32, 96)).strides_A[:, None]).sum().backward()


def test_averaged_and_trained_weights_can_be_chosen(checkpoint, model):
    name = 'network.' + next(iter(model.network.state_dict()))
    shadow = {key: value.clone() for key, value in model.state_dict().items() if value.is_floating_point()}
    shadow[name] += 1
    path = checkpoint(ema={'shadow': shadow, 'steps': 1})
    raw = init_detector(path, device='cpu', weights='raw').model.state_dict()[name]
    for weights in ('auto', 'ema'):
        assert torch.equal(init_detector(path, device='cpu', weights=weights).model.state_dict()[name], raw + 1)
    with pytest.raises(ValueError, match='raw'):
        init_detector(checkpoint('plain.pth'), device='cpu', weights='ema')


def test_a_config_file_takes_the_place_of_the_stored_config(checkpoint, tmp_path):
    config = tmp_path / 'mine.py'
    config.write_text("model = dict(type='YOLODetector', scale='n')\nimage_size = 128\n")
    detector = init_detector(checkpoint(meta={}), config=config, device='cpu')
    assert [transform.size for transform in detector.pipeline] == [(128, 128)]
    assert detector.model.num_classes == 2


def test_what_does_not_fit_is_named_with_its_remedy(checkpoint, tmp_path):
    with pytest.raises(FileNotFoundError, match=r'nothing\.pth'):
        init_detector(tmp_path / 'nothing.pth')
    with pytest.raises(ValueError, match='names no classes'):
        init_detector(checkpoint(classes=[]))
    with pytest.raises(ValueError, match='holds no config'):
        init_detector(checkpoint(meta={}))
    with pytest.raises(ValueError, match=r'builds 2 classes.*names 3'):
        init_detector(checkpoint(classes=['a', 'b', 'c']))
    with pytest.raises(ValueError, match='states no image_size'):
        init_detector(checkpoint(meta={'cfg': {'model': CONFIG['model']}}), device='cpu')
    with pytest.raises(ValueError, match='gpu-7'):
        init_detector(checkpoint(), device='gpu-7')
    with pytest.raises(ValueError, match='cuda:99'):
        init_detector(checkpoint(), device='cuda:99')


def test_a_truncated_checkpoint_is_named(checkpoint):
    path = checkpoint()
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r'best\.pth is truncated'):
        init_detector(path)


@pytest.mark.cuda
def test_a_card_finds_what_the_cpu_finds(checkpoint):
    image = np.random.default_rng(0).integers(0, 256, (40, 100, 3), dtype=np.uint8)
    found = [
        inference_detector(init_detector(checkpoint(), device=device), image, score_threshold=0)[0]
        for device in ('cpu', 'cuda')
    ]
    assert found[1]['scores'].device.type == 'cpu'
    torch.testing.assert_close(found[1]['scores'], found[0]['scores'], atol=1e-3, rtol=1e-2)


def test_real_photographs_can_be_looked_at(checkpoint, test_data):
    files = sorted((test_data / 'coco_person').glob('*.jpg'))
    found = inference_detector(init_detector(checkpoint(), device='cpu'), files, score_threshold=0)
    assert [row['file'] for row in found] == list(map(str, files))
    for row, file in zip(found, files, strict=True):
        height, width = mmcv.imread(str(file)).shape[:2]
        assert row['boxes'].min() >= 0
        assert row['boxes'][:, [0, 2]].max() <= width
        assert row['boxes'][:, [1, 3]].max() <= height
