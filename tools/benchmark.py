#!/usr/bin/env python
"""Time the training step of a config, eager and captured, side by side in one run on a CUDA card."""

import argparse
import json
import sys
from pathlib import Path

import torch

from lucid.apis import ConfigError, load_config
from lucid.apis.benchmark import benchmark
from lucid.apis.benchmark_table import print_benchmark
from lucid.apis.options import add_cfg_options
from lucid.apis.parity import PRECISIONS

EXAMPLES = """examples:
  tools/benchmark.py configs/yolo_capture.py --cfg-options image_size=640
  tools/benchmark.py configs/yolo_capture.py --region network network.head --accumulate 1 4 --precision fp32 --adopt
  tools/benchmark.py configs/yolo/detect_n_bccd.py --json benchmark.json --cfg-options data_root=/data/bccd
"""


def main() -> int:
    """Parse the command line and measure; 2 where nothing could be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=Path, help='config file')
    parser.add_argument(
        '--region',
        nargs='+',
        default=['network', 'network+loss', 'step'],
        metavar='WHAT',
        help='variants: step, loss, a module, or some joined by + (default: %(default)s)',
    )
    parser.add_argument('--module', default='network', metavar='PATH', help='timed alone too (default: %(default)s)')
    parser.add_argument('--adopt', action='store_true', help='variants whose gradients stay in graph memory too')
    parser.add_argument(
        '--accumulate', type=int, nargs='+', default=[1, 2], metavar='N', help='micro-batches of a step (default: 1 2)'
    )
    parser.add_argument('--precision', choices=tuple(PRECISIONS), default='bf16', help='default: %(default)s')
    parser.add_argument('--rounds', type=int, default=7, metavar='N', help='turns of a variant (default: %(default)s)')
    parser.add_argument('--micro-batches', type=int, default=20, metavar='N', help='of a turn (default: %(default)s)')
    parser.add_argument('--device', help='cuda or cuda:N; the CPU runs it too, but its times mean nothing')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the result there too')
    add_cfg_options(parser)
    args = parser.parse_args()
    if min(args.rounds, args.micro_batches, *args.accumulate) < 1:
        parser.error('--rounds, --micro-batches and --accumulate take numbers of at least 1')
    if args.device is None and not torch.cuda.is_available():
        print(
            'error: there is no CUDA card, and times of the CPU say nothing about one; --device cpu runs it all the '
            'same',
            file=sys.stderr,
        )
        return 2
    try:
        found = benchmark(
            load_config(args.config, args.cfg_options),
            regions=args.region,
            module=args.module,
            adopt=args.adopt,
            accumulate=args.accumulate,
            precision=args.precision,
            rounds=args.rounds,
            micro_batches=args.micro_batches,
            device=args.device,
        )
    except (ConfigError, FileNotFoundError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    print_benchmark(found)
    if args.json:
        args.json.write_text(json.dumps(found.to_json(), indent=1) + '\n')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
