"""Whether results can be written where a user wants them, known before anything is computed."""

import os
from pathlib import Path


def folder_problem(path: str | Path) -> str | None:
    """Why a folder cannot be there, or be made there, for writing; None where it can. Nothing is made."""
    place = Path(path).absolute()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    if not there.is_dir():
        return f'{there} is a file; choose another folder'
    if not os.access(there, os.W_OK | os.X_OK):
        return f'{there} may not be written to; choose another folder'
    return None


def file_problem(path: str | Path) -> str | None:
    """Why a file cannot be written, or replaced; None where it can. Nothing is made."""
    if Path(path).is_dir():
        return f'{path} is a folder; give the name of a file'
    return folder_problem(Path(path).parent)
