"""Folders that appear complete or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_target(source: Path, folder: Path) -> None:
    """Refuse a folder to make that holds something, or lies in what is read.

    Args:
        source: Folder of a data set, or a file in it.
        folder: The one to make.

    Raises:
        ValueError: Names both.
    """
    if is_inside(folder, source if source.is_dir() else source.parent):
        raise ValueError(f'{folder} is inside the source {source}, which is never written to; choose another target')
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f'{folder} is not empty; choose another target, or empty it')


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is a folder or lies in it."""
    return path.resolve().is_relative_to(folder.resolve())


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft beside a folder's place, which is moved there at the end, and removed where something failed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f'.{folder.name}-', dir=folder.parent))
    try:
        yield draft
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
