#!/usr/bin/env python
"""Print the resolved config: Python that can be saved and used as a config, coloured on a terminal."""

import argparse
import sys
from pathlib import Path

from mmengine.config import Config
from rich.console import Console
from rich.syntax import Syntax

from lucid.apis import ConfigError, complete, load_config
from lucid.apis.options import add_cfg_options

EXAMPLES = """examples:
  tools/print_config.py configs/yolo/detect_s_coco.py
  tools/print_config.py configs/yolo_capture.py --cfg-options train_cfg.max_epochs=4 > mine.py
"""


def main() -> int:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=Path, help='config file')
    add_cfg_options(parser)
    args = parser.parse_args()
    try:
        cfg = complete(load_config(args.config, args.cfg_options))
    except ConfigError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    text = Config(cfg.to_dict()).pretty_text
    if sys.stdout.isatty():
        Console().print(Syntax(text, 'python'))
    else:
        print(text)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
