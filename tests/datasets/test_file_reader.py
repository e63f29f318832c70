"""Files read by a few threads."""

import io
import multiprocessing
import pickle
import threading

import numpy as np
import PIL.Image
import pytest

from lucid.datasets import file_reader
from lucid.datasets.file_reader import THREADS, FileReader
from lucid.datasets.images import ImageStore
from lucid.datasets.layers import Source

NUM = 11


@pytest.fixture
def sources(tmp_path):
    """Sources of files whose content is their number, one of which is missing, and pixels that are no file's."""
    files = [tmp_path / f'{number}.jpg' for number in range(NUM)]
    for number, file in enumerate(files):
        file.write_bytes(str(number).encode())
    store = ImageStore([str(file) for file in (*files, tmp_path / 'gone.jpg')], np.ones((NUM + 1, 2), np.int32))
    return [*(Source((1, 1), store, place) for place in range(NUM + 1)), Source((1, 1), pixels=np.zeros((1, 1, 3)))]


EXPECTED = [*(str(number).encode() for number in range(NUM)), None, None]


@pytest.mark.parametrize('number', [0, 1, THREADS - 1, THREADS, NUM + 2])
def test_files_come_in_their_order_and_one_that_cannot_be_read_is_none(sources, number):
    assert FileReader().read(sources[:number]) == EXPECTED[:number]
    assert FileReader().read(sources[::-1][:number]) == EXPECTED[::-1][:number]


def test_several_are_read_at_the_same_time(sources, monkeypatch):
    together = threading.Barrier(THREADS, timeout=10)  # passes nobody until all have come
    read = file_reader._read
    monkeypatch.setattr(file_reader, '_read', lambda paths: together.wait() is not None and read(paths))
    assert FileReader().read(sources) == EXPECTED


def test_it_reads_on_in_a_process_that_was_forked_after_it_had_read_and_in_one_that_it_is_sent_to(sources):
    reader = FileReader()
    assert reader.read(sources) == EXPECTED
    context = multiprocessing.get_context('fork')
    found = context.Queue()
    child = context.Process(target=lambda: found.put(reader.read(sources)))
    child.start()
    assert found.get(timeout=20) == EXPECTED
    child.join()
    assert pickle.loads(pickle.dumps(reader)).read(sources) == EXPECTED


def test_a_file_that_was_whole_and_is_cut_short_later_is_broken_then():
    reader, content = FileReader(), io.BytesIO()
    PIL.Image.new('RGB', (30, 20)).save(content, 'JPEG')
    whole = content.getvalue()
    assert reader.obstacle(0, whole, (20, 30)) == ''
    assert [reader.obstacle(0, cut, (20, 30)) for cut in (whole[:-20], b'', whole)] == ['broken', 'broken', '']
