#!/usr/bin/env python3
"""Checks what may not stand in any file of the project.

* an address outside a short list of hosts: sources and papers may be cited, but where packages come
  from is the business of each machine's own configuration;
* a path that exists on one machine only, or that leads out of the tree;
* marks of a merge gone wrong.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CITABLE = {
    "arxiv.org",
    "docs.nvidia.com",
    "docs.pytorch.org",
    "example.com",
    "github.com",
    "huggingface.co",
    "pytorch.org",
    "www.w3.org",
}
ADDRESS = re.compile(r"\b(?:https?|ftp)://([A-Za-z0-9.-]+)")
LOCAL = re.compile(r"^(localhost|127\.\d+\.\d+\.\d+|\d+\.\d+\.\d+\.\d+)$")
# Bare host names of the kind that serve packages.
SERVER = re.compile(
    r"\b(?:deb|ftp|archive|security|snapshot|index|registry|mirrors?|packages|files|download|conda|py\wi)"
    r"\.(?:[a-z0-9-]+\.)*(?:org|com|net|io)\b"
)
FORBIDDEN = {
    "a path out of the tree": re.compile(r"\.\./shared\b|(?<![\w.])/work/|(?<![\w.])/root/"),
    "a merge left unfinished": re.compile(r"^(<{7}|>{7}) "),
}


def fault_in(line: str) -> str | None:
    for host in ADDRESS.findall(line):
        if host.lower() not in CITABLE and not LOCAL.match(host):
            return f"the address of {host}; if it may be cited, add it to scripts/check_words.py"
    if match := SERVER.search(line):
        return f"a package server: {match.group()}"
    for what, pattern in FORBIDDEN.items():
        if pattern.search(line):
            return what
    return None


def main() -> int:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    clean = True
    for name in filter(None, listing.decode().split("\0")):
        path = ROOT / name
        if not path.is_file() or path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not text
        for number, line in enumerate(text.splitlines(), 1):
            if fault := fault_in(line):
                print(f"{name}:{number}: {fault}", file=sys.stderr)
                clean = False
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
