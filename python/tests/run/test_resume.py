"""A run that is stopped, killed or finished, and started again."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time

import pytest
from kill_trials import Trials, run
from steppe_program import read_metrics, read_status, wait_until
from test_run_launchers import torchrun

_LONG = ["training.steps=1000000", "validation.interval=0", "validation.at_start=false"]


def inspect(program, *arguments):
    return subprocess.run([program, "inspect", *arguments], capture_output=True, text=True, check=False)


def losses(folder):
    return {m["step"]: m["loss"] for m in read_metrics(folder) if "loss" in m}


@pytest.fixture(scope="session")
def finished(start_once):
    job = start_once("--ranks", 2, sets=["checkpoint.keep=0", "checkpoint.interval=2"])
    assert job.wait() == 0, job.output
    return job


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
    job = start_both(sets=_LONG, folder=folder)
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
    again = start("--ranks", 2, sets=_LONG, folder=folder)
    again.wait_for_step(step + 2)
    again.process.send_signal(signal.SIGTERM)
    assert again.wait() == 0, again.output
    after = losses(folder)
    assert list(after) == list(range(1, len(after) + 1))
    assert {s: after[s] for s in before} == before


def test_sigterm_during_a_save(start_two, program, tmp_path):
    folder = tmp_path / "run"
    start_both, stopped = start_two
    sets = [*_LONG, "checkpoint.interval=3", "model.vocab_size=20011", "model.hidden_size=64"]
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
    job = start_both(sets=[*_LONG, "checkpoint.interval=2"], folder=folder)
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
    again = start("--ranks", 2, sets=[*_LONG], folder=folder)
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
    job = start(*arguments, sets=[*_LONG, *long_steps, *never_saves], folder=folder)
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
    again = start(*arguments, sets=[*_LONG, *long_steps, *never_saves], folder=folder)
    again.wait_for_step(step + 1)
    again.end()
    assert f"goes on from {folder}/checkpoints/step_{step:08}: step {step}" in again.output
    assert {s: losses(folder)[s] for s in before} == before


@pytest.mark.parametrize("to", ["all", "a rank that waits for the plan"])
def test_a_signal_during_the_plan_ends_the_run(start, to):
    """Of so many layers that the plan takes seconds."""
    job = start("--ranks", 2, sets=[*_LONG, "model.num_hidden_layers=6000", "training.global_batch_size=64"])
    wait_until(lambda: "plans the run" in job.output, "the plan is under way")
    os.kill(job.process.pid if to == "all" else job.rank(1), signal.SIGTERM)
    assert job.wait() == 0, job.output
    assert read_status(job.folder) == {"state": "stopped", "reason": "SIGTERM", "step": 0}
    assert "stopped by SIGTERM before it began" in job.output
    assert not (job.folder / "plan.json").exists()


def test_a_signal_while_ranks_load_their_libraries_waits_for_them(start):
    # Of so many layers that no step is done before a slow test looks.
    job = start("--ranks", 2, sets=[*_LONG, "model.num_hidden_layers=6000"])
    wait_until(lambda: len(job.processes()) == 3, "the ranks have processes")
    job.process.terminate()
    assert job.wait() == 0, job.output
    assert read_status(job.folder) == {"state": "stopped", "reason": "SIGTERM", "step": 0}


def test_a_folder_of_another_recipe_says_which_keys_differ(start, tmp_path):
    never_saves = ["checkpoint.first_step=false", "checkpoint.interval=0"]
    killed = start(sets=[*_LONG, *never_saves], folder=tmp_path / "run")
    killed.wait_for_step(1)
    killed.end()
    refused = start(sets=[*_LONG, *never_saves, "training.steps=3"], folder=tmp_path / "run")
    assert refused.wait() == 2
    assert "training.steps (1000000 there, 3 here)" in refused.output
    assert "no complete checkpoint" in refused.output


def test_a_folder_of_other_files_is_left_alone(start, tmp_path):
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "thesis.tex").write_text("chapter")
    (folder / "recipe.toml").write_text("# by hand")
    (folder / "run.out").write_text("a launcher's")
    refused = start("--ranks", 2, folder=folder)
    assert refused.wait() == 2
    assert (
        f'run.folder = "{folder}" holds files that are not a run\'s: recipe.toml, thesis.tex'
        in refused.output
    )
    assert sorted(path.name for path in folder.iterdir()) == ["recipe.toml", "run.out", "thesis.tex"]
    for _ in range(2):  # a run's folder from then on
        beside = start("--ranks", 2, "--beside-other-files", folder=folder)
        assert beside.wait() == 0, beside.output
    assert (folder / "thesis.tex").read_text() == "chapter"
    assert (folder / "recipe.toml.old").read_text() == "# by hand"
    again = start("--ranks", 2, folder=folder)
    assert again.wait() == 0, again.output


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
    sets = [*_LONG, "checkpoint.interval=0", "checkpoint.keep=0"]
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
    job = start(sets=[*_LONG, "checkpoint.interval=0", "checkpoint.first_step=false"], folder=folder)
    job.wait_for_step(2)
    (folder / "save").touch()
    wait_until(lambda: (folder / "checkpoints/latest").exists(), "the checkpoint is there")
    assert not (folder / "save").exists()
    assert job.process.poll() is None
    job.end()


def test_a_run_with_nothing_left_to_do_keeps_its_recipe(start, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    kept = (folder / "recipe.toml").read_text()
    again = start("--ranks", 2, folder=folder, sets=["training.steps=3", "optimizer.lr=0.5"])
    assert again.wait() == 0, again.output
    assert "step 5 of 3 is done: nothing is left to do" in again.output
    assert (folder / "recipe.toml").read_text() == kept
    longer = start("--ranks", 2, folder=folder, sets=["training.steps=6", "optimizer.lr=0.5"])
    assert longer.wait() == 0, longer.output
    assert "steps = 6" in (folder / "recipe.toml").read_text()


def test_the_order_of_a_recipes_lines_does_not_make_another(start, tmp_path):
    folder = tmp_path / "run"
    never_saves = ["checkpoint.first_step=false", "checkpoint.interval=0"]
    killed = start(sets=[*_LONG, *never_saves], folder=folder)
    killed.wait_for_step(1)
    killed.end()
    sections = (folder / "recipe.toml").read_text().split("\n\n")
    (folder / "recipe.toml").write_text("\n\n".join(reversed(sections)))
    again = start(sets=[*_LONG, *never_saves], folder=folder)
    wait_until(lambda: (folder / "metrics.jsonl.old").exists(), "the run begins again")
    again.end()


def test_another_recipes_folder_is_refused(start, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    never = start(folder=folder, sets=["checkpoint.resume=never"])
    assert never.wait() == 2
    assert "holds a run already" in never.output
    other = start(folder=folder, sets=["training.seq_length=32"])
    assert other.wait() == 2
    assert "training.seq_length = 64, this run has 32" in other.output
    assert "checkpoint.load_weights_only = true" in other.output
    assert read_metrics(folder) == read_metrics(finished.folder)


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


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(start, finished, tmp_path):
    folder = tmp_path / "run"
    sets = ["checkpoint.keep=0", "checkpoint.interval=2"]
    job = start("--ranks", 2, folder=folder, sets=sets)
    assert job.wait() == 0, job.output
    shutil.rmtree(folder / "checkpoints")
    again = start("--ranks", 2, folder=folder, sets=sets)
    assert again.wait() == 0, again.output
    assert losses(folder) == losses(finished.folder)
    assert len((folder / "metrics.jsonl.old").read_text().splitlines()) == len(read_metrics(folder))


def test_a_folder_for_checkpoints_that_cannot_be_made_stops_the_run_at_once(start, tmp_path):
    (tmp_path / "file").touch()
    job = start("--ranks", 2, sets=[f"checkpoint.folder={tmp_path}/file/checkpoints", *_LONG])
    assert job.wait() == 1
    assert job.output.count("step 1 is not saved: rank 0: ") == 1
    assert "Not a directory" in job.output
    assert json.loads((job.folder / "status.json").read_text())["state"] == "failed"


def test_killed_at_random_instants(program, recipe, tmp_path):
    """A short one; the long one is scripts/kill_trials."""
    trials = Trials(program, recipe, tmp_path)
    trials.reference(80)
    counts = run(trials, count=6, inside=2)
    assert counts["inside a save"] >= 2
