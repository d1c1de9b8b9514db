"""Finds the input files and cuts them into pieces of work, in a fixed order, without holding much of them.

A piece is what one worker encodes at a time: some whole small files, a stretch of one large file, some lines
of JSON, or some texts of a Parquet column. Workers read and decode plain files themselves.
"""

import fnmatch
import glob
import gzip
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from steppe.data.errors import PrepareError

PIECE_BYTES = 1 << 20  # of small files, lines or texts together
STRETCH_BYTES = 8 << 20  # of a large file; it is cut after a line's end
TYPES = ("auto", "text", "jsonl", "parquet")
_TEST_FOLDERS = {"test", "tests", "idle_test"}
_SKIPPED_FOLDERS = {"__pycache__", "site-packages", "dist-packages", "node_modules"}


@dataclass(frozen=True)
class Input:
    """One entry of the user's: a file, a folder, a glob, or `stdlib:` (`stdlib:tests` with its tests)."""

    path: str
    type: str = "auto"
    include: tuple[str, ...] = ()  # globs for the files of a folder; a match of name or relative path counts
    text_key: str = "text"


@dataclass(frozen=True)
class File:
    path: Path
    type: str  # text, jsonl or parquet
    text_key: str


@dataclass
class Piece:
    kind: str  # files, stretch, lines, texts
    file: Path  # the last one it comes from
    text_key: str = "text"
    paths: list[Path] = field(default_factory=list)
    begin: int = 0  # of a stretch, in bytes
    end: int = 0
    is_last: bool = True  # the document ends here
    lines: list[tuple[int, bytes]] = field(default_factory=list)  # with their numbers, from 1
    texts: list[str | None] = field(default_factory=list)
    progress: int = 0  # bytes of input on disk that end with this piece
    size: int = 0  # bytes of text


def find_files(inputs: list[Input]) -> list[File]:
    """All files, each entry's sorted by path. PrepareError for a path that is not there or holds nothing."""
    files: list[File] = []
    for entry in inputs:
        if entry.type not in TYPES:
            raise PrepareError(f"{entry.path}: type must be one of {', '.join(TYPES)}, got {entry.type!r}")
        found = _paths_of(entry)
        if not found:
            globs = f" that matches {', '.join(entry.include)}" if entry.include else ""
            raise PrepareError(f"{entry.path}: holds no file{globs}")
        for path in found:
            if entry.type == "auto" and path.suffix == ".json" and not Path(entry.path).is_dir():
                raise PrepareError(
                    f"{path}: may be text or records; say so with --type (`type` in a recipe): text, or "
                    "jsonl for an object on each line"
                )
            kind = type_of(path) if entry.type == "auto" else entry.type
            files.append(File(path, kind, entry.text_key))
    return files


def type_of(path: Path) -> str:
    name = path.name.lower()
    if name.endswith((".jsonl", ".jsonl.gz")):
        return "jsonl"
    return "parquet" if name.endswith(".parquet") else "text"


def _paths_of(entry: Input) -> list[Path]:
    if entry.path in ("stdlib:", "stdlib:tests"):
        root = Path(sysconfig.get_paths()["stdlib"])
        skipped = set() if entry.path == "stdlib:tests" else _TEST_FOLDERS
        return _walk(root, entry.include or ("*.py",), skipped)
    path = Path(entry.path)
    if path.is_dir():
        return _walk(path, entry.include, set())
    if path.is_file():
        return [path]
    matches = sorted(Path(match) for match in glob.glob(entry.path, recursive=True))
    if not matches:
        raise PrepareError(f"{entry.path}: no such file or folder")
    return [
        file
        for match in matches
        for file in (_walk(match, entry.include, set()) if match.is_dir() else [match])
    ]


def _raise(error: OSError) -> None:
    """A folder that cannot be read is not passed over."""
    raise error


def _walk(root: Path, include: tuple[str, ...], skipped: set[str]) -> list[Path]:
    found = []
    for folder, folders, names in os.walk(root, onerror=_raise):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS | skipped
        )
        for name in sorted(names):
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            wanted = not include or any(
                fnmatch.fnmatch(name, g) or fnmatch.fnmatch(relative, g) for g in include
            )
            if not wanted or name.startswith("."):
                continue
            if path.is_file():
                found.append(path)
            else:
                print(f"note: {path} is no file, or a link to none: passed over", file=sys.stderr)
    return found


class _Budget:
    """Stops the input after so many bytes of text; the first document always fits."""

    def __init__(self, max_bytes: int | None):
        self._left = max_bytes
        self._first = True

    def takes(self, size: int) -> bool:
        if self._left is None:
            return True
        if size > self._left and not self._first:
            self._left = -1  # what follows must not fit either, or the order would have holes
            return False
        self._first = False
        self._left -= size
        return True


def cut(files: list[File], max_bytes: int | None = None) -> Iterator[Piece]:
    """Pieces in the order of the files; those of one file in its order."""
    budget = _Budget(max_bytes)
    small = Piece("files", Path())
    for file in files:
        size = file.path.stat().st_size
        if file.type == "text" and size <= STRETCH_BYTES:
            if not budget.takes(size):
                break
            small.paths.append(file.path)
            small.file = file.path
            small.progress += size
            small.size += size
            if small.size >= PIECE_BYTES:
                yield small
                small = Piece("files", Path())
            continue
        if small.paths:
            yield small
            small = Piece("files", Path())
        if file.type == "text":
            if not budget.takes(size):
                break
            yield from _stretches(file, size)
        else:
            yield from (_json_lines if file.type == "jsonl" else _parquet_texts)(file, size, budget)
    if small.paths:
        yield small


def _stretches(file: File, size: int) -> Iterator[Piece]:
    with open(file.path, "rb") as stream:
        begin = 0
        while begin < size:
            end = min(begin + STRETCH_BYTES, size)
            if end < size:
                end = _line_end_before(stream, begin, end)
            yield Piece(
                "stretch",
                file.path,
                begin=begin,
                end=end,
                is_last=end == size,
                progress=end - begin,
                size=end - begin,
            )
            begin = end


def _line_end_before(stream, begin: int, end: int) -> int:
    window = min(end - begin, 1 << 16)
    stream.seek(end - window)
    tail = stream.read(window)
    newline = tail.rfind(b"\n")
    if newline >= 0:
        return end - window + newline + 1
    # No line ends nearby: at least no character is cut. Its continuation bytes are 10xxxxxx.
    for back in range(4):
        stream.seek(end - back)
        byte = stream.read(1)
        if byte and byte[0] & 0xC0 != 0x80:
            return end - back
    return end


def _json_lines(file: File, size: int, budget: _Budget) -> Iterator[Piece]:
    with open(file.path, "rb") as raw:
        is_gzip = file.path.name.lower().endswith(".gz")
        stream = gzip.GzipFile(fileobj=raw) if is_gzip else raw
        piece = Piece("lines", file.path, file.text_key)
        done = 0
        number = 0
        try:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                if not budget.takes(len(line)):
                    break
                piece.lines.append((number, line))
                piece.size += len(line)
                if piece.size >= PIECE_BYTES:
                    at = raw.tell()
                    piece.progress, done = at - done, at
                    yield piece
                    piece = Piece("lines", file.path, file.text_key)
        except (OSError, EOFError) as error:
            raise PrepareError(f"{file.path}:{number + 1}: cannot be read: {error}") from error
        piece.progress = size - done
        if piece.lines:
            yield piece


def _parquet_texts(file: File, size: int, budget: _Budget) -> Iterator[Piece]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file.path)
    except (pyarrow.ArrowException, OSError) as error:
        raise PrepareError(f"{file.path}: is not a Parquet file: {error}") from error
    with table:
        if file.text_key not in table.schema_arrow.names:
            raise PrepareError(
                f"{file.path}: has no column {file.text_key!r}; "
                f"its columns are {', '.join(table.schema_arrow.names)}: name one with --text-key"
            )
        kind = table.schema_arrow.field(file.text_key).type
        if pyarrow.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise PrepareError(f"{file.path}: column {file.text_key!r} must be of type string, got {kind}")
        rows = max(1, table.metadata.num_rows)
        piece = Piece("texts", file.path)
        done = seen = 0
        for batch in table.iter_batches(batch_size=256, columns=[file.text_key]):
            for text in batch.column(0).to_pylist():
                seen += 1
                length = len(text.encode()) if text is not None else 0
                if not budget.takes(length):
                    if piece.texts:
                        yield piece
                    return
                piece.texts.append(text)
                piece.size += length
                if piece.size >= PIECE_BYTES:
                    at = size * seen // rows
                    piece.progress, done = at - done, at
                    yield piece
                    piece = Piece("texts", file.path)
        piece.progress = size - done
        if piece.texts:
            yield piece
