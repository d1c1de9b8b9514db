"""Encodes pieces in worker processes and gives the results back in the order of the pieces."""

import json
import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steppe.data.errors import PrepareError
from steppe.data.sources import Piece
from steppe.data.tokenizer import Encoder

# Pieces under way per worker: enough that none waits, few enough that memory stays bounded.
_PENDING = 3
_encoder: Encoder | None = None  # of this worker process


@dataclass(frozen=True)
class EncoderSpec:
    kind: str  # file, bpe or bytes
    path: Path
    dtype: np.dtype


@dataclass
class EncodedPiece:
    documents: list[np.ndarray | None]  # None: not UTF-8
    names: list[str]  # of the documents, for the report
    is_last: bool  # the last document ends here
    progress: int
    size: int


def documents_of(piece: Piece) -> tuple[list[bytes], list[str]]:
    """The texts of a piece, in UTF-8, and what to call each. PrepareError names a bad line."""
    if piece.kind == "files":
        return [path.read_bytes() for path in piece.paths], [str(path) for path in piece.paths]
    if piece.kind == "stretch":
        with open(piece.file, "rb") as stream:
            stream.seek(piece.begin)
            return [stream.read(piece.end - piece.begin)], [str(piece.file)]
    if piece.kind == "texts":
        # "surrogatepass" lets a lone surrogate through to the decoder, which counts it as not UTF-8.
        texts = [(text or "").encode("utf-8", "surrogatepass") for text in piece.texts]
        return texts, [str(piece.file)] * len(texts)
    names = [f"{piece.file}:{number}" for number, _ in piece.lines]
    return [
        _text_of_line(line, name, piece.text_key) for name, (_, line) in zip(names, piece.lines, strict=True)
    ], names


def _text_of_line(line: bytes, name: str, key: str) -> bytes:
    try:
        record = json.loads(line.decode("utf-8-sig"))  # some editors put a mark before the first line
    except UnicodeDecodeError:
        return line  # counted as not UTF-8 with the others
    except json.JSONDecodeError as error:
        raise PrepareError(f"{name}: is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise PrepareError(f"{name}: is no object with a key {key!r}; a .jsonl file has one on each line")
    if key not in record:
        keys = ", ".join(map(repr, record)) or "none"
        raise PrepareError(f"{name}: has no key {key!r}; its keys are {keys}: name one with --text-key")
    text = record[key]
    if text is not None and not isinstance(text, str):
        raise PrepareError(f"{name}: {key!r} must be text, got {type(text).__name__}")
    return (text or "").encode("utf-8", "surrogatepass")


def _start_worker(spec: EncoderSpec) -> None:
    global _encoder
    _encoder = Encoder(spec.kind, spec.path, spec.dtype)


def _encode(piece: Piece, encoder: Encoder | None = None) -> EncodedPiece:
    documents, names = documents_of(piece)
    encoded = (encoder or _encoder).encode(documents)
    return EncodedPiece(encoded, names, piece.is_last, piece.progress, piece.size)


def encode_in_order(pieces: Iterable[Piece], spec: EncoderSpec, processes: int) -> Iterator[EncodedPiece]:
    if processes == 1:
        encoder = Encoder(spec.kind, spec.path, spec.dtype)
        yield from (_encode(piece, encoder) for piece in pieces)
        return
    # "spawn": the tokenizer's threads of this process must not be forked.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _start_worker, (spec,))
    try:
        pending = deque()
        for piece in pieces:
            pending.append(pool.submit(_encode, piece))
            if len(pending) >= _PENDING * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise PrepareError("a worker process died (out of memory?); try fewer with --processes") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
