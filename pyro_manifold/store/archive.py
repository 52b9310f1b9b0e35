"""Arrays in a file: NumPy's uncompressed ``.npz`` with JSON metadata, read without pickle.

``numpy.load`` opens it. Arrays begin at multiples of 64 bytes, so that they can be memory-mapped in place.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Checked = TypeVar("Checked")

_ABOUT = "about.json"
_ALIGNMENT = 64
_KINDS = "biufc"  # numeric and boolean types; an object array would have to be unpickled
_LONGEST_HEADER = 10_000
_MOST_JSON = 2**26
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same arrays make the same file


class DamagedError(ValueError):
    """Error for a file that is damaged or has the wrong content."""


def packed(about: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return the content of a file as bytes.

    Args:
        about: metadata that JSON can represent.
        arrays: the arrays by name.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, buffer, _ABOUT, json.dumps(about).encode())
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
            _add(archive, buffer, f"{name}.npy", member.getbuffer())
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, buffer: io.BytesIO, name: str, content: bytes | memoryview) -> None:
    member = zipfile.ZipInfo(name, _EPOCH)
    # An extra field pads the local header to the alignment.
    padding = -(buffer.tell() + 30 + len(name.encode()) + 4) % _ALIGNMENT
    member.extra = struct.pack("<HH", 0x4D50, padding) + bytes(padding)
    archive.writestr(member, content)


def checksum(archive: zipfile.ZipFile) -> int:
    """Return a CRC of the names, CRCs and sizes of all members; once these are verified it covers the whole file."""
    members = [(member.filename, member.CRC, member.file_size) for member in archive.infolist()]
    return zlib.crc32(json.dumps(members).encode())


def checksum_of(content: bytes) -> int:
    """Return the `checksum` of a file from its content."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return checksum(archive)


class Entry(NamedTuple):
    """Position and type of an array in a file.

    Attributes:
        dtype: data type of the elements.
        shape: shape of the array.
        offset: position of the first element, in bytes from the beginning of the file.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


class Archive:
    """A file of arrays. Arrays are read lazily, and headers are checked before they are used.

    Args:
        path: the file.

    Attributes:
        about: the JSON metadata.
        entries: ``{name: Entry}``.
        checksum: `checksum` of the members as the file lists them.

    Raises:
        DamagedError: if it is not such a file; the message names the defect.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as archive:
            self._seen = path.stat()
            self._size = self._seen.st_size
            self.checksum = checksum(archive)
            members = {member.filename: member for member in archive.infolist()}
            if len(members) != len(archive.infolist()):
                raise DamagedError(f"{path} has two members of one name: it is damaged or was tampered with.")
            self.about = self._read_about(archive, members)
            self.entries = {
                name.removesuffix(".npy"): self._entry(archive, member)
                for name, member in members.items()
                if name != _ABOUT
            }

    def __getitem__(self, name: str) -> Array:
        """Return an array, memory-mapped copy-on-write: changes to it do not reach the file."""
        entry = self.entries.get(name)
        if entry is None:
            raise DamagedError(f"{self.path} has no array '{name}': it is damaged.")
        if not self.path.exists():
            raise DamagedError(f"{self.path} was removed after it was opened: keep the folder while draws are read.")
        now = self.path.stat()
        if (now.st_ino, now.st_mtime_ns) != (self._seen.st_ino, self._seen.st_mtime_ns):
            raise DamagedError(f"{self.path} was rewritten since it was opened: open the run again.")
        if not math.prod(entry.shape):
            return np.empty(entry.shape, entry.dtype)
        return np.memmap(self.path, entry.dtype, "c", entry.offset, entry.shape)

    def check(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Raise `DamagedError` unless there is an array of this name, data type and shape."""
        entry = self.entries.get(name)
        if entry is None:
            raise DamagedError(f"{self.path} has no array '{name}': it is damaged.")
        if entry.dtype != np.dtype(dtype) or entry.shape != shape:
            raise DamagedError(
                f"{self.path}: '{name}' is {entry.dtype} {entry.shape}, expected {dtype} {shape}: it is damaged or "
                "belongs to another run."
            )

    def verify(self) -> None:
        """Raise `DamagedError` unless every member has the checksum that was written with it."""
        with self._opened() as archive:
            wrong = self._checked(archive.testzip)
        if wrong is not None:
            raise DamagedError(f"{self.path} is damaged: the checksum of '{wrong}' does not match.")

    def _opened(self) -> _Opened:
        if not self.path.is_file():
            raise DamagedError(f"{self.path} does not exist or is not a file.")
        return _Opened(self._checked(lambda: zipfile.ZipFile(self.path)))

    def _checked(self, read: Callable[[], Checked]) -> Checked:
        try:
            return read()
        except DamagedError:
            raise
        except (zipfile.BadZipFile, ValueError, EOFError, struct.error, NotImplementedError, RuntimeError) as error:
            raise DamagedError(f"{self.path} is damaged or not a file of arrays ({error}).") from error

    def _read_about(self, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> dict[str, Any]:
        member = members.get(_ABOUT)
        if member is None or member.file_size > _MOST_JSON or member.compress_type != zipfile.ZIP_STORED:
            raise DamagedError(f"{self.path} has no '{_ABOUT}' of a valid size: it is not a file of a stored run.")
        about = self._checked(lambda: json.loads(archive.read(member)))
        if not isinstance(about, dict):
            raise DamagedError(f"{self.path}: '{_ABOUT}' is not a dictionary: it is damaged.")
        return about

    def _entry(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Entry:
        if member.compress_type != zipfile.ZIP_STORED or member.file_size > self._size:
            raise DamagedError(f"{self.path}: '{member.filename}' is compressed or beyond the file: it is damaged.")
        return self._checked(lambda: self._read_entry(archive, member))

    def _read_entry(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Entry:
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran_order, dtype = read(file, max_header_size=_LONGEST_HEADER)
            header = file.tell()
        if dtype.kind not in _KINDS or (fortran_order and len(shape) > 1):
            raise DamagedError(
                f"{self.path}: '{member.filename}' has the type {dtype}, expected a row-major array of numbers; it "
                "was not read."
            )
        if math.prod(shape) * dtype.itemsize != member.file_size - header:
            raise DamagedError(
                f"{self.path}: '{member.filename}' declares the shape {shape}, but has {member.file_size - header} "
                "bytes: it is damaged."
            )
        with self.path.open("rb") as whole:
            whole.seek(member.header_offset)
            local = whole.read(30)
        name, extra = struct.unpack("<HH", local[26:30])
        offset = member.header_offset + 30 + name + extra + header
        if local[:4] != b"PK\x03\x04" or offset + math.prod(shape) * dtype.itemsize > self._size:
            raise DamagedError(f"{self.path}: '{member.filename}' is not at its position: it is damaged.")
        return Entry(dtype, tuple(shape), offset)


class _Opened:
    """Context manager that opens and closes a zip file."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    def __enter__(self) -> zipfile.ZipFile:
        return self._archive

    def __exit__(self, *_: object) -> None:
        self._archive.close()


def numbered(folder: Path, stem: str) -> Iterator[tuple[int, Path]]:
    """Yield the numbers and paths of files such as ``draws-000012.npz``, in order; other names are skipped."""
    found = []
    for path in folder.glob(f"{stem}-*.npz"):
        number = path.stem.removeprefix(f"{stem}-")
        if number.isascii() and number.isdigit() and path == numbered_path(folder, stem, int(number)):
            found.append((int(number), path))
    yield from sorted(found)


def numbered_path(folder: Path, stem: str, number: int) -> Path:
    """Return the path of the file with this stem and number."""
    return folder / f"{stem}-{number:06d}.npz"
