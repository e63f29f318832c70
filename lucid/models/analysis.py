"""Counting a network: parameters, multiply-adds and the bytes that a training step cannot avoid moving."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lucid.models.layers import ConvUnit, SpatialAttention

# How often a training step reads or writes each convolution's input and output, as if everything else were fused into
# convolution, BatchNorm and the backward of both. The convolution takes three passes over both: forward, for the
# gradient of its input, and for that of its weight. BatchNorm takes two more, each of two reads or writes of the
# output, which count as one of both: forward, to read what it normalizes and write it, and backward, for the sums over
# the output and its gradient. Its statistics, and the gradient of its input, ride with the convolution.
TRAINING_PASSES = 5
COUNTED = (ConvUnit, nn.Conv2d, SpatialAttention, nn.Upsample)


class LayerCost(NamedTuple):
    """What one layer costs for one image.

    name:         path in the network
    kind:         class of the layer
    output_shape: C, H, W
    params:       parameters of the layer itself
    macs:         multiply-adds of convolutions and attention, 2 per BatchNorm output, 1 per upsampled output
    elements:     convolution input and output elements
    """

    name: str
    kind: str
    output_shape: tuple[int, ...]
    params: int
    macs: int
    elements: int

    def bytes_floor(self, *, passes: int = TRAINING_PASSES, element_size: int = 2) -> int:
        """Bytes that ``passes`` over the convolution's input and output move; bf16 by default."""
        return self.elements * passes * element_size


def count_layers(network: nn.Module, height_width: tuple[int, int]) -> list[LayerCost]:
    """One row per ConvUnit, bare convolution, attention and upsampling, in the order of execution.

    Runs a copy on torch's ``meta`` device: no memory for activations, no arithmetic, ``network`` stays untouched.
    """
    # In training mode, for what runs in training alone; but norms of one value would refuse that.
    shadow = copy.deepcopy(network).to('meta').train()
    for module in shadow.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    inside_units = {id(unit.conv) for unit in shadow.modules() if isinstance(unit, ConvUnit)}
    rows: list[LayerCost] = []

    def watch(name: str, module: nn.Module) -> None:
        def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            rows.append(_cost(name, module, inputs[0], output))

        module.register_forward_hook(record)

    for name, module in shadow.named_modules():
        if isinstance(module, COUNTED) and id(module) not in inside_units:
            watch(name, module)
    with torch.no_grad():
        shadow(torch.empty(1, 3, *height_width, device='meta'))
    return rows


def _cost(name: str, module: nn.Module, x: Tensor, output: Tensor) -> LayerCost:
    conv = module.conv if isinstance(module, ConvUnit) else module
    params = macs = elements = 0
    if isinstance(conv, nn.Conv2d):
        params = num_parameters(module)
        macs = output.numel() * conv.weight[0].numel()
        elements = x.numel() + output.numel()
    if isinstance(module, ConvUnit):
        macs += 2 * output.numel()
    elif isinstance(module, SpatialAttention):
        cells = output.shape[2] * output.shape[3]
        macs = module.num_heads * cells**2 * (module.key_channels + module.head_channels)
    elif isinstance(module, nn.Upsample):
        macs = output.numel()
    return LayerCost(name, type(module).__name__, tuple(output.shape[1:]), params, macs, elements)


def num_parameters(module: nn.Module) -> int:
    """Parameters of ``module``, each counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


class NetworkCost(NamedTuple):
    """What a detector's network costs for one image.

    layers:        of the training network, both branches
    params:        of the training network
    deploy_params: of the deployed view
    gflops:        of the deployed view, 2 * multiply-adds / 1e9
    """

    layers: list[LayerCost]
    params: int
    deploy_params: int
    gflops: float

    @property
    def training_gflops(self) -> float:
        """Of one forward pass of the training network."""
        return 2 * sum(layer.macs for layer in self.layers) / 1e9

    @property
    def bytes_floor(self) -> int:
        """Bytes per image that a bf16 training step moves at least."""
        return sum(layer.bytes_floor() for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """Plain types only."""
        return {
            'params': self.params,
            'deploy_params': self.deploy_params,
            'gflops': self.gflops,
            'training_gflops': self.training_gflops,
            'bytes_floor': self.bytes_floor,
            'layers': [
                {**layer._asdict(), 'output_shape': list(layer.output_shape), 'bytes_floor': layer.bytes_floor()}
                for layer in self.layers
            ],
        }


def analyze_network(network: Any, height_width: tuple[int, int]) -> NetworkCost:
    """Count a network that has a ``deployed()`` view."""
    view = network.deployed()
    return NetworkCost(
        layers=count_layers(network, height_width),
        params=num_parameters(network),
        deploy_params=num_parameters(view),
        gflops=2 * sum(layer.macs for layer in count_layers(view, height_width)) / 1e9,
    )
