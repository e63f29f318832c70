"""Who waits for whom when pictures are drawn beside a step: on a card, and with streams that only remember."""

from contextlib import contextmanager

import pytest
import torch

from lucid.models.data_preprocessors import decoding, overlap
from lucid.models.data_preprocessors.overlap import AHEAD, SideStreams
from lucid.structures.image_pool import ImagePool
from lucid.structures.pictures import PictureBatch, Slot

SIZE = (2, 3)


class Streams:
    """Stands in for torch's streams and events: what was asked of each, in turn."""

    def __init__(self):
        self.log = []
        self.now = 'main'
        self.num = 0

    def stream(self, device=None):
        self.num += 1
        return Stream(self, f'side {self.num}')

    @contextmanager
    def use(self, stream):
        before, self.now = self.now, stream.name
        yield
        self.now = before

    def event(self, blocking=False):
        return Event(self)


class Stream:
    def __init__(self, streams, name):
        self.streams, self.name = streams, name

    def synchronize(self):
        self.streams.log.append(f'host waits for {self.name}')

    def wait_stream(self, other):
        self.streams.log.append(f'{self.name} waits for {other.name}')


class Event:
    def __init__(self, streams):
        self.streams = streams

    def record(self, stream):
        self.at = len(self.streams.log)
        self.streams.log.append(f'event {self.at} on {stream.name}')

    def synchronize(self):
        self.streams.log.append(f'host waits for event {self.at}')


class Card:
    type = 'cuda'


@pytest.fixture
def streams(monkeypatch):
    """In place of torch's, while drawing and decoding say where they run."""
    streams = Streams()
    log = lambda what: streams.log.append(f'{what} on {streams.now}')  # noqa: E731

    def drawn(batch, pool, device, *, decoding):
        images = decoding_module.fetch_images(batch, pool, device, decoding=decoding)
        log('draw')
        return images[0]

    decoding_module = decoding
    monkeypatch.setattr(torch.cuda, 'Stream', streams.stream)
    monkeypatch.setattr(torch.cuda, 'Event', streams.event)
    monkeypatch.setattr(torch.cuda, 'stream', streams.use)
    monkeypatch.setattr(torch.cuda, 'current_stream', lambda device: Stream(streams, streams.now))
    monkeypatch.setattr(
        torch.Tensor, 'record_stream', lambda tensor, stream: streams.log.append(f'{stream.name} reads'), raising=False
    )
    decode = lambda files, device: log('decode') or [torch.zeros(3, *SIZE, dtype=torch.uint8) for _ in files]  # noqa: E731
    monkeypatch.setattr(decoding, 'decode_batch', decode)
    monkeypatch.setattr(overlap, 'draw_pictures', drawn)
    return streams


def batch(pool=None):
    return PictureBatch(
        size=SIZE,
        passes=(),
        slots=(Slot(0, SIZE, 'jpeg', 0, 1), Slot(1, SIZE, 'jpeg', 1, 1)),
        first_slots=(0, 2),
        slot_sizes_S2=torch.tensor([SIZE] * 2),
        content_D=torch.zeros(2, dtype=torch.uint8),
        keys=(0,),
        counts=None,
        pool=ImagePool(9, budget_mb=0, read=lambda place: None) if pool is None else pool,
    )


def test_drawing_waits_for_decoding_the_step_for_drawing_and_neither_for_the_step(streams):
    side = SideStreams(Card())
    assert (side.drawing.name, side.decoding.name) == ('side 1', 'side 2')
    side.draw(batch())
    assert streams.log == [
        'event 0 on main',
        'decode on side 2',  # whose memory is idle: no line has anything else on it
        'side 1 waits for side 2',
        'side 1 reads',  # one per image, so that its memory is not given away before that
        'side 1 reads',
        'draw on side 1',
        'main waits for side 1',
        'main reads',
    ]


def test_the_host_keeps_pace_with_the_card(streams):
    side = SideStreams(Card())
    for _ in range(AHEAD + 3):
        side.draw(batch())
    reached = [line.split()[1] for line in streams.log if line.startswith('event')]
    waited = [line.split()[-1] for line in streams.log if line.startswith('host')]
    assert waited == reached[:3]
    for event in waited:  # the call that waits is the one AHEAD calls later
        between = streams.log[int(event) + 1 : streams.log.index(f'host waits for event {event}')]
        assert sum(line.startswith('event') for line in between) == AHEAD


def test_who_takes_over_a_pool_waits_until_the_other_has_drawn(streams):
    """Two models of a comparison: each has streams of its own, and what one of them decoded is lent to both."""
    first, second, pool = SideStreams(Card()), SideStreams(Card()), ImagePool(9, budget_mb=1, read=lambda place: None)
    for side in (first, first, second, second, first):
        side.draw(batch(pool))
    drawn = [line for line in streams.log if line.startswith(('draw', 'decode', 'host'))]
    mine, theirs = ['decode on side 2', 'draw on side 1'], ['decode on side 4', 'draw on side 3']
    assert drawn == [*mine, *mine, 'host waits for side 1', *theirs, *theirs, 'host waits for side 3', *mine]


@pytest.mark.cuda
def test_what_is_decoded_never_lands_in_memory_that_drawing_still_reads(tmp_path):
    """The decoder writes at once, whatever was asked of the stream before."""
    from lucid.datasets import ShapesDataset, detection_collate
    from lucid.datasets.device_loader import DeviceLoader
    from lucid.models.data_preprocessors.drawing import draw_pictures

    dataset = ShapesDataset(
        tmp_path, split='s', num_images=24, image_size=256, pipeline=[{'type': 'Letterbox'}], targets=('boxes',)
    )
    device = torch.device('cuda')

    def batches():
        return [data['inputs'] for data in DeviceLoader(dataset, batch_size=4, collate_fn=detection_collate, pool_mb=0)]

    expected = []
    for one in batches():
        expected.append(draw_pictures(one, one.pool, device))
        torch.cuda.synchronize()
    side = SideStreams(device)
    found = []
    for one in batches():
        with torch.cuda.stream(side.drawing):
            torch.cuda._sleep(200_000_000)  # drawing is late: what it reads is freed on the host long before
        found.append(side.draw(one))
    torch.cuda.synchronize()
    assert all(map(torch.equal, found, expected))
    assert not torch.equal(expected[0], expected[1])


@pytest.mark.cuda
def test_deterministic_algorithms_fill_no_memory_over_what_was_decoded(tmp_path):
    """They fill new memory on the current stream, which is late here; the decoder writes at once."""
    from lucid.datasets import ShapesDataset, detection_collate
    from lucid.datasets.device_loader import DeviceLoader

    dataset = ShapesDataset(
        tmp_path, split='s', num_images=4, image_size=256, pipeline=[{'type': 'Letterbox'}], targets=('boxes',)
    )
    side = SideStreams(torch.device('cuda'))

    def drawn():
        (data,) = DeviceLoader(dataset, batch_size=4, collate_fn=detection_collate, pool_mb=0)
        with torch.cuda.stream(side.decoding):
            torch.cuda._sleep(200_000_000)
        return side.draw(data['inputs']).cpu()

    expected = drawn()
    torch.use_deterministic_algorithms(True)
    try:
        found = drawn()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(found, expected)
    assert expected.float().std() > 10


@pytest.mark.cuda
def test_memory_on_a_card_does_not_grow_over_epochs(tmp_path):
    from lucid.datasets import EpochSampler, ShapesDataset, detection_collate
    from lucid.datasets.device_loader import DeviceLoader
    from lucid.datasets.shape_scenes import CLASSES
    from lucid.models.data_preprocessors import DetDataPreprocessor

    pipeline = [{'type': 'Mosaic', 'close_last': 0}, {'type': 'RandomAffine'}, {'type': 'RandomHSV'}]
    dataset = ShapesDataset(tmp_path, split='s', num_images=48, image_size=256, pipeline=pipeline, targets=('boxes',))
    preprocessor = DetDataPreprocessor(num_classes=len(CLASSES)).to('cuda')
    sampler = EpochSampler(dataset, seed=0)
    loader = DeviceLoader(
        dataset, batch_size=8, sampler=sampler, collate_fn=detection_collate, pool_mb=4, pin_memory=True
    )
    reserved, allocated = [], []
    for epoch in range(12):
        sampler.set_epoch(epoch, max_epochs=12)
        for data in loader:
            preprocessor(data)
            torch.cuda._sleep(1_000_000)
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
        allocated.append(torch.cuda.memory_allocated())
        assert loader.pool.num_bytes <= 4 * 2**20
    assert loader.pool.counts['dropped'] > 0
    assert max(allocated[6:]) <= max(allocated[:6]) + 2**20
    # How far the host is ahead varies: one more of the allocator's segments is no growth, one per epoch would be.
    assert max(reserved[6:]) <= max(reserved[:6]) + 20 * 2**20
