#!/usr/bin/env python
"""Measure the data path of a config: images per second by way and workers, and what it adds to a captured step."""

import argparse
import json
import sys
from pathlib import Path

from lucid.apis import ConfigError, load_config
from lucid.apis.data_rate import data_rates
from lucid.apis.data_ways import WAYS
from lucid.apis.device_option import device_option
from lucid.apis.options import add_cfg_options
from lucid.apis.training_pair import PRECISIONS

EXAMPLES = """examples:
  tools/data_rate.py configs/yolo/detect_n_bccd.py --json rates.json --cfg-options data_root=/data/bccd
  tools/data_rate.py configs/yolo/detect_n_bccd.py --ways pool files --workers 4 --no-step
  tools/data_rate.py configs/yolo_capture.py --ways host --workers 1 2 --no-step --cfg-options image_size=640

ways: host: workers draw; pool: drawn on the device, images kept there; files: the same, every image decoded each time
"""


def main() -> int:
    """Parse the command line and measure; 2 where nothing could be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=Path, help='config file')
    parser.add_argument('--ways', nargs='+', choices=WAYS, default=list(WAYS), help='default: all')
    parser.add_argument(
        '--workers', type=int, nargs='+', default=[1, 2, 4, 8], metavar='N', help='processes of one thread (1 2 4 8)'
    )
    parser.add_argument('--no-step', action='store_true', help='time no training step')
    parser.add_argument('--seconds', type=float, default=1.5, metavar='S', help='of a round (default: %(default)s)')
    parser.add_argument('--rounds', type=int, default=3, metavar='N', help='of each figure (default: %(default)s)')
    parser.add_argument('--precision', choices=tuple(PRECISIONS), default='bf16', help='of the step (%(default)s)')
    parser.add_argument(
        '--device',
        type=device_option,
        help='cuda, cuda:N or cpu; the CPU draws too, but its times say nothing of a card',
    )
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the result there too')
    add_cfg_options(parser)
    args = parser.parse_args()
    if args.rounds < 1 or min(args.workers) < 0 or args.seconds <= 0:
        parser.error('--rounds takes a number of at least 1, --workers of at least 0, --seconds one above 0')
    try:
        if args.json:  # before minutes of measuring
            args.json.parent.mkdir(parents=True, exist_ok=True)
        found = data_rates(
            load_config(args.config, args.cfg_options),
            workers=args.workers,
            ways=args.ways,
            step=not args.no_step,
            seconds=args.seconds,
            rounds=args.rounds,
            precision=args.precision,
            device=args.device,
        )
    except (ConfigError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    print('\n'.join(found.lines()))
    if args.json:
        args.json.write_text(json.dumps(found.to_json(), indent=1) + '\n')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
