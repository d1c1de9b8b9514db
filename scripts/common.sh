# Sourced by the scripts beside it: where things are, and how to speak to the user.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# The distribution's Python, whatever version managers put first in PATH: its headers and its
# `venv` are what scripts/packages.txt installs.
system_python=/usr/bin/python3
cache=${STEPPE_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME must be set, or STEPPE_CACHE}/.cache}/steppe}

say() { printf '== %s\n' "$*" >&2; }

die() {
  printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2
  exit 1
}

# The project's files that have one of the given endings: tracked, or new and not ignored.
project_files() { # ENDING…
  local patterns=() ending
  for ending in "$@"; do patterns+=("*.$ending"); done
  git -C "$root" ls-files --cached --others --exclude-standard -- "${patterns[@]}" |
    while read -r file; do if [ -f "$root/$file" ]; then printf '%s\n' "$file"; fi; done
}
