"""Directories and files of a server: are they there, whose are they, who reads them, is there room?"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from agenttx_server.doctor.findings import Finding, Level
from agenttx_server.settings import Settings

__all__ = ["look_at_disk"]

MIB = 1 << 20
LITTLE_BYTES = 1 << 30
TOO_LITTLE_BYTES = 128 * MIB
LITTLE_INODES = 1000


def look_at_disk(settings: Settings) -> Iterator[Finding]:
    """Look at the directories that the settings name, and at files that hold secrets."""
    directories = [
        ("data directory", "--data-dir", settings.data_dir),
        ("outbox", "--outbox-file", settings.outbox_file.parent),
    ]
    if settings.fs_tools:
        directories += [
            ("files' directory", "--fs-root", settings.fs_root),
            ("files' backups", "--fs-backup-dir", settings.fs_backup_dir),
        ]
    for what, flag, path in directories:
        yield from _directory(what, flag, path)
    yield from _room(settings.data_dir)
    for what, secret in _secret_files(settings):
        yield from _secret(what, secret)


def _directory(what: str, flag: str, path: Path) -> Iterator[Finding]:
    try:
        status = path.stat()
    except FileNotFoundError:
        parent = next((one for one in path.absolute().parents if one.exists()), Path("/"))
        if os.access(parent, os.W_OK | os.X_OK):
            yield Finding(Level.OK, what, f"{path} is not there yet; a server makes it")
        else:
            yield Finding(
                Level.ERROR,
                what,
                f"{path} is not there and can't be made: {parent} is not writable by {_me()}",
                f"make it: install --directory --owner={_me()} --mode=0700 {path}; or name another place by {flag}",
            )
        return
    except OSError as error:
        yield Finding(
            Level.ERROR,
            what,
            f"{path}: {error.strerror}",
            f"let the server's user reach the directories above it, or name another place by {flag}",
        )
        return
    if not stat.S_ISDIR(status.st_mode):
        yield Finding(
            Level.ERROR,
            what,
            f"{path} is no directory",
            f"move the file away, or name another place by {flag}",
        )
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            Level.ERROR,
            what,
            f"{path} is not writable by {_me()}; its owner is user {status.st_uid}, mode {_mode(status)}",
            f"chown -R {_me()} {path}, or run the server as its owner",
        )
    elif status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        yield Finding(
            Level.WARNING, what, f"{path} is writable by everybody, mode {_mode(status)}", f"chmod o-w {path}"
        )
    else:
        yield Finding(Level.OK, what, str(path))


def _room(data_dir: Path) -> Iterator[Finding]:
    place = next(
        (one for one in (data_dir.absolute(), *data_dir.absolute().parents) if one.exists()), Path("/")
    )
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize
    said = f"{free / MIB:,.0f} MiB free under {place}"
    remedy = "free some, or move the data directory; `agenttx serve --retention-seconds` bounds what ended transactions keep"
    if free < TOO_LITTLE_BYTES:
        yield Finding(Level.ERROR, "disk", said, remedy)
    elif free < LITTLE_BYTES:
        yield Finding(Level.WARNING, "disk", said, remedy)
    else:
        yield Finding(Level.OK, "disk", said)
    # Some file systems have no fixed number of them, and say 0 of 0.
    if room.f_files and room.f_favail < LITTLE_INODES:
        yield Finding(
            Level.ERROR, "disk", f"{room.f_favail:,} inodes left under {place}", "remove small files there"
        )


def _secret_files(settings: Settings) -> Iterator[tuple[str, Path]]:
    if settings.tls_key is not None:
        yield "TLS key", settings.tls_key
    if settings.database_url.startswith("sqlite"):
        yield "database file", Path(settings.database_url.removeprefix("sqlite:///"))


def _secret(what: str, path: Path) -> Iterator[Finding]:
    try:
        status = path.stat()
        with path.open("rb"):
            pass
    except FileNotFoundError:
        # A database is made by the first server; the rest was asked for by name.
        if what != "database file":
            yield Finding(Level.ERROR, what, f"{path} is not there", "put it there, or change --tls-key")
        return
    except OSError as error:
        yield Finding(Level.ERROR, what, f"{path}: {error.strerror}", f"let {_me()} read it")
        return
    if status.st_mode & stat.S_IROTH and not _is_hidden(path):
        yield Finding(
            Level.WARNING,
            what,
            f"{path} is readable by everybody, mode {_mode(status)}",
            f"chmod o-rwx {path}",
        )
    else:
        yield Finding(Level.OK, what, f"{path}, mode {_mode(status)}")


def _is_hidden(path: Path) -> bool:
    """Whether a directory above keeps others out, whatever the file's own mode is."""
    return any(not parent.stat().st_mode & stat.S_IXOTH for parent in path.absolute().parents)


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"


def _me() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
