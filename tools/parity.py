#!/usr/bin/env python
"""Train a config eager and with a captured region, in lockstep, and compare every value; 1 where any differs."""

import argparse
import json
import sys
from pathlib import Path

from lucid.apis import ConfigError, load_config
from lucid.apis.device_option import device_option
from lucid.apis.host_time import host_time
from lucid.apis.options import add_cfg_options
from lucid.apis.parity import PRECISIONS, check_parity, print_parity

EXAMPLES = """examples:
  tools/parity.py configs/yolo_capture.py
  tools/parity.py configs/yolo_capture.py --region network+loss --precision bf16
  tools/parity.py configs/yolo_capture.py --region network.head --accumulate 2 4 --precision fp16 --steps 50
  tools/parity.py configs/yolo/detect_n_bccd.py --host-time --json parity.json --cfg-options data_root=/data/bccd
"""


def main() -> int:
    """Parse the command line and compare; 2 where nothing could be compared."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=Path, help='config file')
    parser.add_argument(
        '--region',
        default='network',
        metavar='WHAT',
        help='step, loss, a module, or some joined by + (default: %(default)s)',
    )
    parser.add_argument(
        '--accumulate', type=int, nargs='+', default=[1, 2], metavar='N', help='micro-batches of a step (default: 1 2)'
    )
    parser.add_argument(
        '--precision', nargs='+', choices=tuple(PRECISIONS), default=list(PRECISIONS), help='default: all'
    )
    parser.add_argument('--steps', type=int, default=10, metavar='N', help='optimizer steps (default: %(default)s)')
    parser.add_argument(
        '--device', type=device_option, help='cpu, cuda or cuda:N (default: a CUDA card where there is one)'
    )
    parser.add_argument('--host-time', action='store_true', help="measure a replayed call's host time too")
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the result there too')
    add_cfg_options(parser)
    args = parser.parse_args()
    if min(args.steps, *args.accumulate) < 1:
        parser.error('--steps and --accumulate take numbers of at least 1')
    if args.host_time and {*args.region.split('+')} & {'step', 'loss'}:
        parser.error('--host-time measures the calls of a module: give its path as --region')
    try:
        if args.json:  # before minutes of training
            args.json.parent.mkdir(parents=True, exist_ok=True)
        cfg = load_config(args.config, args.cfg_options)
        parity = check_parity(
            cfg,
            region=args.region,
            accumulate=args.accumulate,
            precision=args.precision,
            steps=args.steps,
            device=args.device,
        )
        print_parity(parity)
        record = parity.to_json()
        if args.host_time:
            record['host_time'] = host_time(cfg, region=args.region, precision=args.precision[0], device=args.device)
            print(f'host milliseconds of a replayed call: {json.dumps(record["host_time"])}')
    except (ConfigError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + '\n')
    return 0 if parity.equal else 1


if __name__ == '__main__':
    raise SystemExit(main())
