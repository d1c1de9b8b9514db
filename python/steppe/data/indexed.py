"""Writes Megatron's indexed format: PREFIX.bin (tokens) and PREFIX.idx (where each document lies).

PREFIX.idx, little-endian: 9 bytes "MMIDIDX\\0\\0"; uint64 version 1; uint8 dtype code; uint64 sequence count;
uint64 count of document bounds (documents + 1); int32 tokens per sequence; int64 first byte of each sequence;
int64 sequence at which each document begins, and the end. Here a document is one sequence.
"""

import os
import struct
from array import array
from pathlib import Path

import numpy as np

from steppe.data.errors import PrepareError

MAGIC = b"MMIDIDX\x00\x00"
DTYPE_CODES = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}
_MAX_LENGTH = 2**31 - 1  # lengths are int32
_CHUNK = 1 << 20  # documents per write of the index, so that no second copy of it is made


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 below 65,500 entries, as Megatron chooses, else int32."""
    return np.dtype(np.uint16 if vocab_size < 65500 else np.int32)


class IndexedWriter:
    """Writes under temporary names; `finish` renames. Memory: 4 bytes per document.

    A document may come in several `add` calls and be taken back until `end_document`.
    """

    def __init__(self, prefix: Path, dtype: np.dtype):
        self.prefix = prefix
        self.dtype = np.dtype(dtype)
        self._lengths = array("i")
        self._length = 0  # tokens of the open document
        self._tokens = 0  # tokens of the ended ones
        self._bin_partial = Path(f"{prefix}.bin.partial")
        self._idx_partial = Path(f"{prefix}.idx.partial")
        self._bin = open(self._bin_partial, "wb")  # noqa: SIM115 (closed by finish or discard)

    @property
    def num_documents(self) -> int:
        return len(self._lengths)

    @property
    def num_tokens(self) -> int:
        return self._tokens

    def add(self, tokens: np.ndarray) -> None:
        self._bin.write(np.ascontiguousarray(tokens, dtype=self.dtype))
        self._length += len(tokens)

    def end_document(self) -> None:
        if self._length > _MAX_LENGTH:
            raise PrepareError(
                f"{self.prefix}.idx: document {len(self._lengths)} has {self._length} tokens; "
                f"the format holds at most {_MAX_LENGTH}: split it"
            )
        self._lengths.append(self._length)
        self._tokens += self._length
        self._length = 0

    def take_back(self) -> None:
        """Forgets the open document."""
        if self._length:
            self._bin.seek(self._tokens * self.dtype.itemsize)
            self._bin.truncate()
            self._length = 0

    def finish(self) -> None:
        _sync_and_close(self._bin)
        with open(self._idx_partial, "wb") as idx:
            self._write_index(idx)
            _sync_and_close(idx)
        # The old index goes first: a crash in between leaves no index that fits another .bin.
        Path(f"{self.prefix}.idx").unlink(missing_ok=True)
        os.replace(self._bin_partial, f"{self.prefix}.bin")
        os.replace(self._idx_partial, f"{self.prefix}.idx")

    def discard(self) -> None:
        self._bin.close()
        self._bin_partial.unlink(missing_ok=True)
        self._idx_partial.unlink(missing_ok=True)

    def _write_index(self, idx) -> None:
        count = len(self._lengths)
        idx.write(MAGIC)
        idx.write(struct.pack("<QBQQ", 1, DTYPE_CODES[self.dtype], count, count + 1))
        lengths = np.frombuffer(self._lengths, dtype=np.int32) if count else np.zeros(0, np.int32)
        idx.write(lengths)
        first_byte = 0
        for begin in range(0, count, _CHUNK):
            sizes = lengths[begin : begin + _CHUNK].astype(np.int64) * self.dtype.itemsize
            ends = first_byte + np.cumsum(sizes)
            idx.write(ends - sizes)
            first_byte = int(ends[-1])
        for begin in range(0, count + 1, _CHUNK):
            idx.write(np.arange(begin, min(begin + _CHUNK, count + 1), dtype=np.int64))


def _sync_and_close(file) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
