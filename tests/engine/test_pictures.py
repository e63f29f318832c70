from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import mmcv
import numpy as np
import pytest
from mmengine.visualization import TensorboardVisBackend

from lucid.engine.pictures import (
    JPEG,
    SHOWN_SIDE,
    Picture,
    ShownPicture,
    is_last_validation,
    show_pictures,
    to_show,
    write_picture,
)


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(('suffix', 'options'), [('.png', None), ('.jpg', JPEG)])
def test_a_file_is_what_mmcv_writes(tmp_path: Path, suffix: str, options: list[int] | None) -> None:
    picture = noise(20, 30)
    write_picture(picture, tmp_path / 'a' / 'b' / f'ours{suffix}')
    mmcv.imwrite(mmcv.rgb2bgr(picture), str(tmp_path / f'theirs{suffix}'), options)
    assert (tmp_path / 'a' / 'b' / f'ours{suffix}').read_bytes() == (tmp_path / f'theirs{suffix}').read_bytes()


def test_a_write_that_fails_leaves_the_file_of_before_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / 'a.png'
    write_picture(noise(4, 4), path)
    before = path.read_bytes()

    def half(self: Path, content: bytes) -> None:
        with self.open('wb') as file:
            file.write(content[:5])
        raise OSError('No space left on device')

    monkeypatch.setattr(Path, 'write_bytes', half)
    with pytest.raises(OSError, match='No space'):
        write_picture(noise(8, 8), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_tensorboard_gets_a_photograph_as_jpeg_and_a_chart_without_loss_and_neither_too_large() -> None:
    chart = to_show(Picture(noise(40, 60), Path('a.png'), 'chart'))
    assert chart is not None
    assert (chart.tag, chart.height, chart.width) == ('chart', 40, 60)
    assert (mmcv.imfrombytes(chart.encoded, channel_order='rgb') == noise(40, 60)).all()
    photograph = to_show(Picture(noise(10, 2 * SHOWN_SIDE), Path('a.jpg'), 'photograph'))
    assert photograph is not None
    assert (photograph.height, photograph.width) == (5, SHOWN_SIDE)
    assert photograph.encoded.startswith(b'\xff\xd8')
    assert mmcv.imfrombytes(photograph.encoded).shape == (5, SHOWN_SIDE, 3)
    # Control: one without a tag is for its file only.
    assert to_show(Picture(noise(4, 4), Path('a.png'))) is None


def shown(folder: Path) -> list[tuple[int, int, bytes]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return [(event.step, event.height, event.encoded_image_string) for event in events.Images('chart')]


@pytest.mark.parametrize('is_closed', [False, True])
def test_tensorboard_shows_it_at_its_step_even_when_the_logger_has_closed_it(tmp_path: Path, is_closed: bool) -> None:
    backend = TensorboardVisBackend(str(tmp_path))
    runner: Any = SimpleNamespace(visualizer=SimpleNamespace(get_backend=lambda name: backend))
    encoded = cv2.imencode('.png', noise(6, 8))[1].tobytes()
    show_pictures(runner, [ShownPicture('chart', encoded, 6, 8)], epoch=3)
    if is_closed:
        backend.close()
    show_pictures(runner, [ShownPicture('chart', encoded, 6, 8)], epoch=5)
    backend.close()
    assert shown(tmp_path) == [(3, 6, encoded), (5, 6, encoded)]


def test_a_run_without_tensorboard_shows_nothing() -> None:
    runner: Any = SimpleNamespace(visualizer=SimpleNamespace(get_backend=lambda name: None))
    show_pictures(runner, [ShownPicture('chart', b'', 6, 8)], epoch=3)


def test_the_last_validation_is_that_of_the_last_epoch_or_of_an_early_end() -> None:
    def runner(epoch: int, loop: Any) -> Any:
        return SimpleNamespace(epoch=epoch, max_epochs=3, _train_loop=loop)

    assert is_last_validation(runner(3, SimpleNamespace()))
    assert is_last_validation(runner(2, SimpleNamespace(stop_training=True)))
    assert not is_last_validation(runner(2, SimpleNamespace(stop_training=False)))
    assert not is_last_validation(runner(3, None))
    assert not is_last_validation(runner(3, {'max_epochs': 3}))
