"""What a recipe says about data: [data], [[data.train]], [[validation.set]]."""

import re
import tomllib
from pathlib import Path

from steppe.data.errors import PrepareError
from steppe.data.prepare import Output
from steppe.data.sources import Input

_ENTRY_KEYS = {"data.train": {"path", "name", "weight", "type"}, "validation.set": {"path", "name"}}
_STEP = re.compile(r"[A-Za-z0-9_-]+|\[\d+\]")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def default_name(path: str) -> str:
    """Of a source that nobody named, as training has it: corpus/code.jsonl.gz is code, stdlib: is stdlib."""
    name = Path(path).name
    end = re.search(r"[.:]", name[1:])
    return name[: end.start() + 1] if end else name


def override(recipe: dict, assignment: str) -> None:
    """Of `steppe train --set`: KEY=VALUE, a TOML value or plain text; data.train[0].path names an element."""
    key, equals, text = (part.strip() for part in assignment.partition("="))
    steps = [step for name in key.split(".") for step in _STEP.findall(name)]
    if not equals or not text or not steps or "".join(steps) != key.replace(".", ""):
        raise PrepareError(f"--set takes KEY=VALUE as in data.val_split=0.01, got {assignment!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    place = recipe
    try:
        for step in steps[:-1]:
            place = place[int(step[1:-1])] if step[0] == "[" else place.setdefault(step, {})
        place[int(steps[-1][1:-1]) if steps[-1][0] == "[" else steps[-1]] = value
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise PrepareError(f"--set {assignment}: the recipe has no such place") from error


def read_recipe(path: Path, overrides: list[str] = ()) -> tuple[list[Output], dict]:
    """Outputs, and the options that the recipe sets (tokenizer, eos, over_length, seq_length)."""
    try:
        with open(path, "rb") as file:
            recipe = tomllib.load(file)
    except OSError as error:
        raise PrepareError(f"{path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise PrepareError(f"{path}: is not TOML: {error}") from error
    for assignment in overrides:
        override(recipe, assignment)
    data = _table(recipe, "data", path)
    prepared = data.get("prepared")
    if not isinstance(prepared, str) or not prepared:
        raise PrepareError(f"{path}: `data.prepared` must name the folder to write to, got {prepared!r}")
    outputs: list[Output] = []
    for section in _ENTRY_KEYS:
        table, key = section.split(".")
        entries = _table(recipe, table, path).get(key, [])
        if not isinstance(entries, list):
            raise PrepareError(f"{path}: `{section}` must be written [[{section}]]: there may be several")
        for entry in entries:
            outputs.append(_output(entry, section, Path(prepared), path, outputs))
    if not outputs:
        raise PrepareError(f"{path}: has neither [[data.train]] nor [[validation.set]]: nothing to prepare")
    options = {
        "tokenizer": data.get("tokenizer", _table(recipe, "model", path).get("path")),
        "eos": str(data.get("eos", "auto")),
        "over_length": data.get("over_length", "split"),
        "seq_length": _table(recipe, "training", path).get("seq_length"),
    }
    if not isinstance(options["tokenizer"], str):
        raise PrepareError(
            f"{path}: `data.tokenizer` must be a tokenizer.json, its folder, bpe:SIZE or bytes; left out, it "
            "is the model's, where `model.path` names one"
        )
    length = options["seq_length"]
    if length is not None and (type(length) is not int or length < 1):
        raise PrepareError(f"{path}: `training.seq_length` must be a whole number above 0, got {length!r}")
    if options["over_length"] not in ("split", "truncate", "drop"):
        raise PrepareError(
            f'{path}: `data.over_length` must be "split", "truncate" or "drop", '
            f"got {options['over_length']!r}"
        )
    return outputs, options


def _table(recipe: dict, name: str, path: Path) -> dict:
    table = recipe.get(name, {})
    if not isinstance(table, dict):
        raise PrepareError(f"{path}: `{name}` must be a section, got {table!r}")
    return table


def _output(entry, section: str, folder: Path, path: Path, others: list[Output]) -> Output:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str) or not entry["path"]:
        raise PrepareError(f"{path}: each [[{section}]] needs a `path`, got {entry!r}")
    unknown = sorted(set(entry) - _ENTRY_KEYS[section])
    if unknown:
        known = ", ".join(sorted(_ENTRY_KEYS[section]))
        raise PrepareError(f"{path}: [[{section}]] has no key `{unknown[0]}`; its keys are {known}")
    source = entry["path"]
    name = entry.get("name", default_name(source))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PrepareError(f"{path}: [[{section}]] name must be of letters, digits, _, - and ., got {name!r}")
    if any(other.prefix.name == name for other in others):
        raise PrepareError(f"{path}: two entries are named {name!r}: both would be {folder / name}.bin")
    if Path(f"{source}.idx").is_file():
        raise PrepareError(
            f"{path}: {source} is indexed already; a recipe that reads it needs no `data.prepared`"
        )
    return Output(folder / name, [Input(source, entry.get("type", "auto"))], section == "data.train")
