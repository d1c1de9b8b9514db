"""A run that counts in epochs."""

import math
import re

import numpy as np
from steppe_program import read_metrics


def without_steps(recipe, folder):
    """A copy of the recipe that leaves the length to training.epochs."""
    text = re.sub(r"(?m)^steps = .*\n", "", recipe.read_text(), count=1)
    assert text != recipe.read_text()
    path = folder / "epochs.toml"
    path.write_text(text)
    return path


def _trained(folder):
    return [m for m in read_metrics(folder) if "loss" in m]


def test_epochs_are_as_many_steps_as_the_data_takes(start, recipe, tmp_path):
    counted = without_steps(recipe, tmp_path)
    sets = ["validation.at_start=false", "checkpoint.interval=0", "training.global_batch_size=40"]
    job = start("--ranks", 2, sets=[*sets, "training.epochs=0.5"], recipe=counted)
    assert job.wait() == 0, job.output
    half = _trained(job.folder)
    resolved = (job.folder / "recipe.toml").read_text()
    assert "epochs = 0.5" in resolved
    assert f"training.epochs = 0.5: {len(half)} steps" in job.output
    assert f"steps = {len(half)}\n" in resolved

    # Every token of the training data has one place in a sequence of an epoch.
    (index,) = recipe.parent.rglob("*.idx")
    tokens = index.with_suffix(".bin").stat().st_size // np.dtype(np.uint16).itemsize
    seq_length = int(re.search(r"seq_length = (\d+)", counted.read_text()).group(1))
    expected = math.ceil(0.5 * tokens / seq_length / 40)
    assert abs(len(half) - expected) <= 1 + expected // 20, (len(half), expected)

    # Of steps and epochs, steps win.
    job = start(sets=[*sets, "training.epochs=3", "training.steps=2"], recipe=counted)
    assert job.wait() == 0, job.output
    assert len(_trained(job.folder)) == 2


def test_more_steps_than_anyone_takes_are_refused(start, recipe, tmp_path):
    job = start(recipe=without_steps(recipe, tmp_path), sets=["training.epochs=1e30"])
    assert job.wait() == 2
    assert "training.epochs = 1e+30 would take" in job.output


def test_a_layout_that_does_not_work_is_found_in_the_recipe(start, recipe, tmp_path):
    counted = without_steps(recipe, tmp_path)
    counted.write_text(counted.read_text() + "\n[parallelism]\nulysses_degree = 2\n")
    line = counted.read_text().splitlines().index("ulysses_degree = 2") + 1
    job = start("--ranks", 3, recipe=counted, sets=["training.epochs=1"])
    assert job.wait() == 2
    assert "divide the number of ranks W=3, got 2" in job.output
    assert f"(parallelism.ulysses_degree: {counted}:{line})" in job.output


def test_a_recipe_with_neither_is_told_of_both(start, recipe, tmp_path):
    job = start(recipe=without_steps(recipe, tmp_path))
    assert job.wait() == 2
    assert "training.steps" in job.output
    assert "training.epochs" in job.output
