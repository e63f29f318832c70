"""The time that a device needs for the bytes that a training step moves at least."""

import statistics
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from lucid.apis.benchmark_clock import seconds
from lucid.models.analysis import LayerCost, count_layers

COPIED = {'cuda': 1 << 30, 'cpu': 1 << 26}  # bytes of a copy: far more than any cache of a card


class Floor(NamedTuple):
    """The bytes floor of a micro-batch: bytes that the network's training moves, over the bandwidth of a plain copy.

    The bytes are five passes over the input and output elements of each convolution (``models.analysis`` says which),
    in the precision of the activations; all layers count, as if none were frozen. Left out are weights and their
    gradients, the optimizer, the loss, and all that could be fused into convolution and BatchNorm. So it is a
    yardstick: time beyond it is that of arithmetic, of what was left out, and of passes that fewer kernels would spare.
    It is no proof that nothing can be faster, since two layers in one kernel would take fewer passes.

    step_bytes: of a micro-batch
    part_bytes: those of the convolutions of the module that is timed alone
    bandwidth:  bytes per second that a copy on the device read and wrote, measured in this run
    """

    step_bytes: int
    part_bytes: int
    bandwidth: float

    @property
    def step(self) -> float:
        """Milliseconds of a micro-batch."""
        return self.step_bytes / self.bandwidth * 1e3

    @property
    def part(self) -> float:
        """Milliseconds of the module that is timed alone."""
        return self.part_bytes / self.bandwidth * 1e3

    def to_json(self) -> dict[str, Any]:
        """Plain types, milliseconds beside what they come from."""
        return {**self._asdict(), 'step_ms': self.step, 'part_ms': self.part}


def floor_of(
    model: nn.Module,
    *,
    module: str,
    image_size: tuple[int, int],
    batch_size: int,
    element_size: int,
    device: torch.device,
) -> Floor | None:
    """Count a model's ``network`` and measure the device's bandwidth.

    Args:
        model: Whose ``network`` is counted; it stays as it is, and may be on any device.
        module: Path of the module that is timed alone.
        image_size: Height and width of the input.
        batch_size: Of a micro-batch.
        element_size: Bytes of an activation, 2 under autocast.
        device: Whose memory is copied.

    Returns:
        The floor; None for a model without a ``network``, or with one that has no convolution.
    """
    network = getattr(model, 'network', None)
    layers = count_layers(network, image_size) if isinstance(network, nn.Module) else []
    inside = [layer for layer in layers if f'network.{layer.name}.'.startswith(f'{module}.')]
    step, part = (_bytes(some, element_size) * batch_size for some in (layers, inside))
    return Floor(step, part, copy_bandwidth(device)) if step else None


def _bytes(layers: list[LayerCost], element_size: int) -> int:
    return sum(layer.bytes_floor(element_size=element_size) for layer in layers)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second that a copy within the device's memory reads and writes; the median of five runs of it."""
    size, times = COPIED['cpu'], 2
    if device.type == 'cuda':
        size = min(COPIED['cuda'], torch.cuda.mem_get_info(device)[0] // 4)
        times = 20  # one takes half a millisecond there, and waiting for it a hundredth
    # Not zeros: cards may move these faster.
    copy = partial(torch.empty(size, dtype=torch.uint8, device=device).copy_, _noise(size, device))
    copy()
    took = statistics.median(seconds(copy, device, times=times) for _ in range(5))
    del copy
    if device.type == 'cuda':
        torch.cuda.empty_cache()
    return 2 * size * times / took


def _noise(size: int, device: torch.device) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device).random_()
