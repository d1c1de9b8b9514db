"""What is kept of attention, and where: decided before the run starts, the same in its plan."""

import json
import re
import subprocess

import pytest
from steppe_program import clean_environment, read_metrics

_SELECTIVE = ("activation_checkpoint.mode=selective", "training.steps=1")


def _plan(program, recipe, sets):
    overrides = [part for one in sets for part in ("--set", one)]
    command = [program, "plan", recipe, *overrides, "--world-size", "2", "--json"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=300)
    return json.loads(done.stdout)


def _log(job, rank=0):
    return (job.folder / "logs" / f"rank_{rank}.log").read_text()


# On a CPU hardware.device_memory limits the tensors that stand for a device's.
@pytest.mark.parametrize("spare_outputs", [0, 1, 2])
def test_train_keeps_what_its_plan_says(program, recipe, start, spare_outputs):
    sets = (*_SELECTIVE, "hardware.threads_per_rank=1", "model.num_hidden_layers=3")
    without = _plan(program, recipe, (*sets, "activation_checkpoint.mode=full"))
    all_kept = _plan(program, recipe, sets)["kept"]
    text = re.search(r"3 of 3 layers on the device \(([\d.]+)(\w+)\)", all_kept)
    assert text, all_kept
    of_all = float(text[1]) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[text[2]]
    memory = without["peak_bytes"] + int((spare_outputs + 0.5) * of_all / 3)
    sets = (*sets, f'hardware.device_memory="{memory}B"')
    kept = _plan(program, recipe, sets)["kept"]
    assert f"attention outputs: {spare_outputs} of 3 layers on the device" in kept

    job = start("--ranks", "2", sets=sets)
    assert job.wait() == 0, job.output
    assert kept in _log(job)
    assert read_metrics(job.folder)[0]["peak_bytes"] <= memory


def test_a_recipe_that_says_too_few_ranks_of_a_node_gives_no_rank_more_than_its_share(start):
    sets = ("offload.activations=sco", 'offload.host_budget="64KiB"', "training.steps=1")
    job = start("--ranks", "2", sets=(*sets, "hardware.ranks_per_node=1"))
    assert job.wait() == 0, job.output
    log = _log(job)
    assert "hardware.ranks_per_node = 1, but 2 ranks are on a node" in log
    share = re.search(r"in host memory \(([\d.]+)(\w+) a rank\)", log)
    assert float(share[1]) * {"B": 1, "KiB": 2**10}[share[2]] <= 32 * 2**10
