"""The compiled operators: STEPPE_TORCH_OPS, or what stands in build/."""

import os

import pytest

from steppe.ops import load_library


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    try:
        load_library(os.environ.get("STEPPE_TORCH_OPS"))
    except FileNotFoundError as error:
        pytest.fail(str(error), pytrace=False)
