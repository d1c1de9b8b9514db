"""A run goes on with other settings than it began with, or says which ones it cannot."""

import shutil

import pytest
from steppe_program import read_metrics
from test_epochs import without_steps

_RUN = ["lr_scheduler.type=constant", "validation.interval=0", "validation.at_start=false"]
_EXPERTS = "parallelism.expert_parallel_degree=2"
_STREAM = ["optimizer.placement=stream", "optimizer.gradients=host", "optimizer.bucket_params=5000"]
_CPU = ["optimizer.placement=cpu", "optimizer.gradients=host", "optimizer.slots=1"]
_BF16 = ["model.compute_dtype=bfloat16", "training.gradient_dtype=bfloat16"]


def figures(folder):
    return {m["step"]: (m["loss"], m["grad_norm"]) for m in read_metrics(folder) if "loss" in m}


@pytest.fixture(scope="session")
def straight(start_once):
    """Four steps, two experts' ranks; saved after each."""
    sets = [*_RUN, _EXPERTS, "training.steps=4", "checkpoint.interval=1", "checkpoint.keep=0"]
    job = start_once("--ranks", 2, sets=sets)
    assert job.wait() == 0, job.output
    return job.folder


@pytest.fixture
def second_step(straight, tmp_path):
    """The run's folder as it was after its second step."""
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    for step in (3, 4):
        shutil.rmtree(folder / f"checkpoints/step_0000000{step}")
    (folder / "checkpoints/latest").unlink()
    return folder


@pytest.mark.parametrize("sets", [_STREAM, _CPU], ids=["stream", "cpu"])
def test_another_placement_has_the_same_bits(sets, straight, second_step, start):
    job = start("--ranks", 2, folder=second_step, sets=[*_RUN, _EXPERTS, "training.steps=4", *sets])
    assert job.wait() == 0, job.output
    assert "step 2, saved by 2 ranks" in job.output
    assert figures(second_step) == figures(straight)


@pytest.mark.parametrize(("ranks", "dtypes", "within"), [(1, [], 1e-6), (2, _BF16, 1e-2), (3, [], 1e-6)])
def test_layout_and_placement_and_dtypes_at_once(ranks, dtypes, within, straight, second_step, start):
    degree = f"parallelism.ulysses_degree={2 if ranks == 2 else 1}"
    vocab = f"parallelism.vocab_parallel_degree={ranks}"
    sets = [*_RUN, "training.steps=4", degree, vocab, "loss.kind=ring", *_STREAM, *dtypes]
    job = start(*(("--ranks", ranks) if ranks > 1 else ()), folder=second_step, sets=sets)
    assert job.wait() == 0, job.output
    expected, got = figures(straight), figures(second_step)
    assert list(got) == [1, 2, 3, 4]
    for step, (loss, norm) in got.items():
        assert (loss, norm) == pytest.approx(expected[step], rel=within)


@pytest.mark.parametrize("change", ["rope_theta=500", "num_experts_per_tok=1", "hidden_size=64"])
def test_another_model_is_refused_by_key(change, straight, second_step, start):
    sets = [*_RUN, _EXPERTS, "training.steps=4", f"model.{change}"]
    job = start("--ranks", 2, folder=second_step, sets=sets)
    assert job.wait() == 2
    key, value = change.split("=")
    assert f"is of another model than the recipe's: model.{key} was " in job.output
    assert f" and is {value}. A run goes on with the model that it began with" in job.output
    assert figures(second_step) == figures(straight)
    # The weights alone, where they have the shape.
    weights = [*sets, f"checkpoint.load={second_step}", "checkpoint.load_weights_only=true"]
    anew = start("--ranks", 2, sets=weights)
    assert anew.wait() == (2 if key == "hidden_size" else 0), anew.output


def test_weights_alone_go_to_another_length_optimizer_and_layout(second_step, start):
    load = [f"checkpoint.load={second_step}", "checkpoint.load_weights_only=true"]
    sets = [*_RUN, *load, *_CPU, *_BF16, "training.seq_length=40", "training.steps=2"]
    job = start(sets=[*sets, 'optimizer.freeze=["*embed*"]'])
    assert job.wait() == 0, job.output
    assert list(figures(job.folder)) == [1, 2]
    assert figures(job.folder)[1][0] < 5.3  # random weights: log(257) = 5.55
    # It goes on from its own, not from those weights again.
    again = start(sets=[*sets, 'optimizer.freeze=["*embed*"]', "training.steps=3"], folder=job.folder)
    assert again.wait() == 0, again.output
    assert f"goes on from {job.folder}/checkpoints/step_00000002" in again.output


def test_an_epochs_end_is_no_seam(start, recipe, tmp_path):
    """Of 131 sequences: an epoch's last batch holds the next one's first sequence."""
    counted = without_steps(recipe, tmp_path)
    sets = [*_RUN, "checkpoint.interval=0", "training.global_batch_size=33"]
    straight = start(sets=[*sets, "training.epochs=2"], recipe=counted)
    assert straight.wait() == 0, straight.output
    assert "an epoch is 131 sequences" in straight.output
    first = start(sets=[*sets, "training.epochs=1"], recipe=counted, folder=tmp_path / "run")
    assert first.wait() == 0, first.output
    last = max(figures(first.folder))
    assert last == 4
    again = start(sets=[*sets, "training.epochs=2"], recipe=counted, folder=first.folder)
    assert again.wait() == 0, again.output
    assert f"step {last}, saved by 1 rank" in again.output
    assert figures(first.folder) == figures(straight.folder)
