import pytest

from steppe.data.__main__ import main


@pytest.fixture
def run(capsys):
    """Runs the command line in this process; returns status, standard output and error."""

    def call(*arguments, processes=1):
        given = [str(argument) for argument in arguments]
        status = main(["prepare", *given, "--processes", str(processes)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def corpus(tmp_path):
    """A source tree with an empty file, one that is not UTF-8, and hidden things."""
    root = tmp_path / "tree"
    for name, content in {
        "b.py": b"def f(x):\n    return x + 1\n",
        "a.py": "grüße = 'hällo'\n".encode(),
        "empty.py": b"",
        "broken.py": b"x = '\xff\xfe'\n",
        "notes.md": b"# Notes\n",
        "sub/c.py": b"import os\n" * 50,
        ".git/config": b"hidden",
        "__pycache__/a.py": b"cached",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root
