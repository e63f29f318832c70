"""How many kernels of the fused norm Triton compiles for a network, counted without a card from what is launched."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lucid.models.layers import norm
from lucid.registry import MODELS

triton = pytest.importorskip('triton')

from lucid.models.layers import norm_gradients, norm_kernels, norm_launches, norm_plan  # noqa: E402

KERNELS = {
    norm_kernels: ('statistics_kernel', 'forward_kernel'),
    norm_gradients: ('backward_sums_kernel', 'backward_kernel'),
}


def specialised(value: Any, parameter: Any) -> tuple[Any, ...]:
    """What of an argument a kernel is compiled for, as Triton's documentation of ``do_not_specialize`` has it."""
    if parameter.is_constexpr:
        return ('constant', value)
    if isinstance(value, Tensor):  # torch's allocations begin at 512 bytes
        return (value.dtype, value.storage_offset() * value.itemsize % 16 == 0)
    if isinstance(value, float):
        return ('float',)
    return ('int', value >= 2**31, *(() if parameter.do_not_specialize else (value == 1, value % 16 == 0)))


class Recorder:
    """Stands for a kernel: notes the variant of every launch."""

    def __init__(self, kernel: Any, variants: set[tuple[Any, ...]]) -> None:
        self.kernel, self.variants = kernel, variants

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int, **named: Any) -> None:
            given = {**dict(zip(self.kernel.arg_names, args, strict=False)), **named}
            values = tuple(specialised(given[parameter.name], parameter) for parameter in self.kernel.params)
            self.variants.add((self.kernel.fn.__name__, num_warps, values))

        return launch


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Any, ...]]:
    """Fills with the variants that fused norms launch in the meantime, on whatever device."""
    found = set[tuple[Any, ...]]()
    for module, names in KERNELS.items():
        for name in names:
            monkeypatch.setattr(module, name, Recorder(getattr(module, name), found))

    def forward(*args: Any) -> tuple[Tensor, ...]:
        *tensors, momentum, eps, silu = args
        return norm_launches.launch_forward(*tensors, momentum=momentum, eps=eps, silu=silu)

    def backward(*args: Any) -> tuple[Tensor, ...]:
        *tensors, training, sums, silu = args
        return norm_launches.launch_backward(*tensors, training=training, sums=sums, silu=silu)

    monkeypatch.setattr(norm, 'train_op', forward)
    monkeypatch.setattr(norm, 'eval_op', lambda *args: forward(*args[:5], None, 0.0, *args[5:])[::2])
    monkeypatch.setattr(norm, 'backward_op', backward)
    return found


class Network:
    """The network of a detector, of shapes alone: ``meta`` tensors would not be channels_last after a convolution."""

    def __init__(self, *, scale: str = 'n') -> None:
        model = MODELS.build({'type': 'YOLODetector', 'num_classes': 80, 'scale': scale, 'fused_norm': True})
        self.network, self.fake = model.network, FakeTensorMode(allow_non_fake_inputs=True)
        for module in self.network.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(self.fake.from_tensor(parameter.detach())))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, self.fake.from_tensor(buffer))

    def train(self, *, batch: int) -> None:
        """Forward and backward at 640 px under bf16 autocast."""
        with self.fake:
            with torch.autocast('cpu', dtype=torch.bfloat16):
                maps = self.network.train()(self._images(batch))
            sum(output.float().square().mean() for output in maps).backward()

    def evaluate(self, *, batch: int) -> None:
        """Forward at 640 px in float32."""
        with self.fake, torch.no_grad():
            self.network.eval()(self._images(batch))

    def _images(self, batch: int) -> Tensor:
        return torch.zeros(batch, 3, 640, 640).to(memory_format=torch.channels_last)


# Statistics 3: 16 columns, 32, and a number that 16 does not divide. Backward sums 4: 32 columns without SiLU too.
# Forward and gradient 6 each: of 32 columns with SiLU there are three, which read up to 64, 128 and 256 parts.
MOST_TRAINING = 3 + 4 + 6 + 6
MOST_EVALUATION = 4


def test_training_of_scale_n_compiles_few_variants_and_other_batches_none(variants: set[tuple[Any, ...]]) -> None:
    network = Network()
    network.train(batch=16)
    assert len(variants) == MOST_TRAINING
    for batch in (4, 8):
        network.train(batch=batch)
        assert len(variants) == MOST_TRAINING


def test_evaluation_of_scale_n_compiles_one_variant_for_each_kind_of_columns(variants: set[tuple[Any, ...]]) -> None:
    network = Network()
    for batch in (16, 8, 1):
        network.evaluate(batch=batch)
        assert len(variants) == MOST_EVALUATION


@pytest.mark.parametrize('scale', ['s', 'm'])
def test_wider_networks_compile_no_more(variants: set[tuple[Any, ...]], scale: str) -> None:
    Network(scale=scale).train(batch=16)
    assert 10 < len(variants) <= MOST_TRAINING


def test_a_room_for_every_number_of_parts_would_be_noticed(
    variants: set[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm_launches, 'room_of', lambda num_parts, num_columns: norm_plan.room_of(num_parts, 16))
    Network().train(batch=16)
    assert len(variants) > MOST_TRAINING


@pytest.mark.parametrize('num_maps', [1, 2])
def test_a_tile_is_as_tall_for_a_small_map_as_for_a_large_one(num_maps: int) -> None:
    tiles = {
        norm_plan.plan(rows, 128, last=True, num_maps=num_maps, num_programs=256)[:2] for rows in (2, 50, 400, 10**6)
    }
    assert tiles == {(256 // num_maps, 32)}


@pytest.mark.parametrize(('num_parts', 'num_columns', 'room'), [(13, 128, 64), (65, 64, 128), (85, 85, 256)])
def test_the_room_holds_all_parts_and_has_few_sizes(num_parts: int, num_columns: int, room: int) -> None:
    assert norm_plan.room_of(num_parts, num_columns) == room


@pytest.mark.parametrize('shape', [(16, 85, 20, 20), (3, 11, 5, 5)])
def test_both_tables_of_partial_sums_begin_at_16_bytes(variants: set[tuple[Any, ...]], shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, device='meta').to(memory_format=torch.channels_last).requires_grad_()
    norm.fused_norm(x, nn.BatchNorm2d(shape[1], device='meta'), silu=True).sum().backward()
    aligned = [part[1] for _, _, values in variants for part in values if part[0] is torch.float32]
    assert len(aligned) > 20
    assert all(aligned)
