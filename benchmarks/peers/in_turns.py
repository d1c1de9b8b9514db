"""What the benchmarks that call `steppe bench OPERATOR --peers` have in common."""

import json
import os
import subprocess
from collections.abc import Callable, Iterable

from step_vs_transformers import RESULTS, ROOT, peers_python


def peer_versions(*packages: str) -> dict[str, str]:
    """Of packages in the peers' environment."""
    script = (
        f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {packages!r}}}))"
    )
    command = [peers_python(), "-I", "-c", script]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def bench_rows(operator: str, sizes: dict[str, int], threads: int, flags: Iterable[str]) -> list[dict]:
    """The JSON lines that `steppe bench OPERATOR` prints."""
    command = [str(ROOT / "build" / "steppe"), "bench", operator, "--json", *flags]
    for name, value in sizes.items():
        command += [f"--{name}", str(value)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return [json.loads(line) for line in lines.splitlines()]


def write_results(name: str, result: dict, report: Callable[[dict], str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(report(result))
    print(report(result))
