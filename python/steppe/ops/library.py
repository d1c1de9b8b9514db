"""Where the compiled operators are, and loading them."""

import functools
from pathlib import Path

import torch

_NAME = "libsteppe_torch_ops.so"
_DEFAULT = Path(__file__).resolve().parents[3] / "build" / _NAME


@functools.cache
def load_library(path: str | Path | None = None) -> None:
    """Registers torch.ops.steppe, from `path` or the source tree's build. Operators call it themselves; call
    it before the first of them if the library is elsewhere."""
    if path is None and hasattr(torch.ops.steppe, "vocab_loss"):
        return  # loaded from elsewhere
    chosen = Path(path) if path is not None else _DEFAULT
    if not chosen.is_file():
        raise FileNotFoundError(f"{chosen} is missing: ./dev build --target steppe_torch_ops makes {_NAME}")
    torch.ops.load_library(str(chosen))
