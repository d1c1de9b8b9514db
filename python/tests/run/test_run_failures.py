"""What goes wrong on the way: the job ends within seconds, names what failed, and leaves nothing running."""

import contextlib
import os
import signal
import time

import pytest
from steppe_program import LONG, read_metrics, read_status, wait_until
from test_run_launchers import torchrun

_LONG = [*LONG, "lr_scheduler.type=constant"]


def verdict(job) -> str:
    """The parent's last words: the cause, then how the ranks ended."""
    said = [line for line in job.output.splitlines() if line.startswith("[launch] ")]
    assert len(said) == 2, job.output
    assert job.output.count(said[0].removeprefix("[launch] ")) == 1
    return said[0]


def expect_failed(job, words):
    said = verdict(job)
    status = read_status(job.folder)
    assert status["state"] == "failed"
    for word in words:
        assert word in said
        assert word in status["reason"]
    return status


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_dies(start, rank):
    job = start("--ranks", 2, sets=_LONG)
    job.wait_for_step(2)
    os.kill(job.rank(rank), signal.SIGKILL)
    assert job.wait() == 128 + signal.SIGKILL
    expect_failed(job, [f"rank {rank} failed", "SIGKILL"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_hangs(start, rank):
    job = start("--ranks", 2, sets=[*_LONG, "comm.timeout=3"])
    job.wait_for_step(2)
    os.kill(job.rank(rank), signal.SIGSTOP)
    assert job.wait() == 1
    status = expect_failed(job, [f"rank {rank} failed"])
    if rank != 0:
        assert "no progress for 3 s (comm.timeout)" in status["reason"]
        assert 2 <= status["step"] <= read_metrics(job.folder)[-1]["step"]


def test_torchrun_shows_the_rank_that_hangs(start, free_port):
    job = start(sets=[*_LONG, "comm.timeout=3"], launcher=torchrun(free_port))
    job.wait_for_step(2)
    rank = job.rank(1)
    os.kill(rank, signal.SIGSTOP)
    wait_until(lambda: "failed: " in job.output, "the others have noticed")
    os.kill(rank, signal.SIGCONT)  # torchrun gives what does not heed its SIGTERM half a minute
    assert job.wait() == 1
    words = "no progress for 3 s (comm.timeout)"
    said = [line for line in job.output.splitlines() if "failed: " in line]
    assert f"rank 1 failed: {words}" in said[0], job.output
    root_cause = job.output.partition("Root Cause")[2]
    assert words in root_cause  # of rank 1 itself, or of rank 0, which names it
    assert "rank 1 failed: " in root_cause or "rank      : 1 " in root_cause
    assert words in read_status(job.folder)["reason"]


def test_torchrun_shows_the_rank_that_dies(start, free_port):
    job = start(sets=_LONG, launcher=torchrun(free_port))
    job.wait_for_step(2)
    victim = job.rank(1)
    os.kill(victim, signal.SIGKILL)
    assert job.wait() == 1
    root_cause = job.output.partition("Root Cause")[2]
    assert f"Signal 9 (SIGKILL) received by PID {victim}" in root_cause or "rank 1 failed: " in root_cause


def test_the_parent_dies(start):
    job = start("--ranks", 2, sets=_LONG)
    job.wait_for_step(1)
    job.process.kill()
    assert job.wait() == -signal.SIGKILL  # and its ranks with it


@pytest.mark.parametrize(
    ("lr", "ranks", "words"),
    [
        # Weights of 1e38: the first layer's output overflows. Of 1e30: only gradients do.
        ("1e38", 1, ["step 2", "first seen in layer 0 on rank 0"]),
        ("1e38", 2, ["step 2", "first seen in layer 0 on rank 0"]),
        ("1e30", 2, ["step 2", "first seen in the gradient of layer 1", "on rank 0"]),
    ],
)
def test_a_loss_that_is_not_finite_stops_the_run(start, lr, ranks, words):
    job = start("--ranks", ranks, sets=[*_LONG, f"optimizer.lr={lr}"])
    assert job.wait() == 1
    status = expect_failed(job, [*words, "not finite", "training.on_nonfinite"])
    assert status["step"] == 1
    assert [metrics["step"] for metrics in read_metrics(job.folder)] == [1]


def test_steps_that_are_not_finite_are_skipped(start):
    sets = [*_LONG, "training.steps=5", "optimizer.lr=1e30", 'training.on_nonfinite="skip"']
    job = start("--ranks", 2, sets=sets)
    assert job.wait() == 0, job.output
    assert read_status(job.folder) == {"state": "finished", "reason": "", "step": 5}
    first, *skipped = read_metrics(job.folder)
    assert "nonfinite" not in first
    for metrics in skipped:
        assert metrics["nonfinite"] == {"grad_norm": "nan"}
        assert metrics["grad_norm"] is None
        # Weights that had taken the gradient would make the loss NaN.
        assert metrics["loss"] == pytest.approx(skipped[0]["loss"], abs=1e-3)
        assert f"warning: step {metrics['step']} skipped: not finite, first seen in" in job.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_after_the_step(start, number):
    job = start("--ranks", 2, sets=_LONG)
    job.wait_for_step(2)
    job.process.send_signal(number)
    assert job.wait() == 0, job.output
    last = read_metrics(job.folder)[-1]["step"]
    assert read_status(job.folder) == {"state": "stopped", "reason": number.name, "step": last}
    assert f"stopped by {number.name} after step {last}" in job.output
    assert "peak memory of the fullest rank" in job.output


def test_two_signals_within_seconds_are_one(start):
    # A step of some 100 ms at least, so that the second comes before its end.
    job = start("--ranks", 2, sets=[*_LONG, "training.global_batch_size=64"])
    job.wait_for_step(1)
    ranks = [job.rank(0), job.rank(1)]
    for _ in range(2):
        job.process.terminate()
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):  # faster than this test
                os.kill(rank, signal.SIGTERM)
        time.sleep(0.02)
    assert job.wait() == 0, job.output
    assert read_status(job.folder)["state"] == "stopped"
    assert read_status(job.folder)["step"] == read_metrics(job.folder)[-1]["step"]


def test_a_signal_to_a_run_alone(start):
    job = start(sets=_LONG)
    job.wait_for_step(1)
    job.process.terminate()
    assert job.wait() == 0, job.output
    assert read_status(job.folder)["state"] == "stopped"
