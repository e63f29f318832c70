import gc
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid.engine import checkpoint as files
from lucid.engine.snapshot import Snapshot

CUDA = pytest.param('cuda', marks=pytest.mark.cuda)


@pytest.fixture(params=['cpu', 'staged', CUDA])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device; 'staged' is the CPU, taken for a card whose memory is copied by way of one piece of it."""
    if request.param == 'staged':
        monkeypatch.setattr(Snapshot, '_is_host', staticmethod(lambda device: False))
        return 'cpu'
    return request.param


def values(device: str) -> dict[str, Any]:
    """Tensors of many kinds, every one with other numbers."""
    torch.manual_seed(0)
    image = torch.randn(2, 3, 4, 5, device=device)
    return {
        'plain': torch.randn(7, 3, device=device),
        'channels_last': image.to(memory_format=torch.channels_last),
        'transposed': torch.randn(4, 6, device=device).t(),
        'number': torch.tensor(3.5, dtype=torch.float64, device=device),
        'empty': torch.empty(0, 4, device=device),
        'flags': torch.tensor([True, False, True], device=device),
        'bytes': torch.arange(256, dtype=torch.uint8, device=device),
        'counts': [torch.arange(5, device=device), (torch.arange(3, dtype=torch.int16, device=device),)],
        'bfloat16': torch.randn(9, device=device).bfloat16(),
        'half': torch.randn(9, device=device).half(),
        'complex': torch.randn(3, dtype=torch.complex64, device=device),
        'float8': torch.randn(5, device=device).to(torch.float8_e4m3fn),
        'parameter': nn.Parameter(torch.randn(33, device=device)),
        'host': torch.randn(11),
        'words': ['a', 1, None, True, 2.5],
    }


def flat(value: Any, where: str = '') -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f'{where}.{key}').items()}
    if isinstance(value, list | tuple):
        return {k: v for i, item in enumerate(value) for k, v in flat(item, f'{where}[{i}]').items()}
    return {where: value}


def assert_same(found: Any, expected: Any) -> None:
    """Types, values bit for bit, shapes, strides; tensors on the CPU."""
    found, expected = flat(found), flat(expected)
    assert found.keys() == expected.keys()
    for where, value in expected.items():
        if not isinstance(value, Tensor):
            assert found[where] == value, where
            continue
        other = found[where]
        assert type(other) is Tensor, where
        assert other.device.type == 'cpu', where
        assert not other.requires_grad, where
        assert (other.dtype, other.shape, other.stride()) == (value.dtype, value.shape, value.stride()), where
        assert as_bytes(other) == as_bytes(value), where


def as_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def loaded(content: Any) -> Any:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize('chunk', [1, 300, 1 << 20])
def test_it_gives_what_a_file_of_single_copies_gives(device: str, chunk: int) -> None:
    value = values(device)
    assert_same(loaded(Snapshot(chunk=chunk).take(value)), loaded(files.plain(value)))


def test_the_comparison_sees_a_changed_bit_and_another_stride() -> None:
    value = {'a': torch.randn(2, 3)}
    with pytest.raises(AssertionError):
        assert_same({'a': value['a'].nextafter(torch.tensor(9.0))}, value)
    with pytest.raises(AssertionError):
        assert_same({'a': value['a'].t().contiguous().t()}, value)


def test_what_changes_afterwards_does_not_reach_it(device: str) -> None:
    value = values(device)
    expected = loaded(files.plain(value))
    copy = Snapshot().take(value)
    for tensor in flat(value).values():
        if isinstance(tensor, Tensor):
            tensor.detach().zero_()
    assert_same(copy, expected)


def test_the_next_one_has_the_same_memory_and_the_new_values(device: str) -> None:
    snapshot, value = Snapshot(), values(device)
    first = snapshot.take(value)
    places = [tensor.data_ptr() for tensor in flat(first).values() if isinstance(tensor, Tensor)]
    with torch.no_grad():
        value['parameter'] += 1
    value['words'].append('more')
    second = snapshot.take(value)
    assert_same(second, loaded(files.plain(value)))
    assert [tensor.data_ptr() for tensor in flat(second).values() if isinstance(tensor, Tensor)] == places


def test_tensors_that_come_go_or_change_their_shape_are_laid_out_anew(device: str) -> None:
    snapshot, value = Snapshot(), values(device)
    snapshot.take(value)
    value['counts'].append(torch.arange(1000, device=device))
    assert_same(snapshot.take(value), loaded(files.plain(value)))
    value['plain'] = value['plain'].t()
    assert_same(snapshot.take(value), loaded(files.plain(value)))
    del value['bytes'], value['counts']
    assert_same(snapshot.take(value), loaded(files.plain(value)))
    assert snapshot.take({}) == {}
    assert snapshot.nbytes == 0


def test_each_tensor_is_saved_with_its_own_bytes_only(tmp_path: Path) -> None:
    value = {'state_dict': {str(i): torch.randn(1000) for i in range(20)}, 'meta': {}}
    copy = Snapshot().take(value)
    files.save(value, tmp_path / 'single.pth')
    files.save_plain(copy, tmp_path / 'together.pth')
    assert (tmp_path / 'together.pth').read_bytes() == (tmp_path / 'single.pth').read_bytes()
    torch.save(dict(enumerate(torch.randn(20_000).split(1000)[:2])), tmp_path / 'views.pth')
    assert (tmp_path / 'views.pth').stat().st_size > 80_000  # control: views are saved with all that they look at


def test_the_same_place_in_memory_is_one_tensor_and_parts_of_it_keep_their_values(device: str) -> None:
    tied = nn.Parameter(torch.randn(4, 4, device=device))
    copy = Snapshot().take({'a': tied, 'b': tied, 'row': tied[1], 'flat': tied.view(-1)})
    assert copy['a'].data_ptr() == copy['b'].data_ptr()
    assert torch.equal(copy['row'], tied[1].cpu())
    assert torch.equal(copy['flat'], tied.view(-1).cpu())
    assert torch.equal(loaded(copy)['b'], tied.detach().cpu())


def test_views_with_gaps_and_overlaps_become_dense(device: str) -> None:
    grid = torch.randn(6, 6, device=device)
    copy = Snapshot().take({'gaps': grid[::2, ::3], 'overlaps': grid[0].expand(3, 6)})
    assert torch.equal(copy['gaps'], grid[::2, ::3].cpu())
    assert torch.equal(copy['overlaps'], grid[0].expand(3, 6).cpu())
    assert [tensor.untyped_storage().nbytes() for tensor in copy.values()] == [3 * 2 * 4, 3 * 6 * 4]


@pytest.mark.cuda
def test_a_view_of_a_card_has_the_strides_of_a_single_copy() -> None:
    grid = torch.randn(2, 6, 6, 6, device='cuda')
    views = [
        grid[:, ::2],
        grid.to(memory_format=torch.channels_last)[..., ::2],
        grid[:1].expand(3, 6, 6, 6),
        grid.mT[1:],
    ]
    for view, copy in zip(views, Snapshot().take(views), strict=True):
        assert copy.stride() == view.cpu().stride()
        assert torch.equal(copy, view.cpu())


@pytest.mark.cuda
def test_it_follows_the_step_under_way_and_is_complete_before_the_next_one() -> None:
    weight = torch.zeros(1 << 22, device='cuda')
    snapshot = Snapshot()
    snapshot.take([weight])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        weight.fill_(1)
        copy = snapshot.take([weight])
        weight.fill_(2)
    assert torch.equal(copy[0], torch.ones(1 << 22))
    stream.synchronize()


@pytest.mark.cuda
def test_on_a_card_few_transfers_carry_all_tensors() -> None:
    tensors = [torch.randn(100, device='cuda') for _ in range(500)]
    snapshot = Snapshot()
    snapshot.take(tensors)
    assert snapshot._memory.is_pinned()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        snapshot.take(tensors)
    assert sum(event.count for event in profile.key_averages() if 'DtoH' in event.key) == 1


def test_values_that_are_not_plain_are_refused_by_their_place() -> None:
    with pytest.raises(TypeError, match=r'checkpoint\.a\[1\] is a set, which a checkpoint cannot hold'):
        Snapshot().take({'a': [torch.ones(1), {1}]})


def test_sparse_tensors_come_along() -> None:
    sparse = torch.eye(3).to_sparse()
    value = {'sparse': sparse, 'dense': torch.ones(2)}
    copy = Snapshot().take(value)
    sparse.values().zero_()
    assert torch.equal(copy['sparse'].to_dense(), torch.eye(3))
    assert torch.equal(copy['dense'], torch.ones(2))


def test_a_lack_of_memory_leaves_nothing_that_looks_like_a_copy(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: Any, **__: Any) -> Any:
        raise MemoryError

    snapshot, value = Snapshot(), values(device)
    with monkeypatch.context() as patched:
        patched.setattr(torch, 'frombuffer', lacking)
        with pytest.raises(MemoryError):
            snapshot.take(value)
    expected = loaded(files.plain(value))
    copy = snapshot.take(value)
    value['plain'].zero_()
    assert_same(copy, expected)


def test_conjugated_and_negated_views_have_their_own_values() -> None:
    number = torch.randn(3, dtype=torch.complex64)
    value = {'number': number, 'conjugated': number.conj(), 'negated': number.conj().imag}
    expected = {key: tensor.clone().resolve_conj().resolve_neg() for key, tensor in value.items()}
    copy = Snapshot().take(value)
    number.zero_()
    for key, tensor in expected.items():
        assert torch.equal(copy[key], tensor), key
    assert torch.equal(loaded(copy)['conjugated'], expected['conjugated'])


def test_copies_stay_when_what_took_them_is_gone(device: str) -> None:
    value = [torch.full((1000,), float(i), device=device) for i in range(50)]
    copies = Snapshot().take(value)
    gc.collect()
    others = [torch.full((1000,), -1.0) for _ in range(200)]  # would take the memory, were it free
    assert [copy.unique().tolist() for copy in copies] == [[float(i)] for i in range(50)]
    assert len(others) == 200


@pytest.mark.filterwarnings('ignore')  # torch means to give them up
def test_quantized_tensors_come_along() -> None:
    quantized = torch.quantize_per_tensor(torch.tensor([0.5, -1.0, 2.0]), 0.5, 0, torch.qint8)
    copy = Snapshot().take({'quantized': quantized, 'dense': torch.ones(2)})
    quantized.copy_(torch.zeros(3))
    assert copy['quantized'].dequantize().tolist() == [0.5, -1.0, 2.0]
