"""Where the files of data sets lie: the folder that ``MOIETY_DATA`` names, then the cache of this user."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "MOIETY_DATA"


def cache_folder() -> Path:
    """Where fetched files lie, by the convention of the platform; it need not be there."""
    import platformdirs

    return platformdirs.user_cache_path("moiety", appauthor=False) / "data"


def named_folder() -> Path | None:
    """The folder that ``MOIETY_DATA`` names, if it is set to something."""
    folder = os.environ.get(VARIABLE, "")
    return Path(folder) if folder else None


def target_folder() -> Path:
    """Where files are fetched to: the folder that ``MOIETY_DATA`` names, else the cache."""
    return named_folder() or cache_folder()


def find_file(file: str) -> Path | None:
    """The first file of that name in the folders, if there is one."""
    folders = [folder for folder in (named_folder(), cache_folder()) if folder is not None]
    return next((folder / file for folder in folders if (folder / file).is_file()), None)
