from pathlib import Path

import pytest
import torch
from mmengine.model import BaseModel

from lucid.engine.runner import Runner


class Nothing(BaseModel):
    def forward(self, inputs: torch.Tensor, mode: str = 'tensor') -> None: ...


def test_the_console_is_brief_and_the_file_complete(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    runner = Runner(Nothing(), str(tmp_path), default_scope='lucid', experiment_name='brief')
    runner.logger.info('shown')
    shown = capsys.readouterr().out
    written = next(tmp_path.glob('*/*.log')).read_text()
    assert 'shown' in shown
    assert 'shown' in written
    for text in ('System environment', 'Hooks will be executed'):
        assert text in written
        assert text not in shown
