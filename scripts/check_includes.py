#!/usr/bin/env python3
"""Checks that the rooms of the house depend downward only (docs/architecture.md).

* `#include "steppe/ROOM/…"` may name only the including file's own room or one below it;
* layout and recipe include no Torch header: they are plain arithmetic;
* kernels that fill raw memory (`.cu`, `*_cpu.cpp` under kernels/) include no Torch header, except
  attention, which is ATen's own;
* the environment is read in cli/ only;
* a file past 400 lines is reported, though it fails nothing.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Rooms of one row do not see each other; a row sees every row before it.
ROWS = [
    ["base"],
    ["recipe"],
    ["layout"],
    ["memory"],
    ["comm"],
    ["kernels"],
    ["ops"],
    ["offload", "optim"],
    ["model"],
    ["data", "checkpoint"],
    ["train"],
    ["plan"],
    ["report"],
    ["cli"],
]
LEVEL = {room: level for level, row in enumerate(ROWS) for room in row}
ORDER = " < ".join(row[0] if len(row) == 1 else "{" + ", ".join(row) + "}" for row in ROWS)

SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
# Plain number types, of no consequence to who allocates or schedules.
PLAIN = {"c10/util/BFloat16.h", "c10/util/Half.h"}
TORCHLESS = {"recipe", "layout"}
GETENV = re.compile(r"\b(secure_)?getenv\s*\(")
LONG = 400


def room_of(path: Path) -> str:
    """The room of a file given relative to the root: `cli`, `tests`, or the folder under steppe/."""
    return path.parts[1] if path.parts[0] == "steppe" and len(path.parts) > 2 else path.parts[0]


def is_raw_kernel(path: Path) -> bool:
    if path.name == "attention_cpu.cpp":
        return False
    return room_of(path) == "kernels" and (path.suffix in {".cu", ".cuh"} or path.name.endswith("_cpu.cpp"))


def include_fault(path: Path, bracket: str, target: str) -> str | None:
    """Why `path` may not include `target`, or None if it may."""
    room = room_of(path)
    if TORCH.match(target):
        if room in TORCHLESS:
            return f"{room} is plain C++ and includes no Torch header ({target})"
        allowed = not is_raw_kernel(path) or (path.suffix == ".cpp" and target in PLAIN)
        return None if allowed else f"a kernel over raw memory includes the Torch header {target}"
    if target.startswith(("../", "./")):
        return f"{target}: include paths start at the project's root"
    if not target.startswith("steppe/"):
        return None
    if bracket == "<":
        return f"<{target}>: the project's own headers are included with quotes"
    other = Path(target).parts[1]
    if other not in LEVEL:
        return f"{target}: there is no room {other}; the rooms are {ORDER}"
    if room in LEVEL and room != other and LEVEL[other] >= LEVEL[room]:
        return f"{room} may not include {other} ({target}); the order is {ORDER}"
    return None if (ROOT / target).is_file() else f"{target}: no such file"


def faults_of(path: Path) -> list[str]:
    faults = []
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
        if match := INCLUDE.match(line):
            fault = include_fault(path, *match.groups())
        elif GETENV.search(line.split("//")[0]) and room_of(path) not in {"cli", "tests"}:
            fault = "the environment is read in cli/ only; pass the value down"
        else:
            fault = None
        if fault:
            faults.append(f"{path}:{number}: {fault}")
    return faults


def main() -> int:
    folders = [ROOT / name for name in ("steppe", "cli", "tests")]
    files = sorted(p for folder in folders for p in folder.rglob("*") if p.suffix in SUFFIXES)
    paths = [file.relative_to(ROOT) for file in files]
    unknown = {p.parts[1] for p in paths if p.parts[0] == "steppe" and len(p.parts) > 2} - LEVEL.keys()
    faults = [f"steppe/{room}: a room that scripts/check_includes.py does not know" for room in unknown]
    for path in paths:
        faults += faults_of(path)
        if (length := (ROOT / path).read_bytes().count(b"\n")) > LONG:
            print(f"{path}: {length} lines; past {LONG} a file wants splitting", file=sys.stderr)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
