"""Side by side: on the CPU with streams that are stand-ins, so that who waits for whom can be checked."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lucid import streams
from lucid.registry import MODELS
from lucid.streams import side_by_side

Clock = dict[str, int]


class Stream:
    """What a stream knows of the others: for each, how many of its operators are over when the next one starts here."""

    made = 0

    def __init__(self, device: object = None) -> None:
        self.name = f'side {Stream.made}'
        Stream.made += 1
        self.clock: Clock = {}

    def wait_stream(self, other: 'Stream') -> None:
        for name, time in other.clock.items():
            self.clock[name] = max(self.clock.get(name, 0), time)


class Card(TorchDispatchMode):
    """Runs operators on the CPU, each at the next tick of the current stream, and finds what a card could get wrong.

    ``races``: an operator reads memory that another stream may still be writing.
    ``unsaid``: memory of one stream used on another without ``record_stream``, which the allocator must be told.
    """

    def __init__(self) -> None:
        super().__init__()
        self.main = Stream()
        self.current = self.main
        self.log: list[tuple[str, str]] = []
        self.races: list[str] = []
        self.unsaid: list[str] = []
        self.used: set[str] = set()
        self._home: dict[int, str] = {}
        self._told: set[tuple[int, str]] = set()
        self._writes: dict[int, tuple[str, int]] = {}
        self._alive: list[Tensor] = []  # an address must mean one memory

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def told(self, tensor: Tensor, stream: Stream) -> None:
        self._told.add((tensor.untyped_storage()._cdata, stream.name))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        self._alive += outputs
        made = {t.untyped_storage()._cdata for t in outputs} - inputs
        if not made and not func._schema.is_mutable:
            return result  # a view launches nothing
        stream, name = self.current, func._schema.name
        stream.clock[stream.name] = now = stream.clock.get(stream.name, 0) + 1
        self.used.add(stream.name)
        self.log.append((stream.name, name))
        for key in inputs:
            if key in self._writes and not self._over(self._writes[key], stream):
                self.races.append(f'{name} reads what {self._writes[key][0]} writes')
            if self._home.get(key, stream.name) != stream.name and (key, stream.name) not in self._told:
                self.unsaid.append(name)
        for key in made:
            self._home[key] = stream.name
            self._writes[key] = (stream.name, now)
        return result

    @staticmethod
    def _over(event: tuple[str, int], stream: Stream) -> bool:
        return stream.clock.get(event[0], 0) >= event[1]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    monkeypatch.setattr(torch.cuda, 'Stream', Stream)
    monkeypatch.setattr(torch.cuda, 'stream', card.on)
    monkeypatch.setattr(torch.cuda, 'current_stream', lambda device: card.current)
    monkeypatch.setattr(streams, 'on_card', lambda tensor: True)
    monkeypatch.setattr(streams, '_LANES', streams._Lanes())
    monkeypatch.setattr(Tensor, 'record_stream', lambda tensor, stream: card.told(tensor, stream))
    return card


def double(x: Tensor) -> Tensor:
    return x * 2


def make_head(kind: str, parallel: str | None, **more: Any) -> Any:
    from lucid.registry import HEADS

    torch.manual_seed(0)
    return HEADS.build({'type': kind, 'num_classes': 3, 'parallel': parallel, **more}, default_args=CHANNELS)


CHANNELS = {'in_channels': (16, 24, 32)}
HEADS_OF = [('DetectHead', {}), ('SegmentHead', {}), ('OrientedHead', {}), ('KeypointHead', {'num_keypoints': 2})]


def features() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(2, c, s, s, generator=generator).requires_grad_()
        for c, s in zip(CHANNELS['in_channels'], (8, 4, 2), strict=True)
    ]


def test_results_come_in_the_order_of_the_calls_and_the_lanes_take_turns(card: Card) -> None:
    with card:
        calls = [partial(double, torch.full((1,), float(i))) for i in range(5)]
        results = side_by_side(calls, lanes=2)
        assert [float(result) for result in results] == [0.0, 2.0, 4.0, 6.0, 8.0]
    lanes = [stream for stream, name in card.log if name == 'aten::mul']
    assert lanes[0] == lanes[2] == lanes[4] == card.main.name
    assert lanes[1] == lanes[3] != card.main.name


def test_lanes_start_after_the_current_stream_and_it_goes_on_after_them(card: Card) -> None:
    with card:
        x = torch.ones(3) + 1
        results = side_by_side([partial(double, x), partial(double, x), partial(double, x)])
        torch.stack(results).sum()
    assert len(card.used) == 3
    assert card.races == []
    assert card.unsaid == []


@pytest.mark.parametrize('wait', ['before', 'after'])
def test_without_the_waits_there_are_races(card: Card, monkeypatch: pytest.MonkeyPatch, wait: str) -> None:
    plain = Stream.wait_stream

    def forgetful(self: Stream, other: Stream) -> None:
        if (other is card.main) != (wait == 'before'):
            plain(self, other)

    monkeypatch.setattr(Stream, 'wait_stream', forgetful)
    with card:
        x = torch.ones(3) + 1
        torch.stack(side_by_side([partial(double, x), partial(double, x)])).sum()
    assert card.races


def test_without_telling_the_allocator_memory_crosses_unsaid(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, 'record_stream', lambda tensor, stream: None)
    with card:
        x = torch.ones(3) + 1
        torch.stack(side_by_side([partial(double, x), partial(double, x)])).sum()
    assert 'aten::mul' in card.unsaid
    assert 'aten::stack' in card.unsaid or 'aten::cat' in card.unsaid


def test_arguments_by_name_cross_streams_too(card: Card) -> None:
    with card:
        x = torch.ones(3) + 1
        torch.stack(side_by_side([partial(double, x=x), partial(double, x=x)])).sum()
    assert len(card.used) == 2
    assert card.races == []
    assert card.unsaid == []


def test_a_call_that_raises_leaves_no_lane_behind(card: Card) -> None:
    def fail(x: Tensor) -> Tensor:
        raise ArithmeticError(float(x * 2))

    with card, pytest.raises(ArithmeticError):
        side_by_side([partial(double, torch.ones(1)), partial(fail, torch.ones(1))])
    side = next(name for name in card.used if name != card.main.name)
    assert card.main.clock[side] == 1
    assert streams._LANES.path == ()


def test_forks_nest_on_streams_of_their_own_and_use_them_again(card: Card) -> None:
    def inner(x: Tensor) -> Tensor:
        return sum(side_by_side([partial(double, x), partial(double, x)]))

    for _ in range(2):
        with card:
            x = torch.ones(1) + 1
            assert float(sum(side_by_side([partial(inner, x), partial(inner, x)]))) == 16.0
    assert len(card.used) == 4
    assert card.races == []
    assert card.unsaid == []


@pytest.mark.parametrize(('kind', 'more'), HEADS_OF, ids=[kind for kind, _ in HEADS_OF])
@pytest.mark.parametrize('parallel', ['branches', 'stems'])
def test_a_head_launches_the_same_in_the_same_order_without_a_race(
    card: Card, kind: str, more: dict[str, Any], parallel: str
) -> None:
    logs, lanes = [], []
    for word in (None, parallel):
        head, card.log, card.used = make_head(kind, word, **more), [], set()
        with card:
            head([feature * 1 for feature in features()])
        logs.append([name for _, name in card.log])
        lanes.append(len(card.used))
    assert logs[0] == logs[1]
    num_kinds = {'DetectHead': 4, 'SegmentHead': 8, 'OrientedHead': 6, 'KeypointHead': 6}[kind]
    num_stems = {'DetectHead': 12, 'SegmentHead': 20, 'OrientedHead': 18, 'KeypointHead': 18}[kind]
    assert lanes == [1, num_stems if parallel == 'stems' else num_kinds]
    assert card.races == []
    assert card.unsaid == []


@pytest.mark.parametrize(('kind', 'more'), HEADS_OF, ids=[kind for kind, _ in HEADS_OF])
def test_the_backward_visits_the_same_nodes_in_the_same_order(kind: str, more: dict[str, Any]) -> None:
    """Hence it adds the gradients of the shared features in the same order."""

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[tuple[str, tuple[Any, ...]]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            shapes = tuple(tuple(t.shape) for t in tree_leaves(result) if isinstance(t, Tensor))
            self.names.append((func._schema.name, shapes))
            return result

    seen = []
    for word in (None, 'stems'):
        head, maps = make_head(kind, word, **more), features()
        outputs = [output for output in head(maps) if output is not None]
        with Names() as mode:
            torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
        seen.append((mode.names, [x.grad for x in maps], [p.grad for p in head.parameters()]))
    assert seen[0][0] == seen[1][0]
    for a, b in zip([*seen[0][1], *seen[0][2]], [*seen[1][1], *seen[1][2]], strict=True):
        assert torch.equal(a, b)


def test_another_word_is_refused_by_its_key() -> None:
    with pytest.raises(ValueError, match=r"model\.head\.parallel='all'; choose None, 'branches' or 'stems'"):
        make_head('DetectHead', 'all')


def test_compiled_code_has_no_lanes(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, 'is_compiling', lambda: True)
    with card:
        side_by_side([partial(double, torch.ones(1)), partial(double, torch.ones(1))])
    assert card.used == {card.main.name}


def test_without_a_card_calls_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, '_fork', lambda *args: pytest.fail('forked'))
    x, y = side_by_side([partial(double, torch.ones(1)), partial(double, torch.ones(1))])
    assert float(x + y) == 4.0


class Two(nn.Module):
    """Two stacks over one input, on lanes or not; large enough that a missing wait would show."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lanes = lanes
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.stacks = nn.ModuleList(
            nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU()) * 4) for _ in range(4)
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        return sum(y.square().mean() for y in side_by_side([partial(s, x) for s in self.stacks], lanes=self.lanes))


@pytest.mark.cuda
def test_on_a_card_many_steps_have_the_bits_of_one_stream() -> None:
    kept = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        models = [Two(lanes).cuda() for lanes in (1, 4)]
        images = torch.randn(8, 3, 160, 160, device='cuda')
        for _ in range(20):
            losses = [model(images) for model in models]
            for model, loss in zip(models, losses, strict=True):
                model.zero_grad()
                loss.backward()
                with torch.no_grad():
                    torch._foreach_sub_(list(model.parameters()), [0.01 * p.grad for p in model.parameters()])
            assert torch.equal(*losses)
            for a, b in zip(*(model.state_dict().values() for model in models), strict=True):
                assert torch.equal(a, b)
    finally:
        torch.backends.cudnn.deterministic = kept


@pytest.mark.cuda
@pytest.mark.parametrize('parallel', ['branches', 'stems'])
def test_on_a_card_a_detector_has_the_bits_of_one_stream(parallel: str) -> None:
    kept = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        results = []
        for word in (None, parallel):
            torch.manual_seed(0)
            model = MODELS.build({'type': 'YOLODetector', 'num_classes': 3, 'head': {'parallel': word}}).cuda()
            images = torch.rand(4, 3, 320, 320, device='cuda', generator=torch.Generator('cuda').manual_seed(0))
            for _ in range(5):
                with torch.autocast('cuda', dtype=torch.bfloat16, cache_enabled=False):
                    outputs = model.network(images)
                sum(output.float().square().mean() for output in outputs).backward()
            results.append([*(p.grad for p in model.parameters()), *model.buffers()])
        assert all(map(torch.equal, *results))
    finally:
        torch.backends.cudnn.deterministic = kept
