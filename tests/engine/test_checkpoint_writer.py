import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lucid.engine import checkpoint as files
from lucid.engine import checkpoint_writer
from lucid.engine.checkpoint_writer import CheckpointWriter
from lucid.engine.snapshot import Snapshot


def state(number: int) -> Callable[[], dict[str, Any]]:
    return lambda: {'state_dict': {'a': torch.tensor([float(number)])}, 'meta': {'number': number}}


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., None]:
    def save(writer: CheckpointWriter, number: int, place: tuple[int, int]) -> None:
        writer.save(state(number), place, last=tmp_path / 'last.pth', previous=tmp_path / 'previous.pth')

    return save


def numbers(folder: Path) -> dict[str, int]:
    return {path.stem: files.load(path)['meta']['number'] for path in folder.glob('*.pth')}


def test_previous_is_the_last_of_another_place_and_of_this_run(tmp_path: Path, save: Callable[..., None]) -> None:
    files.save(state(99)(), tmp_path / 'last.pth')
    writer = CheckpointWriter()
    save(writer, 1, (1, 5))
    save(writer, 2, (1, 5))
    writer.finish()
    assert numbers(tmp_path) == {'last': 2}
    save(writer, 3, (2, 10))
    writer.finish()
    assert numbers(tmp_path) == {'last': 3, 'previous': 2}
    resumed = CheckpointWriter()
    resumed.start_from((2, 10))
    save(resumed, 4, (3, 15))
    resumed.finish()
    assert numbers(tmp_path) == {'last': 4, 'previous': 3}


def test_a_link_is_made_of_the_file_that_is_there_by_then(tmp_path: Path, save: Callable[..., None]) -> None:
    (tmp_path / 'old.pth').write_bytes(b'')
    writer = CheckpointWriter()
    save(writer, 1, (1, 5))
    writer.link(tmp_path / 'last.pth', tmp_path / 'best.pth', instead_of=[tmp_path / 'old.pth', tmp_path / 'none.pth'])
    save(writer, 2, (1, 5))
    writer.finish()
    assert numbers(tmp_path) == {'last': 2, 'best': 1}


def test_a_third_state_waits_for_the_first_write(
    tmp_path: Path, save: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, go, took = files.save_plain, threading.Event(), []

    def wait(content: Any, path: Path) -> None:
        assert go.wait(60)
        write(content, path)

    monkeypatch.setattr(files, 'save_plain', wait)
    writer = CheckpointWriter()
    save(writer, 1, (1, 5))
    save(writer, 2, (2, 10))
    assert (writer.place, writer.landed) == ((2, 10), None)
    threading.Timer(0.2, lambda: (took.append(go.is_set()), go.set())).start()
    save(writer, 3, (3, 15))
    assert took == [False]
    assert writer.landed is not None
    writer.finish()
    assert writer.landed == (3, 15)
    assert numbers(tmp_path) == {'last': 3, 'previous': 2}


def test_a_state_that_waited_for_a_write_that_failed_is_not_taken_and_the_next_one_is(
    tmp_path: Path, save: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, go, error = files.save_plain, threading.Event(), OSError(28, 'No space left on device')

    def fail(content: Any, path: Path) -> None:
        assert go.wait(60)
        raise error

    monkeypatch.setattr(files, 'save_plain', fail)
    writer, collected = CheckpointWriter(), []
    save(writer, 1, (1, 5))
    save(writer, 2, (2, 10))
    threading.Timer(0.2, go.set).start()  # the third one is waiting by then
    with pytest.raises(OSError, match='No space left') as caught:
        writer.save(
            lambda: collected.append(3), (3, 15), last=tmp_path / 'last.pth', previous=tmp_path / 'previous.pth'
        )
    assert caught.value is error
    assert collected == []
    assert (writer.place, writer.landed) == (None, None)
    monkeypatch.setattr(files, 'save_plain', write)
    save(writer, 4, (4, 20))
    writer.finish()
    assert numbers(tmp_path) == {'last': 4}


def test_when_all_is_written_the_copies_are_freed(save: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Snapshot]] = []

    class Counted(Snapshot):
        def __init__(self) -> None:
            super().__init__()
            made.append(weakref.ref(self))

    monkeypatch.setattr(checkpoint_writer, 'Snapshot', Counted)
    writer = CheckpointWriter()
    save(writer, 1, (1, 5))
    assert [snapshot() is not None for snapshot in made] == [True]  # control: the next state may have its memory
    writer.finish()
    gc.collect()
    assert [snapshot() for snapshot in made] == [None]
