"""Why gradients must leave graph memory before the next forward replay: the experiment, as a table."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.registry import init_default_scope
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import lucid.models  # noqa: F401  (registers the detector's parts)
from lucid.apis.training_pair import exact
from lucid.capture import CudaMemory, Memory, ModuleRegion, Parts, Policy, Pool, TapeMemory
from lucid.capture.ownership import Adopt, Holder, copy_out
from lucid.registry import MODELS, SCOPE


class NoCopy(Adopt):
    """Autograd keeps graph memory as ``.grad``, and nobody copies it out."""

    def before_forward(self, holders: Sequence[Holder]) -> None:
        """Leave everything where it is."""

    def before_backward(self, holders: Sequence[Holder]) -> None:
        """Leave everything where it is."""


class CopyBeforeBackward(NoCopy):
    """Live gradients are copied out when the replayed backward begins, as a backward pre-hook does."""

    def before_backward(self, holders: Sequence[Holder]) -> None:
        """Copy live gradients out."""
        copy_out(holders)


class SynchronizeToo(NoCopy):
    """The same, with the device idle before and after."""

    def before_backward(self, holders: Sequence[Holder]) -> None:
        """Copy live gradients out while nothing runs."""
        _synchronize()
        copy_out(holders)
        _synchronize()


class CopyBeforeForward(NoCopy):
    """Live gradients are copied out before each forward replay."""

    def before_forward(self, holders: Sequence[Holder]) -> None:
        """Copy live gradients out."""
        copy_out(holders)


WAYS: dict[str, type[NoCopy]] = {
    'no copy': NoCopy,
    'copy in the backward pre-hook': CopyBeforeBackward,
    'copy in the pre-hook + synchronize': SynchronizeToo,
    'copy before the forward replay': CopyBeforeForward,
}


class PoolTable(NamedTuple):
    """Numbers of parameters, of ``total``; ``rows`` has, by line, those for a shared and for separate pools."""

    device: str
    backend: str
    total: int
    rows: dict[str, tuple[int, int]]


def measure_pool(
    *,
    scale: str = 'n',
    image_size: int = 320,
    batch_size: int = 8,
    micro_batches: int = 3,
    device: str | torch.device | None = None,
) -> PoolTable:
    """Accumulate gradients over replays of a detector's network in each way to own them, and count what is wrong.

    Args:
        scale: Of the detector.
        image_size: Side of its random images.
        batch_size: Images of a micro-batch.
        micro_batches: Replays whose gradients add up.
        device: Default a CUDA card where there is one; on the CPU the tape models what a shared pool does.

    Returns:
        Gradient buffers that one forward replay alone changes, and parameters whose sum differs from eager.
    """
    init_default_scope(SCOPE)
    device = torch.device(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
    torch.manual_seed(0)
    network = MODELS.build({'type': 'YOLODetector', 'scale': scale, 'num_classes': 80}).network.to(device).train()
    shape = (batch_size, 3, image_size, image_size)
    images = [torch.rand(shape, device=device) for _ in range(micro_batches)]
    rows = {}
    with exact():
        expected = _train(copy.deepcopy(network), images)
        rows['gradient buffers changed by a forward replay alone'] = _both(_changed, network, images)
        for name, way in WAYS.items():
            rows[f'gradients that differ from eager: {name}'] = _both(_wrong, network, images, way, expected)
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else 'cpu'
    return PoolTable(name, 'cuda' if device.type == 'cuda' else 'tape', len(list(network.parameters())), rows)


def _both(count: Any, network: nn.Module, *arguments: Any) -> tuple[int, int]:
    shared, separate = (count(copy.deepcopy(network), shared, *arguments) for shared in (True, False))
    return shared, separate


def _train(network: nn.Module, images: Sequence[Tensor]) -> list[Tensor | None]:
    for batch in images:
        _loss(network(batch)).backward()
    return [parameter.grad for parameter in network.parameters()]


def _loss(outputs: Sequence[Tensor]) -> Tensor:
    return torch.stack([output.float().square().mean() for output in outputs]).sum()


def _capture(network: nn.Module, shared: bool, way: type[NoCopy]) -> tuple[ModuleRegion, list[Pool]]:
    region, pools = ModuleRegion(''), []

    def memory(device: torch.device) -> Memory:
        return CudaMemory(device, shared=shared) if device.type == 'cuda' else TapeMemory(shared=shared)

    def pool(*arguments: Any) -> Pool:
        pools.append(Pool(*arguments))
        return pools[-1]

    parts = Parts(memory=memory, pool=pool, ownership=lambda _: way())
    region.activate(network, policy=Policy(gradients='adopt'), parts=parts)
    return region, pools


def _changed(network: nn.Module, shared: bool, images: Sequence[Tensor]) -> int:
    region, pools = _capture(network, shared, NoCopy)
    _loss(network(images[0])).backward()
    gradients = pools[0].recordings[0].gradients
    assert gradients is not None
    static = gradients.views(range(len(gradients.slots)), owned=(False, False))
    before = {i: view.clone() for i, view in static.items()}
    network(images[1])
    changed = sum(not torch.equal(before[i], view) for i, view in static.items())
    region.release()
    return changed


def _wrong(
    network: nn.Module, shared: bool, images: Sequence[Tensor], way: type[NoCopy], expected: Sequence[Tensor | None]
) -> int:
    region, _ = _capture(network, shared, way)
    found = _train(network, images)
    wrong = sum(not _same(a, b) for a, b in zip(expected, found, strict=True))
    region.release()
    return wrong


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def print_pool_table(table: PoolTable, *, console: Console | None = None) -> None:
    """Print the counts, of all parameters of the network."""
    console = console or Console()
    if table.backend == 'tape':
        console.print('No CUDA card in use: the tape models the pool, it does not measure one.')
    shown = Table(title=f'of {table.total} parameters, {table.device}')
    shown.add_column('measured')
    for title in ('shared pool', 'separate pools'):
        shown.add_column(title, justify='right')
    for name, (shared, separate) in table.rows.items():
        shown.add_row(name, str(shared), str(separate))
    console.print(shown)
