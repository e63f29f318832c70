"""Print parameters, multiply-adds and the bytes floor of a config's network, layer by layer."""

import argparse
import json
from pathlib import Path

from lucid.apis.analysis import analyze, print_cost


def main() -> int:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', type=Path, help='config file')
    parser.add_argument('--image-size', type=int, nargs='+', help="side, or height and width (default: the config's)")
    parser.add_argument('--num-classes', type=int, help="number of classes (default: the config's, else 80)")
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the numbers there too')
    args = parser.parse_args()
    if args.image_size and len(args.image_size) > 2:
        parser.error('--image-size takes one side, or height and width')
    size = args.image_size and (args.image_size[0], args.image_size[-1])
    cost = analyze(args.config, image_size=size, num_classes=args.num_classes)
    print_cost(cost)
    if args.json:
        args.json.write_text(json.dumps(cost.to_json(), indent=2) + '\n')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
