from pathlib import Path

import pytest

from lucid.apis.outputs import file_problem, folder_problem


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'file').touch()
    return tmp_path


def test_what_is_there_or_can_be_made_is_no_problem(place: Path) -> None:
    for name in ('folder', 'new', 'folder/new/deep'):
        assert folder_problem(place / name) is None
    for name in ('file', 'new.json', 'folder/new/a.json'):
        assert file_problem(place / name) is None
    assert {path.name for path in place.rglob('*')} == {'folder', 'file'}


def test_what_is_in_the_way_is_named(place: Path) -> None:
    assert folder_problem(place / 'file') == f'{place / "file"} is a file; choose another folder'
    assert folder_problem(place / 'file/deep') == f'{place / "file"} is a file; choose another folder'
    assert file_problem(place / 'file/a.json') == f'{place / "file"} is a file; choose another folder'
    assert file_problem(place / 'folder') == f'{place / "folder"} is a folder; give the name of a file'


def test_a_folder_that_may_not_be_written_to_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('os.access', lambda path, mode: False)
    assert folder_problem(place / 'folder/new') == f'{place / "folder"} may not be written to; choose another folder'
