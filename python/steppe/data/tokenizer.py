"""The kinds of tokenizer: a Hugging Face tokenizer.json, a byte-level BPE trained here, and raw bytes."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steppe.data.errors import PrepareError

END_OF_TEXT = "<|endoftext|>"
BYTES_EOS = 256
# Where a tokenizer.json stands alone, the end token goes by one of these names.
_KNOWN_EOS = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>", "<|im_end|>")
# Copied along, so that an export can give them back byte for byte.
_SIBLINGS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclass(frozen=True)
class TokenizerChoice:
    """What the user asked for, parsed: kind is "file", "bpe" or "bytes"."""

    kind: str
    name: str  # as the user wrote it
    path: Path | None = None
    vocab_size: int = 0  # of a BPE to train


def parse_choice(name: str) -> TokenizerChoice:
    if name == "bytes":
        return TokenizerChoice("bytes", name)
    if name.startswith("bpe:"):
        size = name.removeprefix("bpe:")
        if not size.isdigit() or int(size) < 257:
            raise PrepareError(
                f"tokenizer: bpe:SIZE needs a size of at least 257 (bytes and an end), got {name!r}"
            )
        return TokenizerChoice("bpe", name, vocab_size=int(size))
    path = Path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise PrepareError(
            f"tokenizer: {name!r} must be a tokenizer.json, a folder that holds one, bpe:SIZE or bytes; "
            f"there is no file {path}"
        )
    return TokenizerChoice("file", name, path=path)


def load(path: Path):
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise PrepareError(f"{path}: is not a tokenizer.json: {error}") from error


def vocab_size(tokenizer) -> int:
    """One more than the highest id: ids may leave holes."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def train_bpe(size: int, texts: Iterable[str]):
    """A byte-level BPE whose entry 0 is the end of text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_tokenizer():
    """Raw bytes as a tokenizer.json: entry b is byte b, entry 256 the end of text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    # ByteLevel writes printable Latin-1 bytes as themselves and the others as U+0100, U+0101, … in order.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    vocabulary = {chr(byte if byte in printable else next(others)): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return tokenizer


def find_eos(tokenizer, path: Path | None, eos: str) -> int:
    """The id of the end token: `eos` is its text or id, or "auto": what stands beside tokenizer.json."""
    if eos != "auto":
        token = tokenizer.token_to_id(eos)
        if token is None and eos.isdigit() and int(eos) < vocab_size(tokenizer):
            token = int(eos)
        if token is None:
            raise PrepareError(f"eos: {eos!r} is neither a token of the tokenizer nor an id below its size")
        return token
    recorded = _recorded_eos(path.parent) if path else None
    for name in ([recorded] if recorded else []) + list(_KNOWN_EOS):
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    beside = f"names {recorded!r}, which it does not have either" if recorded else "beside it names none"
    raise PrepareError(
        f"eos: {path} has none of the usual end tokens ({', '.join(_KNOWN_EOS)}), and tokenizer_config.json "
        f"{beside}; say which with --eos (or `data.eos`)"
    )


def _recorded_eos(folder: Path) -> str | None:
    try:
        token = json.loads((folder / "tokenizer_config.json").read_text()).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    return token.get("content") if isinstance(token, dict) else token


def save(tokenizer, source: Path | None, folder: Path, check: Callable[[str], None]) -> str:
    """Writes folder/tokenizer.json, byte for byte if it comes from a file; returns its SHA-256.

    `check` gets that first, and may refuse.
    """
    text = tokenizer.to_str(pretty=True).encode() if source is None else source.read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    check(digest)
    partial = folder / "tokenizer.json.partial"
    partial.write_bytes(text)
    partial.replace(folder / "tokenizer.json")
    if source is not None and source.parent.resolve() != folder.resolve():
        for name in _SIBLINGS:
            if (source.parent / name).is_file():
                shutil.copyfile(source.parent / name, folder / name)
    return digest


class Encoder:
    """Texts or bytes to ids. One per worker."""

    def __init__(self, kind: str, path: Path, dtype: np.dtype):
        self._dtype = dtype
        self._tokenizer = None if kind == "bytes" else load(path)

    def encode(self, documents: list[bytes]) -> list[np.ndarray | None]:
        """Ids of each document; None for one that is not UTF-8 (raw bytes take anything)."""
        if self._tokenizer is None:
            return [np.frombuffer(document, np.uint8).astype(self._dtype) for document in documents]
        texts: list[str] = []
        places: list[int] = []
        for place, document in enumerate(documents):
            try:
                texts.append(document.decode("utf-8"))
                places.append(place)
            except UnicodeDecodeError:
                pass
        encoded: list[np.ndarray | None] = [None] * len(documents)
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for place, encoding in zip(places, encodings, strict=True):
            encoded[place] = np.array(encoding.ids, dtype=self._dtype)
        return encoded
