"""Count the network of a config: parameters, GFLOPs and the bytes floor, layer by layer."""

from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config
from rich.console import Console
from rich.table import Table

import lucid.models  # noqa: F401  (registers the detector's parts)
from lucid.apis.build import load_config
from lucid.apis.validate import ConfigError
from lucid.models.analysis import NetworkCost, analyze_network
from lucid.models.detectors.parts import takes_keypoints
from lucid.registry import MODELS

COCO_CLASSES = 80
COCO_KEYPOINTS = 17
DEFAULT_SIDE = 640


def analyze(
    config: str | Path | Config,
    *,
    image_size: int | Sequence[int] | None = None,
    num_classes: int | None = None,
    num_keypoints: int | None = None,
) -> NetworkCost:
    """What the network of a config costs for one image; needs neither data nor a device.

    Args:
        config: a config file, or a loaded config, which stays unchanged.
        image_size: side, or height and width, of the input; default the config's ``image_size``, else 640.
        num_classes: default the config's ``model.num_classes``, else 80 (COCO), since the data is not read.
        num_keypoints: of a head that predicts keypoints, default the config's ``model.num_keypoints``, else 17 (COCO).

    Returns:
        Layer by layer and in all.

    Raises:
        ValueError: a side is not a positive multiple of the largest stride, or the config cannot be meant.
    """
    cfg = config if isinstance(config, Config) else load_config(config)
    if cfg.get('model') is None:
        raise ConfigError(f'{cfg.filename}: there is no model, which this needs; add it')
    size = image_size or cfg.get('image_size', DEFAULT_SIDE)
    height, width = (size, size) if isinstance(size, int) else size
    model = dict(cfg.model)
    model['num_classes'] = model.get('num_classes') or COCO_CLASSES if num_classes is None else num_classes
    head = {'type': 'DetectHead', **(model.get('head') or {})}
    if num_keypoints is not None:
        model['num_keypoints'] = num_keypoints
    elif takes_keypoints(head) and head.get('num_keypoints') is None:
        model['num_keypoints'] = model.get('num_keypoints') or COCO_KEYPOINTS
    detector = MODELS.build(model)
    divisor = max(detector.strides)
    if min(height, width) < divisor or height % divisor or width % divisor:
        raise ValueError(f'image_size {height}x{width}: both sides must be a multiple of {divisor}; change image_size')
    return analyze_network(detector.network, (height, width))


def print_cost(cost: NetworkCost, *, console: Console | None = None) -> None:
    """Print one line per layer and the totals."""
    console = console or Console()
    table = Table(title='per image; both branches')
    table.add_column('layer', overflow='fold')
    table.add_column('kind')
    for title in ('output', 'params', 'MMACs', 'floor MB'):
        table.add_column(title, justify='right', no_wrap=True)
    for layer in cost.layers:
        table.add_row(
            layer.name,
            layer.kind,
            'x'.join(map(str, layer.output_shape)),
            f'{layer.params:,}',
            f'{layer.macs / 1e6:.2f}',
            f'{layer.bytes_floor() / 1e6:.2f}',
        )
    console.print(table)
    totals = Table(show_header=False, box=None)
    totals.add_column()
    totals.add_column(justify='right')
    totals.add_row('parameters, training network', f'{cost.params:,}')
    totals.add_row('parameters, deployed', f'{cost.deploy_params:,}')
    totals.add_row('GFLOPs, deployed', f'{cost.gflops:.4f}')
    totals.add_row('GFLOPs, training network forward', f'{cost.training_gflops:.4f}')
    totals.add_row('bytes floor of a bf16 training step', f'{cost.bytes_floor / 1e6:.1f} MB')
    console.print(totals)
