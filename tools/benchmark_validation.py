#!/usr/bin/env python
"""Time the validation of a config: its parts, and whole passes eager and captured, side by side in one run."""

import argparse
import json
import sys
from pathlib import Path

import torch
from rich.console import Console

from lucid.apis import CheckpointError, ConfigError, load_config
from lucid.apis.options import add_cfg_options
from lucid.apis.validation_time import print_times, validation_time

EXAMPLES = """examples:
  tools/benchmark_validation.py configs/yolo_capture.py
  tools/benchmark_validation.py configs/yolo_capture.py --checkpoint work_dirs/yolo_capture/best.pth --workers 4
  tools/benchmark_validation.py configs/yolo/segment_n_shapes.py --batches 4 --rounds 3 --json work_dirs/validation.json
"""


def main() -> int:
    """Parse the command line and measure; 2 where nothing could be measured, 1 where variants differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=Path, help='config file')
    parser.add_argument('--checkpoint', type=Path, metavar='FILE', help='weights to evaluate (default: random ones)')
    parser.add_argument('--batches', type=int, default=16, metavar='N', help='of a pass, at most (default: 16)')
    parser.add_argument('--rounds', type=int, default=5, metavar='N', help='turns of a variant (default: %(default)s)')
    parser.add_argument('--workers', type=int, default=0, metavar='N', help='a variant with so many processes too')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the result there too')
    add_cfg_options(parser)
    args = parser.parse_args()
    if min(args.batches, args.rounds) < 1 or args.workers < 0:
        parser.error('--batches and --rounds take numbers of at least 1, --workers of at least 0')
    console = Console(width=120)
    try:
        if args.json is not None:  # before minutes of measuring
            args.json.parent.mkdir(parents=True, exist_ok=True)
        found = validation_time(
            load_config(args.config, args.cfg_options),
            checkpoint=args.checkpoint,
            num_batches=args.batches,
            rounds=args.rounds,
            num_workers=args.workers,
        )
    except (ConfigError, CheckpointError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        console.print('There is no CUDA card: nothing is captured, and its times say nothing about one.')
    print_times(found, console)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + '\n')
    return 0 if found['same'] else 1


if __name__ == '__main__':
    sys.exit(main())
