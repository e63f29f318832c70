import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.runner.checkpoint import CheckpointLoader
from torch import nn

from lucid.engine import checkpoint as files
from lucid.engine.checkpoint import CheckpointError

SMALL: dict[str, Any] = {'state_dict': {'weight': torch.arange(1000.0)}, 'meta': {'epoch': 1}}


class TestPlain:
    def test_containers_numbers_and_tensors_stay(self) -> None:
        value = {'a': [1, 2.5, None, True, 'x', b'y'], 3: (1, {'b': 2})}
        assert files.plain(value) == value
        assert isinstance(files.plain(value)[3], tuple)

    def test_numpy_and_paths_become_plain(self) -> None:
        assert files.plain({'n': np.float32(0.5), 'a': np.array([1, 2]), 'p': Path('x')}) == {
            'n': 0.5,
            'a': [1, 2],
            'p': 'x',
        }

    def test_a_parameter_becomes_a_tensor_on_the_same_memory(self) -> None:
        parameter = nn.Parameter(torch.ones(2))
        value = files.plain(parameter)
        assert type(value) is torch.Tensor
        assert value.data_ptr() == parameter.data_ptr()

    def test_anything_else_is_refused_by_its_place(self) -> None:
        with pytest.raises(TypeError, match=r'checkpoint\.a\[1\]\.b is a set'):
            files.plain({'a': [0, {'b': {1}}]})

    def test_a_message_hub_loses_histories_and_what_is_not_plain(self) -> None:
        hub = MessageHub('plain')
        hub.update_scalar('train/loss', 1.0)
        hub.update_info('iter', 3)
        hub.update_info('object', object())
        state = files.plain_hub(hub.state_dict())
        assert state == {'log_scalars': {}, 'runtime_info': {'iter': 3}, 'resumed_keys': {'iter': True}}
        other = MessageHub('other')
        other.load_state_dict(state)
        assert other.get_info('iter') == 3


class TestSave:
    def test_what_is_saved_is_loaded(self, tmp_path: Path) -> None:
        files.save(SMALL, tmp_path / 'new' / 'a.pth')
        loaded = files.load(tmp_path / 'new' / 'a.pth')
        assert torch.equal(loaded['state_dict']['weight'], SMALL['state_dict']['weight'])
        assert loaded['meta'] == {'epoch': 1}

    def test_a_failure_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / 'a.pth'
        files.save(SMALL, path)
        before = path.read_bytes()

        def half(value: Any, file: Any) -> None:
            file.write(b'half')
            raise OSError('no space left')

        monkeypatch.setattr(torch, 'save', half)
        with pytest.raises(OSError, match='no space left'):
            files.save({**SMALL, 'more': 1}, path)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ['a.pth']

    def test_a_link_keeps_its_content_when_the_source_is_replaced(self, tmp_path: Path) -> None:
        files.save(SMALL, tmp_path / 'last.pth')
        files.link(tmp_path / 'last.pth', tmp_path / 'best.pth')
        files.save({**SMALL, 'meta': {'epoch': 2}}, tmp_path / 'last.pth')
        assert files.load(tmp_path / 'best.pth')['meta']['epoch'] == 1

    def test_without_hard_links_it_is_a_copy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError('not supported')

        monkeypatch.setattr(os, 'link', refuse)
        files.save(SMALL, tmp_path / 'last.pth')
        files.link(tmp_path / 'last.pth', tmp_path / 'best.pth')
        assert files.load(tmp_path / 'best.pth')['meta']['epoch'] == 1


class TestLoad:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """A newer file beside an intact older one."""
        for age, name in enumerate(('last.pth', 'previous.pth', 'epoch_1.pth')):
            files.save(SMALL, tmp_path / name)
            os.utime(tmp_path / name, (1000 - age, 1000 - age))
        return tmp_path / 'last.pth'

    def damage(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, (1000, 1000))

    @pytest.mark.parametrize(
        ('keep', 'message'),
        [(0, 'is empty'), (10, 'is truncated'), (-500, 'is truncated')],
    )
    def test_an_empty_or_truncated_file_names_the_one_before_it(self, path: Path, keep: int, message: str) -> None:
        self.damage(path, path.read_bytes()[:keep])
        with pytest.raises(CheckpointError, match=message) as error:
            files.load(path)
        assert str(error.value).endswith(f'before it is {path.parent / "previous.pth"}: use that one')

    def test_a_flipped_byte_is_found(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        self.damage(path, bytes(content))
        with pytest.raises(CheckpointError, match=r'is damaged: .* does not have its checksum'):
            files.load(path)

    def test_the_one_before_it_must_be_intact_too(self, path: Path) -> None:
        self.damage(path, b'')
        (path.parent / 'previous.pth').write_bytes(b'junk')
        os.utime(path.parent / 'previous.pth', (999, 999))
        with pytest.raises(CheckpointError, match=r'before it is .*epoch_1\.pth'):
            files.load(path)

    def test_and_no_younger_one_is_named(self, path: Path) -> None:
        oldest = path.parent / 'epoch_1.pth'
        oldest.write_bytes(b'')
        os.utime(oldest, (998, 998))
        with pytest.raises(CheckpointError, match=r'No intact checkpoint .*: correct the path, or train anew'):
            files.load(oldest)

    def test_a_file_that_is_something_else_is_refused(self, path: Path) -> None:
        path.write_text('hello, this is no checkpoint at all')
        os.utime(path, (1000, 1000))
        with pytest.raises(CheckpointError, match=r'last\.pth is truncated, or no checkpoint at all.*previous\.pth'):
            files.load(path)

    def test_a_dict_without_weights_is_refused(self, path: Path) -> None:
        torch.save({'model': {}}, path)
        with pytest.raises(CheckpointError, match="no checkpoint of lucid: it has no 'state_dict' and 'meta'"):
            files.load(path)

    def test_code_in_a_file_is_not_run(self, tmp_path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[Any, tuple[str]]:
                return os.mkdir, (str(tmp_path / 'exploded'),)

        torch.save({'state_dict': {}, 'meta': {}, 'bomb': Bomb()}, tmp_path / 'a.pth')
        with pytest.raises(CheckpointError, match='no checkpoint that can be read safely'):
            files.load(tmp_path / 'a.pth')
        assert not (tmp_path / 'exploded').exists()
        with (tmp_path / 'b.pth').open('wb') as file:
            pickle.dump(Bomb(), file)
        with pytest.raises(CheckpointError):
            files.load(tmp_path / 'b.pth')
        assert not (tmp_path / 'exploded').exists()

    def test_control_torch_alone_would_have_run_it(self, tmp_path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[Any, tuple[str]]:
                return os.mkdir, (str(tmp_path / 'exploded'),)

        torch.save({'bomb': Bomb()}, tmp_path / 'a.pth')
        torch.load(tmp_path / 'a.pth', weights_only=False)
        assert (tmp_path / 'exploded').exists()

    def test_a_missing_file_names_what_is_there(self, path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r'no checkpoint at .*other\.pth.* is .*last\.pth'):
            files.load(path.parent / 'other.pth')

    def test_mmengine_loads_through_it(self, path: Path) -> None:
        assert CheckpointLoader.load_checkpoint(str(path), 'cpu')['meta'] == {'epoch': 1}
        self.damage(path, b'')
        with pytest.raises(CheckpointError):
            CheckpointLoader.load_checkpoint(str(path), 'cpu')


class TestLoadWeights:
    @pytest.fixture
    def content(self) -> dict[str, Any]:
        return {
            'state_dict': {'weight': torch.ones(1, 2), 'bias': torch.ones(1)},
            'ema': {'shadow': {'weight': torch.full((1, 2), 2.0), 'bias': torch.full((1,), 2.0)}, 'num_updates': 3},
            'meta': {},
        }

    @pytest.mark.parametrize(('weights', 'value'), [('auto', 2.0), ('ema', 2.0), ('raw', 1.0)])
    def test_the_chosen_weights_are_taken(self, content: dict[str, Any], weights: Any, value: float) -> None:
        model = nn.Linear(2, 1)
        files.load_weights(model, content, weights)
        assert model.weight.tolist() == [[value, value]]

    def test_without_averages_auto_takes_the_raw_ones_and_ema_is_refused(self, content: dict[str, Any]) -> None:
        del content['ema']
        model = nn.Linear(2, 1)
        files.load_weights(model, content)
        assert model.bias.item() == 1.0
        with pytest.raises(CheckpointError, match=r"no averaged weights .* use 'raw'"):
            files.load_weights(model, content, 'ema')

    def test_missing_foreign_and_differing_tensors_are_counted_and_named(self, content: dict[str, Any]) -> None:
        del content['ema']
        content['state_dict'] = {'weight': torch.ones(3, 2), 'offset': torch.ones(1)}
        message = (
            r'1 missing, such as bias; 1 unknown, such as offset; 1 of another shape, such as weight is \(3, 2\) there '
            r'and \(1, 2\) here'
        )
        with pytest.raises(CheckpointError, match=message):
            files.load_weights(nn.Linear(2, 1), content)


def test_a_path_that_leads_nowhere_names_a_checkpoint_in_its_folder(tmp_path: Path) -> None:
    files.save({'state_dict': {}, 'meta': {}}, tmp_path / 'best.pth')
    with pytest.raises(FileNotFoundError, match=r'no checkpoint at .*bset\.pth\. Correct the path; .*is .*best\.pth$'):
        files.load(tmp_path / 'bset.pth')
