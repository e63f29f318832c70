from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from rich.console import Console

from lucid.apis import ConfigError
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


def test_a_set_without_a_full_batch_is_named(tiny: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'no full batch of 4 images; lower val_dataloader\.batch_size'):
        validation_time(tiny(data_root=str(tmp_path), val_dataloader__dataset__num_images=3))
