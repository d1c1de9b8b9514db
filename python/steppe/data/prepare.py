"""The preparation as a whole: outputs that share a folder and a tokenizer; those up to date are skipped."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from steppe.data import tokenizer as tokenizers
from steppe.data.encode import EncoderSpec, documents_of, encode_in_order
from steppe.data.errors import PrepareError
from steppe.data.indexed import IndexedWriter, token_dtype
from steppe.data.report import DatasetReport, DocumentCounter
from steppe.data.sources import File, Input, cut, find_files

_FORMAT = 1  # of PREFIX.json; files of another one are made anew
_TRAINING_BYTES = 256 << 20  # of text, that a BPE is trained on


@dataclass(frozen=True)
class Output:
    prefix: Path
    inputs: list[Input]
    trains_tokenizer: bool = True  # validation sets do not shape a trained BPE


@dataclass(frozen=True)
class Options:
    tokenizer: str
    eos: str = "auto"
    seq_length: int | None = None  # without it no document is over length
    over_length: str = "split"
    applies_over_length: bool = True  # False: only counted, training will see to it
    max_bytes: int | None = None  # of text, per output
    processes: int = 1


@dataclass(frozen=True)
class _Tokenizer:
    spec: EncoderSpec
    digest: str
    vocab_size: int
    eos: int


def prepare(outputs: list[Output], options: Options) -> None:
    """Writes each output that is not up to date, and prints what it did."""
    choice = tokenizers.parse_choice(options.tokenizer)
    folder = outputs[0].prefix.parent
    files = [find_files(output.inputs) for output in outputs]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise PrepareError(f"{folder}: cannot be made: a file stands in its place") from error
    trained_on = [
        f for output, found in zip(outputs, files, strict=True) if output.trains_tokenizer for f in found
    ]
    settings = _settings(options, choice, trained_on)
    wanted = [{**settings, "input": _fingerprint(found)} for found in files]
    stale = [i for i, output in enumerate(outputs) if not _is_up_to_date(output.prefix, wanted[i])]
    for i, output in enumerate(outputs):
        if i not in stale:
            print(f"{output.prefix}: up to date, made from the same files with the same settings")
    if not stale:
        return
    kept = [output.prefix for i, output in enumerate(outputs) if i not in stale]
    tokenizer = _make_tokenizer(choice, options, folder, trained_on, outputs, kept)
    for i in stale:
        report = _write(outputs[i].prefix, files[i], tokenizer, options, wanted[i])
        print(report.text())


def _settings(options: Options, choice, trained_on: list[File]) -> dict:
    settings = {
        "tokenizer": choice.name,
        "eos": options.eos,
        "max_bytes": options.max_bytes,
        "over_length": None,
    }
    if choice.kind == "file":
        settings["tokenizer_digest"] = hashlib.sha256(choice.path.read_bytes()).hexdigest()
    if choice.kind == "bpe":
        settings["trained_on"] = _fingerprint(trained_on)
    if options.applies_over_length and options.seq_length is not None and options.over_length != "split":
        settings["over_length"] = [options.over_length, options.seq_length]
    return settings


def _fingerprint(files: list[File]) -> str:
    digest = hashlib.sha256()
    for file in files:
        status = file.path.stat()
        key = [str(file.path.resolve()), file.type, file.text_key, status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(key).encode())
    return digest.hexdigest()


def _read_record(prefix: Path) -> dict | None:
    try:
        record = json.loads(Path(f"{prefix}.json").read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("format") == _FORMAT else None


def _is_up_to_date(prefix: Path, settings: dict) -> bool:
    record = _read_record(prefix)
    if record is None or record.get("settings") != settings:
        return False
    tokenizer = prefix.parent / "tokenizer.json"
    if (
        not tokenizer.is_file()
        or hashlib.sha256(tokenizer.read_bytes()).hexdigest() != record["tokenizer_digest"]
    ):
        return False
    sizes = {suffix: Path(f"{prefix}{suffix}") for suffix in (".bin", ".idx")}
    return all(path.is_file() and path.stat().st_size == record["bytes"][s] for s, path in sizes.items())


def _make_tokenizer(choice, options: Options, folder: Path, trained_on, outputs, kept) -> _Tokenizer:
    target = folder / "tokenizer.json"
    source = choice.path
    if choice.kind == "bpe" and kept:
        source = target  # what is up to date was made with it, and it would come out the same
    if source is not None:
        tokenizer = tokenizers.load(source)
    elif choice.kind == "bytes":
        tokenizer = tokenizers.byte_tokenizer()
    else:
        print(f"training a BPE of {choice.vocab_size:,} entries …", file=sys.stderr)
        tokenizer = tokenizers.train_bpe(choice.vocab_size, _training_texts(trained_on, options.max_bytes))
        if (size := tokenizers.vocab_size(tokenizer)) < choice.vocab_size:
            print(f"note: the text gives no more than {size:,} entries", file=sys.stderr)
    eos = tokenizers.find_eos(tokenizer, source, options.eos)
    digest = tokenizers.save(tokenizer, source, folder, lambda new: _check_folder(folder, outputs, new))
    size = tokenizers.vocab_size(tokenizer)
    return _Tokenizer(EncoderSpec(choice.kind, target, token_dtype(size)), digest, size, eos)


def _check_folder(folder: Path, outputs: list[Output], digest: str) -> None:
    """tokenizer.json belongs to all the prepared files of its folder."""
    own = {f"{output.prefix.name}.json" for output in outputs}
    for path in sorted(folder.glob("*.json")):
        record = (
            _read_record(path.with_name(path.name.removesuffix(".json"))) if path.name not in own else None
        )
        if record is not None and record.get("tokenizer_digest") != digest:
            raise PrepareError(
                f"{folder}: {path.name} was prepared with another tokenizer "
                f"({record['settings']['tokenizer']}); write these files to a folder of their own"
            )


def _training_texts(files: list[File], max_bytes: int | None) -> Iterator[str]:
    """All the text, or every n-th piece of it when there is much more than training needs."""
    total = sum(file.path.stat().st_size for file in files)
    every = max(1, -(-total // _TRAINING_BYTES))
    used = 0
    for number, piece in enumerate(cut(files, max_bytes)):
        if number % every != 0:
            continue
        for document in documents_of(piece)[0]:
            try:
                yield document.decode("utf-8")
            except UnicodeDecodeError:
                continue
        used += piece.size
        if used > 2 * _TRAINING_BYTES:  # compressed files hold more than their size says
            return


def _write(
    prefix: Path, files: list[File], tokenizer: _Tokenizer, options: Options, settings: dict
) -> DatasetReport:
    over_length = options.over_length if options.applies_over_length else "split"
    report = DatasetReport(str(prefix), over_length, options.seq_length)
    writer = IndexedWriter(prefix, tokenizer.spec.dtype)
    counter = DocumentCounter(writer, report, tokenizer.eos)
    total = sum(file.path.stat().st_size for file in files)
    if options.max_bytes is not None:
        total = min(total, options.max_bytes)
    try:
        # disable=None: no bar where standard error is not a terminal.
        with tqdm(total=total, unit="B", unit_scale=True, desc=prefix.name, disable=None) as bar:
            for piece in encode_in_order(cut(files, options.max_bytes), tokenizer.spec, options.processes):
                last = len(piece.documents) - 1
                for i, tokens in enumerate(piece.documents):
                    counter.take(tokens, piece.names[i], i < last or piece.is_last)
                report.read_bytes += piece.size
                bar.update(piece.progress)
        if report.kept == 0:
            raise PrepareError(f"{prefix}: no document is left\n{report.text()}")
        Path(f"{prefix}.json").unlink(missing_ok=True)  # until the files it describes are complete
        writer.finish()
    except BaseException:
        writer.discard()
        raise
    _write_record(prefix, tokenizer, report, settings)
    return report


def _write_record(prefix: Path, tokenizer: _Tokenizer, report: DatasetReport, settings: dict) -> None:
    record = {
        "format": _FORMAT,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": tokenizer.eos,
        "dtype": tokenizer.spec.dtype.name,
        "documents": report.kept,
        "tokens": report.tokens,
        "dropped": {"empty": report.empty, "undecodable": report.undecodable},
        "over_length": report.over,
        "length_histogram": {f"{2 ** (bits - 1)}": count for bits, count in sorted(report.histogram.items())},
        "bytes": {suffix: Path(f"{prefix}{suffix}").stat().st_size for suffix in (".bin", ".idx")},
        "tokenizer_digest": tokenizer.digest,
        "settings": settings,
    }
    partial = Path(f"{prefix}.json.partial")
    partial.write_text(json.dumps(record, indent=2) + "\n")
    os.replace(partial, f"{prefix}.json")
