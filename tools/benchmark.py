#!/usr/bin/env python
"""Time the training step of a config, eager and captured, and its data loader, side by side on a CUDA card."""

import argparse
import json
import sys
from pathlib import Path

import torch

from lucid.apis import ConfigError, load_config
from lucid.apis.benchmark import PARTS, benchmark
from lucid.apis.benchmark_plot import save_plot
from lucid.apis.benchmark_table import print_benchmark, print_profile
from lucid.apis.device_option import device_option
from lucid.apis.options import add_cfg_options
from lucid.apis.parity import PRECISIONS

EXAMPLES = """examples:
  tools/benchmark.py configs/yolo_capture.py --cfg-options image_size=640
  tools/benchmark.py configs/yolo_capture.py --region step step:compiled --only step --profile --plot benchmark.png
  tools/benchmark.py configs/yolo_capture.py --region network network.head --accumulate 1 4 --precision fp32 --adopt
  tools/benchmark.py configs/yolo/detect_n_bccd.py --json benchmark.json --cfg-options data_root=/data/bccd
  tools/benchmark.py configs/yolo/detect_n_bccd.py --only loading --cfg-options data_root=/data/bccd
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
        help='variants: step, loss, a module, or some joined by +; :compiled behind one compiles it '
        '(default: %(default)s)',
    )
    parser.add_argument('--module', default='network', metavar='PATH', help='timed alone too (default: %(default)s)')
    parser.add_argument('--adopt', action='store_true', help='variants whose gradients stay in graph memory too')
    parser.add_argument(
        '--accumulate', type=int, nargs='+', default=[1, 2], metavar='N', help='micro-batches of a step (default: 1 2)'
    )
    parser.add_argument('--precision', choices=tuple(PRECISIONS), default='bf16', help='default: %(default)s')
    parser.add_argument('--rounds', type=int, default=7, metavar='N', help='turns of a variant (default: %(default)s)')
    parser.add_argument('--micro-batches', type=int, default=20, metavar='N', help='of a turn (default: %(default)s)')
    parser.add_argument('--only', nargs='+', choices=PARTS, default=list(PARTS), help='what is measured (default: all)')
    parser.add_argument('--profile', action='store_true', help='the longest kernels of each variant, by kind')
    parser.add_argument(
        '--device', type=device_option, help='cuda or cuda:N; the CPU runs it too, but its times mean nothing'
    )
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the result there too')
    parser.add_argument('--plot', type=Path, metavar='FILE', help='draw the timings there, as PNG')
    add_cfg_options(parser)
    args = parser.parse_args()
    if min(args.rounds, args.micro_batches, *args.accumulate) < 1:
        parser.error('--rounds, --micro-batches and --accumulate take numbers of at least 1')
    timed = args.only != ['loading']
    if (args.profile or args.plot) and not timed:
        parser.error('--profile and --plot show timings of a step or a module; add one to --only')
    if timed and args.device is None and not torch.cuda.is_available():
        nothing = ', and no kernel to profile' if args.profile else ''
        print(
            f'error: there is no CUDA card{nothing}, and times of the CPU say nothing about one; --device cpu runs it '
            'all the same, and --only loading measures the data loader on any machine',
            file=sys.stderr,
        )
        return 2
    try:
        for path in filter(None, (args.json, args.plot)):  # before minutes of measuring
            path.parent.mkdir(parents=True, exist_ok=True)
        found = benchmark(
            load_config(args.config, args.cfg_options),
            regions=args.region,
            module=args.module,
            adopt=args.adopt,
            accumulate=args.accumulate,
            precision=args.precision,
            rounds=args.rounds,
            micro_batches=args.micro_batches,
            only=args.only,
            profile=args.profile,
            device=args.device,
        )
    except (ConfigError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    print_benchmark(found)
    if args.profile:
        print_profile(found)
    if args.json:
        args.json.write_text(json.dumps(found.to_json(), indent=1) + '\n')
    if args.plot:
        save_plot(found, args.plot)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
