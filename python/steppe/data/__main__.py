"""The command line: python -m steppe.data prepare …"""

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path

from steppe.data.errors import PrepareError
from steppe.data.prepare import Options, Output, prepare
from steppe.data.recipe import read_recipe
from steppe.data.sources import Input

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SUFFIXES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}


def _bytes(text: str) -> int:
    digits = text.rstrip("KkMmGgIiBb")
    suffix = text[len(digits) :].lower()
    if not digits.isdigit() or int(digits) == 0 or (suffix and suffix not in _SUFFIXES):
        raise argparse.ArgumentTypeError(f"must be a size such as 30000000, 30MB or 1GiB, got {text!r}")
    return int(digits) * _SUFFIXES.get(suffix, 1)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m steppe.data")
    command = top.add_subparsers(dest="command", required=True).add_parser(
        "prepare",
        help="turn text into the indexed files that training reads",
        description="Turns text files, folders of them, .jsonl(.gz) and .parquet into PREFIX.bin and "
        "PREFIX.idx (Megatron's indexed format), with PREFIX.json and tokenizer.json beside them. A recipe "
        "(.toml) says what to read and where to write by itself.",
    )
    add = command.add_argument
    add(
        "inputs",
        nargs="+",
        help="files, folders, globs, `stdlib:` (the sources of Python's library), or a recipe",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="overrides a key of the recipe, as `steppe train --set` does; repeatable",
    )
    add("--output", type=Path, metavar="PREFIX", help="where to write; a recipe has data.prepared")
    add("--tokenizer", help="tokenizer.json or its folder, bpe:SIZE (trained on the input), or bytes")
    add("--eos", help="text or id of the end token appended to each document; auto: the tokenizer's")
    add(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="of a folder, only these files; repeatable",
    )
    add(
        "--type",
        default="auto",
        choices=("auto", "text", "jsonl", "parquet"),
        help="of the files; auto: by suffix",
    )
    add("--text-key", default="text", help="key or column that holds the text")
    add("--seq-length", type=_count, help="count the documents over this length, and treat them as follows")
    add(
        "--over-length", choices=("split", "truncate", "drop"), help="split: left whole, training splits them"
    )
    add("--max-bytes", type=_bytes, metavar="SIZE", help="stop after so much text, per output")
    add("--processes", type=_count, default=len(os.sched_getaffinity(0)), help="default: one per core")
    return top


def _job(args: argparse.Namespace) -> tuple[list[Output], Options]:
    is_recipe = len(args.inputs) == 1 and args.inputs[0].endswith(".toml")
    if is_recipe:
        for name in ("output", "seq_length", "over_length"):
            if getattr(args, name) is not None:
                raise PrepareError(f"--{name.replace('_', '-')}: the recipe says it; change {args.inputs[0]}")
        outputs, found = read_recipe(Path(args.inputs[0]), args.set)
        options = Options(**found, applies_over_length=False)
    else:
        for path in args.inputs:
            if path.endswith(".toml") and args.type == "auto":
                raise PrepareError(f"{path}: a recipe stands alone; with --type text it is text to prepare")
        if args.set:
            raise PrepareError("--set is for a recipe")
        if args.output is None or args.tokenizer is None:
            raise PrepareError("--output and --tokenizer are required without a recipe")
        if args.over_length in ("truncate", "drop") and args.seq_length is None:
            raise PrepareError(f"--over-length {args.over_length} needs --seq-length")
        if args.output.is_dir():
            raise PrepareError(
                f"--output {args.output}: is a folder; add a name, as in {args.output / 'train'}"
            )
        prefix = args.output.with_name(args.output.name.removesuffix(".bin").removesuffix(".idx"))
        outputs = [Output(prefix, [Input(path, args.type) for path in args.inputs])]
        over = args.over_length or "split"
        options = Options(args.tokenizer, seq_length=args.seq_length, over_length=over)
    include = tuple(args.include)
    outputs = [
        dataclasses.replace(
            output,
            inputs=[dataclasses.replace(i, include=include, text_key=args.text_key) for i in output.inputs],
        )
        for output in outputs
    ]
    given = {
        "tokenizer": args.tokenizer,
        "eos": args.eos,
        "max_bytes": args.max_bytes,
        "processes": args.processes,
    }
    return outputs, dataclasses.replace(options, **{k: v for k, v in given.items() if v is not None})


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    begin = time.monotonic()
    try:
        outputs, options = _job(args)
        prepare(outputs, options)
    except PrepareError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was replaced by half-written files", file=sys.stderr)
        return 130
    print(f"done in {time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
