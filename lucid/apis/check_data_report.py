"""The report of a check as a file, and the pictures of an earlier one."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from lucid.apis.check_data_types import DataCheck

NAME = 'report.json'


def write_report(check: DataCheck, pictures: Sequence[Path], json_file: Path | None) -> None:
    """Write ``report.json`` beside the pictures, and the same to another file.

    Args:
        check: What was found.
        pictures: Files in ``check.out``.
        json_file: The other file, if any; its folder is made.
    """
    content = {**check.to_json(), 'pictures': [picture.name for picture in pictures]}
    for path in filter(None, (check.out / NAME, json_file)):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f'{path.name}.part')
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + '\n')
        os.replace(part, path)


def remove_pictures(out: Path) -> None:
    """Remove the pictures that an earlier report in a folder names, so that none is taken for one of today."""
    try:
        names = json.loads((out / NAME).read_text())['pictures']
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in names if isinstance(names, list) else ():
        path = out / Path(str(name)).name
        if path.suffix == '.png' and path.is_file():
            path.unlink()
