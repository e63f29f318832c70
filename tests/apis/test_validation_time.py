from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from rich.console import Console

from lucid.apis import ConfigError
from lucid.apis import validation_time as validation_times
from lucid.apis.validation_time import print_times, validation_time
from lucid.capture import Parts, TapeMemory

Make = Callable[..., Config]
PARTS = [
    'prepare',
    'infer',
    'of it, the host launches',
    'select (NMS)',
    'place, with the transfer',
    'process',
    'infer, captured',
    'of it, the host launches, captured',
]


@pytest.mark.parametrize('backend', ['tape', pytest.param('cuda', marks=pytest.mark.cuda)])
def test_parts_and_passes_are_timed_and_all_passes_find_the_same(
    tiny: Make, tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    parts = Parts(memory=lambda _: TapeMemory()) if backend == 'tape' else None
    cfg = tiny(data_root=str(tmp_path), val_dataloader__dataset__num_images=9)
    found = validation_time(cfg, rounds=1, num_workers=1, parts=parts)
    assert (found['images'], found['batch'], found['same']) == (8, 4, True)
    assert list(found['parts']) == PARTS
    assert all(value > 0 for value in found['parts'].values())
    names = ['batch by batch', 'one batch ahead', 'captured, ahead', 'captured, ahead, 1 processes']
    assert list(found['passes']) == names
    assert found['routes']['problems'] == []
    assert found['routes']['replays'] == 5  # one that captures, and two passes of two batches
    print_times(found, Console(width=120))
    assert 'all passes found the same' in capsys.readouterr().out


class Noting:
    """Predicts a batch as itself, and notes what is done when."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def launch(self, batch: int) -> Callable[[], Iterator[int]]:
        def finish() -> Iterator[int]:
            self.events.append(f'read {batch}')
            return place()

        def place() -> Iterator[int]:
            self.events.append(f'place {batch}')
            yield batch

        self.events.append(f'launch {batch}')
        return finish


@pytest.mark.parametrize(
    ('in_processes', 'events'),
    [
        (False, 'launch 0, launch 1, read 0, place 0, got 0, launch 2, read 1, place 1, got 1, read 2, place 2, got 2'),
        (True, 'launch 0, launch 1, read 0, launch 2, read 1, place 0, got 0, read 2, place 1, got 1, place 2, got 2'),
    ],
)
def test_batches_overlap_as_in_the_loop_of_validation(in_processes: bool, events: str) -> None:
    predictor: Any = Noting()
    for (batch,) in validation_times._ahead([0, 1, 2], predictor, in_processes=in_processes):
        predictor.events.append(f'got {batch}')
    assert ', '.join(predictor.events) == events


def test_a_set_without_a_full_batch_is_named(tiny: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'no full batch of 4 images; lower val_dataloader\.batch_size'):
        validation_time(tiny(data_root=str(tmp_path), val_dataloader__dataset__num_images=3))
