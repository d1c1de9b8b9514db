"""Two jobs in one folder."""

import signal

from steppe_program import LONG, read_metrics, read_status, wait_until


def test_a_folder_in_use_is_refused_and_its_run_goes_on(start, tmp_path):
    folder = tmp_path / "run"
    first = start("--ranks", 2, folder=folder, sets=LONG)
    first.wait_for_step(2)
    second = start("--ranks", 2, folder=folder, sets=LONG)
    assert second.wait() == 1, second.output
    assert f'run.folder = "{folder}" is in use: process {first.rank(0)} on ' in second.output
    assert read_status(folder)["state"] == "running"
    step = max(m["step"] for m in read_metrics(folder))
    first.wait_for_step(step + 1)
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 0, first.output
    steps = [m["step"] for m in read_metrics(folder)]
    assert steps == list(range(1, len(steps) + 1))


def test_a_job_waits_for_one_that_is_on_its_way_out(start, tmp_path):
    folder = tmp_path / "run"
    first = start("--ranks", 2, folder=folder, sets=LONG)
    first.wait_for_step(2)
    second = start("--ranks", 2, folder=folder, sets=LONG)
    first.end()  # as `kill -9` would
    wait_until(lambda: "goes on from" in second.output, "the second job goes on")
    second.wait_for_step(3)
