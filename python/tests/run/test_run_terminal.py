"""A live line on a terminal, a plain log elsewhere, and no color for those who want none."""

import os
import pty
import re
import threading

import pytest

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def on_terminal(start):
    """What a run writes to a terminal."""

    def run(**variables) -> str:
        ours, theirs = pty.openpty()
        seen = bytearray()

        def read():
            try:
                while piece := os.read(ours, 4096):
                    seen.extend(piece)
            except OSError:
                return  # every end of the other side is closed

        reader = threading.Thread(target=read)
        reader.start()
        job = start("--ranks", 2, stderr=theirs, TERM="xterm", **variables)
        os.close(theirs)
        status = job.wait()
        reader.join()
        os.close(ours)
        assert status == 0, seen.decode()
        return seen.decode()

    return run


def test_a_live_line_on_a_terminal(on_terminal):
    shown = on_terminal()
    assert "5/5" in shown
    assert re.search(r"\r(?!\n)[^\n]*\d/5", shown)  # a step's line starts over the one before
    assert "info: step" not in _COLOR.sub("", shown)  # no line of the log per step
    assert _COLOR.search(shown)
    assert "peak memory of the fullest rank" in shown


def test_no_color_on_a_terminal(on_terminal):
    shown = on_terminal(NO_COLOR="1")
    assert "5/5" in shown
    assert re.search(r"\r(?!\n)[^\n]*\d/5", shown)
    assert not _COLOR.search(shown)


def test_a_plain_log_elsewhere(start):
    job = start("--ranks", 2)
    assert job.wait() == 0, job.output
    assert "\x1b" not in job.output
    assert "\r" not in job.output
    steps = [line for line in job.output.splitlines() if re.search(r"info: step \d/5  loss ", line)]
    assert len(steps) == 5
    for name in ("gnorm", "lr", "tokens/s", "TFLOP/s", "peak", "left"):
        assert all(name in line for line in steps)
