"""What a run that goes well leaves behind."""

import math
import os
import re

import pytest
from steppe_program import read_metrics, read_status
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

_TRAINED_KEYS = {
    "step",
    "loss",
    "grad_norm",
    "lr",
    "tokens",
    "tokens_per_s",
    "tflops",
    "peak_bytes",
    "peak_by_category",
    "moe/load_max_over_mean",
    "moe/load_cv",
    "moe/dead_expert_frac",
    "moe/router_entropy",
}


@pytest.fixture(scope="session")
def runs(start_once):
    """By number of ranks. OMP_NUM_THREADS is empty, which is as good as unset."""
    jobs = {}
    for ranks in (1, 2):
        jobs[ranks] = start_once("--ranks", ranks, sets=["logging.moe=detailed"], OMP_NUM_THREADS="")
        assert jobs[ranks].wait() == 0, jobs[ranks].output
    return jobs


@pytest.fixture(scope="session")
def alone(start_once):
    job = start_once()
    assert job.wait() == 0, job.output
    return job


@pytest.mark.parametrize("ranks", [1, 2])
def test_status_says_finished(runs, ranks):
    assert read_status(runs[ranks].folder) == {"state": "finished", "reason": "", "step": 5}


@pytest.mark.parametrize("ranks", [1, 2])
def test_metrics_have_one_object_per_step(runs, ranks):
    start, *steps = read_metrics(runs[ranks].folder)
    assert start["step"] == 0
    assert "loss" not in start
    assert [metrics["step"] for metrics in steps] == [1, 2, 3, 4, 5]
    for metrics in steps:
        assert metrics.keys() >= _TRAINED_KEYS
        assert metrics["tokens"] == metrics["step"] * 4 * 64
        assert metrics["num_ranks"] == ranks
        assert sum(metrics["peak_by_category"].values()) == metrics["peak_bytes"]
        load = metrics["moe/expert_load"]
        assert [sum(layer) for layer in load] == [4 * 64 * 2] * 2  # every token, top 2, both layers
    assert steps[0]["loss"] == pytest.approx(math.log(257), abs=0.05)
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.3


@pytest.mark.parametrize("ranks", [1, 2])
def test_validates_at_the_start_on_the_interval_and_at_the_end(runs, ranks):
    found = {
        m["step"]: m["validation"]["text"] for m in read_metrics(runs[ranks].folder) if "validation" in m
    }
    assert list(found) == [0, 2, 4, 5]
    losses = [one["loss"] for one in found.values()]
    assert losses == sorted(losses, reverse=True)
    assert len({one["tokens"] for one in found.values()}) == 1
    for one in found.values():
        assert one["ppl"] == pytest.approx(math.exp(one["loss"]))


def test_two_ranks_train_what_one_trains(runs):
    one, two = (read_metrics(runs[ranks].folder)[1:] for ranks in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-5)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-4)


def test_one_rank_needs_no_launcher(runs, alone):
    assert [m.get("loss") for m in read_metrics(alone.folder)] == [
        m.get("loss") for m in read_metrics(runs[1].folder)
    ]


@pytest.mark.parametrize("ranks", [1, 2])
def test_tensorboard_reads_the_figures(runs, ranks):
    events = EventAccumulator(str(runs[ranks].folder / "tensorboard"))
    events.Reload()
    steps = read_metrics(runs[ranks].folder)[1:]
    loss = events.Scalars("train/loss")
    assert [event.step for event in loss] == [1, 2, 3, 4, 5]
    assert [event.value for event in loss] == pytest.approx([metrics["loss"] for metrics in steps])
    assert [event.step for event in events.Scalars("validation/text/loss")] == [0, 2, 4, 5]
    expected = {"train/grad_norm", "train/lr", "train/tokens", "perf/tokens_per_s_per_gpu", "perf/step_s"}
    expected |= {"perf/tflops_per_gpu", "perf/data_wait_s", "memory/peak_gib", "moe/load_max_over_mean"}
    assert set(events.Tags()["scalars"]) >= expected


@pytest.mark.parametrize("ranks", [1, 2])
def test_prints_the_table_of_peaks(runs, ranks):
    output = runs[ranks].output
    assert output.count("peak memory of the fullest rank") == 1
    table = output.partition("peak memory of the fullest rank")[2].splitlines()
    assert table[1].split() == ["category", "peak", "share"]
    rows = {line.split()[0]: line.split()[-1] for line in table[2:]}
    assert {"weights", "grads", "optimizer", "attention"} <= rows.keys()
    assert rows["total"] == "100.0%"


def test_the_resolved_recipe_is_the_same_run(runs, start):
    saved = runs[1].folder / "recipe.toml"
    again = start(recipe=saved)
    assert again.wait() == 0, again.output

    def values(path):
        lines = path.read_text().splitlines()
        return [line for line in lines if not line.startswith(("#", "folder =", "threads_per_rank ="))]

    assert values(again.folder / "recipe.toml") == values(saved)
    losses = [m.get("loss") for m in read_metrics(again.folder)]
    assert losses == [m.get("loss") for m in read_metrics(runs[1].folder)]


def test_ranks_share_the_cores(runs):
    def threads(ranks):
        text = (runs[ranks].folder / "recipe.toml").read_text()
        return int(re.search(r"^threads_per_rank = (\d+)$", text, re.MULTILINE)[1])

    assert 1 <= threads(1) <= len(os.sched_getaffinity(0))
    assert threads(2) == max(1, threads(1) // 2)


def test_only_rank_0_prints_and_every_rank_logs(runs):
    output = runs[2].output
    assert output.count("step 1/5") == 1
    assert "2 ranks on" in output
    assert sorted(path.name for path in (runs[2].folder / "logs").iterdir()) == ["rank_0.log", "rank_1.log"]


@pytest.mark.parametrize("arguments", [(), ("--ranks", 2)], ids=["alone", "ranks"])
def test_a_folder_that_holds_a_run_is_refused(alone, start, arguments):
    before = {
        path: path.read_bytes() for path in alone.folder.rglob("*") if path.suffix in (".json", ".jsonl")
    }
    again = start(*arguments, folder=alone.folder, sets=["checkpoint.resume=never"])
    assert again.wait() == 2
    assert again.output.count("holds a run already") == 1
    assert str(alone.folder) in again.output
    assert "run.folder" in again.output
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(("scaling", "warnings"), [([], 1), (["factor=4", "rope_type='linear'"], 0)])
def test_rows_longer_than_the_model_is_made_for_are_warned_of_once(start, scaling, warnings):
    sets = ["training.steps=1", "model.max_position_embeddings=16"]
    job = start("--ranks", 2, sets=[*sets, *(f"model.rope_scaling.{one}" for one in scaling)])
    assert job.wait() == 0, job.output
    warning = "training.seq_length = 64 is beyond model.max_position_embeddings = 16"
    assert job.output.count(warning) == warnings
    assert job.output.count("model.rope_scaling stretches") == warnings
