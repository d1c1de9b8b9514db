"""A run that a signal stops, and started again."""

import os
import signal
import time

import pytest
from steppe_program import LONG, inspect, losses, read_status, wait_until
from test_run_launchers import torchrun


@pytest.fixture(params=["ranks", "torchrun"])
def start_two(request, start, free_port):
    """Starts two ranks; the second value is what a run that was stopped by a signal leaves with."""
    if request.param == "ranks":
        return lambda **how: start("--ranks", 2, **how), 0
    # torchrun's is 1, whatever its ranks say.
    return lambda **how: start(launcher=torchrun(free_port), **how), 1


def test_sigterm_saves_and_the_next_run_goes_on(start, start_two, program, tmp_path):
    folder = tmp_path / "run"
    start_both, stopped = start_two
    job = start_both(sets=LONG, folder=folder)
    job.wait_for_step(3)
    job.process.send_signal(signal.SIGTERM)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == stopped, job.output
    step = read_status(folder)["step"]
    assert read_status(folder) == {"state": "stopped", "reason": "SIGTERM", "step": step}
    found = inspect(program, folder / "checkpoints")
    assert found.returncode == 0
    assert f"/step_{step:08}\n" in found.stdout
    before = losses(folder)
    again = start("--ranks", 2, sets=LONG, folder=folder)
    again.wait_for_step(step + 2)
    again.process.send_signal(signal.SIGTERM)
    assert again.wait() == 0, again.output
    after = losses(folder)
    assert list(after) == list(range(1, len(after) + 1))
    assert {s: after[s] for s in before} == before


def test_sigterm_during_a_save(start_two, program, tmp_path):
    folder = tmp_path / "run"
    start_both, stopped = start_two
    sets = [*LONG, "checkpoint.interval=3", "model.vocab_size=20011", "model.hidden_size=64"]
    job = start_both(sets=sets, folder=folder)
    wait_until(lambda: any(folder.glob("checkpoints/step_00000003*")), "a save is under way")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == stopped, job.output
    step = read_status(folder)["step"]
    found = inspect(program, folder)
    assert found.returncode == 0, found.stderr
    assert f"/step_{step:08}\n" in found.stdout
    assert not any(folder.glob("checkpoints/*.partial"))


def test_a_second_signal_later_leaves_at_once(start, start_two, program, tmp_path):
    """Rank 1 stands still, so that the step does not end."""
    folder = tmp_path / "run"
    start_both, stopped = start_two
    job = start_both(sets=[*LONG, "checkpoint.interval=2"], folder=folder)
    job.wait_for_step(6)
    os.kill(job.rank(1), signal.SIGSTOP)
    job.process.send_signal(signal.SIGTERM)
    time.sleep(8)  # within 5 s they would be one, and a busy machine brings them late
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == (128 + signal.SIGTERM if stopped == 0 else 1), job.output
    if stopped == 0:  # torchrun passes on no second one: it kills
        assert "asked to stop a second time" in job.output
    found = inspect(program, folder)
    assert found.returncode == 0, found.stderr
    again = start("--ranks", 2, sets=[*LONG], folder=folder)
    again.wait_for_step(8)
    again.end()
    assert found.stdout.splitlines()[0] in again.output


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_that_would_not_end_in_time_is_dropped(start, program, tmp_path, ranks):
    """Steps of seconds, however fast the machine, and no time to finish them."""
    folder = tmp_path / "run"
    long_steps = [f"training.global_batch_size={4096 * ranks}", "training.micro_batch_size=4"]
    never_saves = ["checkpoint.interval=0", "checkpoint.first_step=false", "checkpoint.grace=0.5"]
    arguments = ("--ranks", ranks) if ranks > 1 else ()
    job = start(*arguments, sets=[*LONG, *long_steps, *never_saves], folder=folder)
    job.wait_for_step(1)
    time.sleep(1)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 0, job.output
    status = read_status(folder)
    step = status["step"]
    assert status == {"state": "stopped", "reason": "SIGTERM", "step": step}
    assert f"step {step + 1} is dropped" in job.output
    before = losses(folder)
    assert list(before) == list(range(1, step + 1))
    found = inspect(program, folder)
    assert found.returncode == 0, found.stderr
    assert f"/step_{step:08}\n" in found.stdout
    again = start(*arguments, sets=[*LONG, *long_steps, *never_saves], folder=folder)
    again.wait_for_step(step + 1)
    again.end()
    assert f"goes on from {folder}/checkpoints/step_{step:08}: step {step}" in again.output
    assert {s: losses(folder)[s] for s in before} == before


@pytest.mark.parametrize("to", ["all", "a rank that waits for the plan"])
def test_a_signal_during_the_plan_ends_the_run(start, to):
    """Of so many layers that the plan takes seconds."""
    job = start("--ranks", 2, sets=[*LONG, "model.num_hidden_layers=6000", "training.global_batch_size=64"])
    wait_until(lambda: "plans the run" in job.output, "the plan is under way")
    os.kill(job.process.pid if to == "all" else job.rank(1), signal.SIGTERM)
    assert job.wait() == 0, job.output
    assert read_status(job.folder) == {"state": "stopped", "reason": "SIGTERM", "step": 0}
    assert "stopped by SIGTERM before it began" in job.output
    assert not (job.folder / "plan.json").exists()


def test_a_signal_while_ranks_load_their_libraries_waits_for_them(start):
    # Of so many layers that no step is done before a slow test looks.
    job = start("--ranks", 2, sets=[*LONG, "model.num_hidden_layers=6000"])
    wait_until(lambda: len(job.processes()) == 3, "the ranks have processes")
    job.process.terminate()
    assert job.wait() == 0, job.output
    assert read_status(job.folder) == {"state": "stopped", "reason": "SIGTERM", "step": 0}
