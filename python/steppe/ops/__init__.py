"""Steppe's operators for PyTorch programs. They live in build/libsteppe_torch_ops.so, which
`./dev build --target steppe_torch_ops` makes."""

from steppe.ops.library import load_library
from steppe.ops.vocab_loss import vocab_loss

__all__ = ["load_library", "vocab_loss"]
