#!/usr/bin/env python
"""Print what replays do to gradients that stay in graph memory, with a shared pool and with separate ones."""

import argparse

from lucid.apis.device_option import device_option
from lucid.apis.pool_table import measure_pool, print_pool_table
from lucid.models.layers.scale import SCALES

EXAMPLES = """examples:
  tools/pool_table.py
  tools/pool_table.py --image-size 64 --batch-size 2 --device cpu
"""


def main() -> int:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--scale', default='n', help='of the detector (default: %(default)s)')
    parser.add_argument('--image-size', type=int, default=320, help='side of its images (default: %(default)s)')
    parser.add_argument('--batch-size', type=int, default=8, help='images of a micro-batch (default: %(default)s)')
    parser.add_argument(
        '--device', type=device_option, help='cpu, cuda or cuda:N (default: a CUDA card where there is one)'
    )
    args = parser.parse_args()
    if args.scale not in SCALES:
        parser.error(f'--scale takes one of {", ".join(SCALES)}')
    if min(args.image_size, args.batch_size) < 1 or args.image_size % 32:
        parser.error('--image-size takes a multiple of 32, --batch-size a number of at least 1')
    print_pool_table(
        measure_pool(scale=args.scale, image_size=args.image_size, batch_size=args.batch_size, device=args.device)
    )
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
