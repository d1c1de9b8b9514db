"""Reads indexed files independently of what writes them."""

import struct
from pathlib import Path

import numpy as np

_DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def read_indexed(prefix) -> list[list[int]]:
    """The tokens of each document, field by field from the format's description."""
    index = Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, bounds = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    at = 34
    lengths = np.frombuffer(index, "<i4", sequences, at)
    pointers = np.frombuffer(index, "<i8", sequences, at + 4 * sequences)
    starts = np.frombuffer(index, "<i8", bounds, at + 12 * sequences)
    assert len(index) == at + 12 * sequences + 8 * bounds
    assert starts.tolist() == list(range(sequences + 1))
    tokens = Path(f"{prefix}.bin").read_bytes()
    dtype = np.dtype(_DTYPES[code])
    assert len(tokens) == int(lengths.sum()) * dtype.itemsize
    return [
        np.frombuffer(tokens, dtype, length, pointer).tolist()
        for length, pointer in zip(lengths, pointers, strict=True)
    ]
