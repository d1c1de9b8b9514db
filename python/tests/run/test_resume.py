"""A run that is killed or finished, its checkpoints, and another that goes on from them."""

import json
import resource
import shutil
import signal
import subprocess

import pytest
from kill_trials import Trials, run
from steppe_program import LONG, inspect, losses, read_metrics, read_status, wait_until


def test_a_finished_run_has_its_checkpoints(program, finished):
    checkpoints = finished.folder / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "latest",
        "step_00000001",
        "step_00000002",
        "step_00000004",
        "step_00000005",
    ]
    for path in (checkpoints, checkpoints / "latest", checkpoints / "step_00000005", finished.folder):
        found = inspect(program, path)
        assert found.returncode == 0, found.stderr
        assert found.stdout.startswith(f"{checkpoints}/step_00000005\nstep 5, 1280 tokens")
        assert "saved by 2 ranks: ulysses 1, expert 1, vocab 1; float32" in found.stdout
        assert "training.seq_length = 64" in found.stdout
        assert "model.layers.1.mlp.experts.3.up_proj.weight" in found.stdout
        assert "verified: " in found.stdout
    recipe = inspect(program, checkpoints, "--recipe")
    assert recipe.stdout == (finished.folder / "recipe.toml").read_text()


def test_the_log_says_where_weights_come_from(start, finished, tmp_path):
    """On the terminal and in the run's log; from a Hugging Face folder: test_hugging_face.py."""

    def says(job, words):
        return words in job.output and words in (job.folder / "logs/rank_0.log").read_text()

    checkpoint = f"{finished.folder}/checkpoints/step_00000005"
    assert says(finished, "starts with random weights: training.seed = 42")
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    (folder / "logs/rank_0.log").unlink()
    again = start(folder=folder)
    assert again.wait() == 0, again.output
    assert says(again, f"goes on from {folder}/checkpoints/step_00000005: step 5, saved by 2 ranks")
    assert "random weights" not in again.output
    load = ["training.steps=1", f"checkpoint.load={finished.folder}"]
    weights = start(sets=[*load, "checkpoint.load_weights_only=true"])
    assert weights.wait() == 0, weights.output
    assert says(weights, f"starts with the weights of {checkpoint}, saved after step 5")
    assert "random weights" not in weights.output


def test_a_damaged_checkpoint_is_named(program, finished, tmp_path):
    copy = tmp_path / "step_00000005"
    shutil.copytree(finished.folder / "checkpoints/step_00000005", copy)
    shard = copy / "rank_0001.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    found = inspect(program, copy)
    assert found.returncode == 1
    assert f"error: [checkpoint] {shard}: block 0" in found.stderr
    assert "does not match its checksum: the file is damaged" in found.stderr


def test_a_damaged_checkpoint_is_not_loaded(start, finished, tmp_path):
    copy = tmp_path / "run/checkpoints/step_00000005"
    shutil.copytree(finished.folder / "checkpoints/step_00000005", copy)
    shard = copy / "rank_0000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 0x80
    shard.write_bytes(content)
    job = start("--ranks", 2, folder=tmp_path / "run", sets=["training.steps=6"])
    assert job.wait() != 0
    assert f"{shard}: block" in job.output
    assert read_status(tmp_path / "run")["state"] == "failed"


def test_goes_on_where_it_ended(start, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    again = start("--ranks", 2, folder=folder)
    assert again.wait() == 0, again.output
    assert read_status(folder) == {"state": "finished", "reason": "", "step": 5}
    assert read_metrics(folder) == read_metrics(finished.folder)


def test_other_ranks_go_on_with_the_same_losses(start, finished, tmp_path):
    """Two ranks' third step, from one rank's second."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    shutil.copytree(finished.folder / "checkpoints/step_00000002", folder / "checkpoints/step_00000002")
    job = start(folder=folder)
    assert job.wait() == 0, job.output
    assert "goes on from" in job.output
    assert "step 2, saved by 2 ranks" in job.output
    expected = losses(finished.folder)
    got = losses(folder)
    assert list(got) == [3, 4, 5]
    for step, loss in got.items():
        assert loss == pytest.approx(expected[step], abs=1e-5)


@pytest.mark.parametrize("budget", ["auto", "1GB", "1KB"])
def test_the_copy_for_the_writer_keeps_to_its_budget(program, recipe, start, budget):
    """The run books in host memory what its plan says, rounding aside; without room, training waits."""
    sets = [f"checkpoint.host_budget={budget}", "checkpoint.interval=2"]
    job = start("--ranks", 2, sets=sets)
    assert job.wait() == 0, job.output
    overrides = [part for one in sets for part in ("--set", one)]
    command = [program, "plan", recipe, "--world-size", "2", "--json", *overrides]
    planned = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    booked = [m["host_bytes"] for m in read_metrics(job.folder) if m["step"] == 5]
    waits = "training waits while checkpoints are written"
    if budget == "1KB":
        assert job.output.count(waits) == 1
        assert "checkpoint.host_budget leaves 500B to rank 0" in job.output
        assert (booked, planned["host_bytes"]) == ([0], 0)
    else:
        assert waits not in job.output
        assert len(booked) == 1
        assert booked[0] <= planned["host_bytes"] / 2 <= 1.02 * booked[0]
        terms = {term["name"]: term["expected_bytes"] for term in planned["host_terms"]}
        assert 2 * terms["checkpoint's copy"] == planned["host_bytes"]
    assert inspect(program, job.folder).returncode == 0


def test_a_disk_that_takes_no_more(start, program, tmp_path):
    """A rank cannot write: training goes on, the checkpoint before stays, and a later save succeeds."""
    folder = tmp_path / "run"
    ignoring = ("env", "--ignore-signal=XFSZ")
    sets = [*LONG, "checkpoint.interval=0", "checkpoint.keep=0"]
    job = start("--ranks", 2, sets=sets, folder=folder, launcher=ignoring)
    wait_until(lambda: (folder / "checkpoints/latest").exists(), "the first checkpoint is there")
    before = inspect(program, folder).stdout
    rank = job.rank(1)
    unlimited = resource.prlimit(rank, resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    (folder / "save").touch()
    wait_until(lambda: "is not saved: rank 1: " in job.output, "a save has failed")
    assert "rank_0001.safetensors: File too large" in job.output
    assert f"{folder}/checkpoints/step_00000001 is untouched" in job.output
    assert inspect(program, folder).stdout == before
    assert not any(folder.glob("checkpoints/*.partial"))
    resource.prlimit(rank, resource.RLIMIT_FSIZE, unlimited)
    (folder / "save").touch()
    wait_until(lambda: len([*folder.glob("checkpoints/step_*[0-9]")]) == 2, "the next save succeeds")
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 0, job.output


def test_touching_the_file_saves(start, tmp_path):
    folder = tmp_path / "run"
    job = start(sets=[*LONG, "checkpoint.interval=0", "checkpoint.first_step=false"], folder=folder)
    job.wait_for_step(2)
    (folder / "save").touch()
    wait_until(lambda: (folder / "checkpoints/latest").exists(), "the checkpoint is there")
    assert not (folder / "save").exists()
    assert job.process.poll() is None
    job.end()


def test_weights_alone_start_another_run(start, finished, tmp_path):
    sets = [
        "training.seq_length=32",
        f"checkpoint.load={finished.folder}",
        "checkpoint.load_weights_only=true",
    ]
    job = start(folder=tmp_path / "run", sets=sets)
    assert job.wait() == 0, job.output
    got = losses(tmp_path / "run")
    assert list(got) == [1, 2, 3, 4, 5]
    assert got[1] < losses(finished.folder)[2]


def test_killed_at_random_instants(program, recipe, tmp_path):
    """A short one; the long one is scripts/kill_trials."""
    trials = Trials(program, recipe, tmp_path)
    trials.reference(80)
    counts = run(trials, count=6, inside=2)
    assert counts["inside a save"] >= 2
