"""What `steppe plan` says of a recipe: status 0: it fits, 1: it does not, 2: there is a mistake."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from steppe_program import ESCAPE, clean_environment, read_metrics, read_status

_RECIPES = Path(__file__).parents[3] / "recipes"
_PAPER = _RECIPES / "paper_120b_1m.toml"
# All four operators off.
_BARE = [
    "dispatch.kind=ep",
    "loss.kind=vocab_parallel",
    "offload.activations=none",
    "offload.host_budget=0",
    "optimizer.placement=resident",
]


@pytest.fixture(scope="session")
def plan(program):
    def run(recipe, *arguments, sets=(), status=0):
        overrides = [part for one in sets for part in ("--set", one)]
        command = [str(part) for part in (program, "plan", recipe, *overrides, *arguments)]
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=900)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def figures(plan):
    def run(*arguments, **options):
        return json.loads(plan(*arguments, "--json", **options).stdout)

    return run


def _world(*ranks):
    return ("--world-size", *ranks)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("demo", 2),
        ("gpt_oss_120b_128k", 8),
        ("paper_120b_1m", 16),
        ("paper_241b_1m", 32),
        ("paper_667b_1m", 64),
        ("peers_17m", 1),
        ("qwen3_235b_128k", 16),
    ],
)
def test_every_recipe_fits_what_it_is_for(plan, name, ranks):
    done = plan(_RECIPES / f"{name}.toml", *_world(ranks))
    assert "\nfits: " in done.stdout
    assert "dry run: peak" in done.stdout
    assert "guaranteed whatever the router does" in done.stdout


def test_what_it_advises_is_enough(figures):
    """Where a run does not fit, the changes named make it fit."""
    bare = figures(_PAPER, *_world(16), sets=_BARE, status=1)
    assert not bare["fits"]
    assert bare["verdict"].startswith("does not fit: ")
    assert "it fits: " in bare["advice"]
    changes = [change.replace(" = ", "=", 1) for change in bare["changes"]]
    assert 'optimizer.placement="stream"' in changes
    assert figures(_PAPER, *_world(16), sets=[*_BARE, *changes])["fits"]
    # None of them is idle: without the last one it does not fit.
    assert not figures(_PAPER, *_world(16), sets=[*_BARE, *changes[:-1]], status=1)["fits"]


def test_advice_from_the_narrowest_layout(figures):
    narrow = [f"parallelism.{axis}_degree=1" for axis in ("ulysses", "expert_parallel", "vocab_parallel")]
    found = figures(_PAPER, *_world(16), sets=[*_BARE, *narrow], status=1)
    assert "it fits: " in found["advice"]
    changes = [change.replace(" = ", "=", 1) for change in found["changes"]]
    assert any(change.startswith("parallelism.expert_parallel_degree=") for change in changes)
    assert figures(_PAPER, *_world(16), sets=[*_BARE, *narrow, *changes])["fits"]


def test_the_term_that_breaks_and_its_formula(plan):
    said = plan(_PAPER, *_world(16), sets=["optimizer.placement=resident"], status=1).stdout
    assert re.search(r"most of the peak \(layer \d backward(, chunk \d of 8)?\) is optimizer, 85\.3GiB", said)
    assert "(85.3GiB: masters and moments = 12·Θ/W)" in said
    assert 'try optimizer.placement = "stream"' in said


def test_the_host_memory_that_breaks(plan, figures):
    small = ["hardware.host_memory=720GiB"]
    said = plan(_PAPER, *_world(16), sets=small, status=1).stdout
    assert "of host memory per node, 11.8GiB more than there is" in said
    assert "masters and moments = 12·Θ/W" in said
    line = _PAPER.read_text().splitlines().index('host_budget = "400GiB"') + 1
    assert f"(offload.host_budget: {_PAPER}:{line})" in said
    (change,) = figures(_PAPER, *_world(16), sets=small, status=1)["changes"]
    assert change.startswith('offload.host_budget = "')
    assert figures(_PAPER, *_world(16), sets=[*small, change.replace(" = ", "=", 1)])["fits"]


def test_a_length_that_is_too_long_and_one_that_fits(figures):
    long = ["training.seq_length=16777216", "dispatch.max_chunks=64"]
    found = figures(_PAPER, *_world(16), sets=long, status=1)
    assert "not enough" in found["advice"] or "no key of the recipe" in found["advice"]
    length = int(found["advice"].split("training.seq_length = ")[1].split()[0])
    assert length > 4_000_000
    sets = [*long, *(change.replace(" = ", "=", 1) for change in found.get("changes", []))]
    assert figures(_PAPER, *_world(16), sets=[*sets, f"training.seq_length={length}"])["fits"]


_TWO = [f"parallelism.{axis}_degree=2" for axis in ("ulysses", "expert_parallel", "vocab_parallel")]


def test_a_model_that_no_length_makes_fit(plan):
    said = plan(_PAPER, *_world(2), sets=_TWO, status=1).stdout
    assert re.search(r"GiB: [\w ,]+ = [^)]*Θe/Ep", said), said
    assert "no training.seq_length does: more ranks, or more memory" in said


@pytest.mark.parametrize("search", [("--tune",), ("--maximize", "context"), ("--maximize", "batch")])
def test_a_model_that_cannot_fit_on_any_layout(plan, search):
    sets = [] if search == ("--tune",) else _TWO
    done = plan(_PAPER, *_world(2), *search, "--json", sets=sets, status=1)
    found = json.loads(done.stdout)
    assert not found["fits"]
    if search != ("--tune",):  # of as many ranks the recipe's own layout cannot be
        assert found["peak_bytes"] > 0
        assert {"expected_bytes", "guaranteed_bytes", "host_bytes", "terms", "by_category"} <= found.keys()
    else:
        assert found["error"].startswith("the recipe as it is has no plan: [layout] parallelism.")
    said = found["verdict"]
    assert said in done.stderr
    assert re.search(r"GiB(: | \()[\w ,]+ = [^)]*Θe/Ep", said), said
    assert re.search(r"it would fit with \d+ ranks" if search == ("--tune",) else ": try ", said), said


@pytest.mark.parametrize(
    ("ranks", "sets", "words"),
    [
        (
            6,
            [],
            [
                "parallelism.ulysses_degree must",
                "divide the number of ranks W=6, got 16",
                "paper_120b_1m.toml:{ulysses_degree}",
            ],
        ),
        (
            16,
            ["model.num_experts=100"],
            [
                "must divide model.num_experts=100, got 16",
                "model.num_experts: --set",
                ":{expert_parallel_degree}",
            ],
        ),
        (
            16,
            ["model.num_attention_heads=12"],
            [
                "must be a multiple of num_key_value_heads = 8",
                "model.num_attention_heads: --set",
                ":{num_key_value_heads}",
            ],
        ),
        (
            16,
            ["profiler.steps=[20000]"],
            ["profiler.steps = [20000] (--set) must be at most training.steps = 10000"],
        ),
        (16, ["plan.routing_profile=50-4"], ["routing profile", '"50-4"']),
        (16, ["hardware.preset=H300"], ["hardware.preset", "(--set)", '"H200"']),
    ],
    ids=["degree", "experts", "heads", "profiler", "profile", "preset"],
)
def test_a_recipe_with_a_mistake(plan, ranks, sets, words):
    lines = _PAPER.read_text().splitlines()
    at = {line.split(" = ")[0]: number for number, line in enumerate(lines, 1) if " = " in line}
    said = plan(_PAPER, *_world(ranks), sets=sets, status=2).stderr
    assert len(said.splitlines()) == 1
    for word in words:
        assert word.format(**at) in said, said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (_world("abc"), ["--world-size: must be a whole number from 1 to", "got abc"]),
        (_world(0), ["--world-size: must be a whole number from 1 to", "got 0"]),
        (_world(99999999999), ["--world-size: must be a whole number from 1 to", "got 99999999999"]),
        ((*_world(16), "--rank", "first"), ["--rank: must be a whole number from 0 to", "got first"]),
        ((*_world(16), "--rank", 16), ["--rank must be below --world-size = 16, got 16"]),
        ((*_world(16), "--maximize", "speed"), ["--maximize", "context", "batch"]),
        ((*_world(16), "--timeline", "/nowhere/at/all"), ["cannot write /nowhere/at/all"]),
    ],
)
def test_options_with_a_mistake(plan, arguments, words):
    said = plan(_PAPER, *arguments, status=2).stderr
    for word in words:
        assert word in said, said
    assert len(said) < 400


def test_a_devices_limit_can_be_tried_on_a_cpu(figures, recipe):
    one = ["hardware.threads_per_rank=1"]
    peak = figures(recipe, sets=one)["peak_bytes"]
    fits = figures(recipe, sets=[*one, f"hardware.device_memory={peak}"])
    assert (fits["peak_bytes"], fits["device_memory"], fits["reserved_bytes"]) == (peak, peak, 0)
    short = figures(recipe, sets=[*one, f"hardware.device_memory={peak - 1}"], status=1)
    assert "is 1B more than the" in short["verdict"]
    # The host's memory still holds everything.
    small = [*one, f"hardware.device_memory={peak}", f"hardware.host_memory={peak + (340 << 20) - 1}"]
    assert (
        "of host memory per node, 1B more than there is" in figures(recipe, sets=small, status=1)["verdict"]
    )


def test_attention_outputs_are_kept_within_a_limit_that_is_tried(figures, recipe):
    one = ["hardware.threads_per_rank=1"]
    peak = figures(recipe, sets=one)["peak_bytes"]
    selective = [*one, "activation_checkpoint.mode=selective"]
    tight = figures(recipe, sets=[*selective, f"hardware.device_memory={peak}"])
    assert "0 of 2 layers on the device" in tight["kept"]
    roomy = figures(recipe, sets=[*selective, f"hardware.device_memory={2 * peak}"])
    assert "2 of 2 layers on the device" in roomy["kept"]


def test_training_keeps_its_plan(start, figures, recipe):
    job = start("--ranks", 2, sets=["training.steps=2", "parallelism.expert_parallel_degree=2"])
    assert job.wait() == 0, job.output
    kept = json.loads((job.folder / "plan.json").read_text())
    sets = ["parallelism.expert_parallel_degree=2", "training.steps=2", f"run.folder={job.folder}"]
    again = figures(recipe, *_world(2), sets=[*sets, "hardware.threads_per_rank=1"])
    assert kept == again
    assert not (job.folder / "plan.json.part").exists()
    first = next(line for line in read_metrics(job.folder) if line["step"] == 1)
    assert first["plan_peak_bytes"] == kept["peak_bytes"]


def test_a_step_beyond_what_the_plan_expects_is_told_of_once(start):
    """A new router is far from even, and with `ep` a rank takes whatever comes."""
    sets = [
        "parallelism.expert_parallel_degree=2",
        "dispatch.kind=ep",
        "model.moe_intermediate_size=512",
        "training.seq_length=512",
    ]
    job = start("--ranks", 2, sets=sets)
    assert job.wait() == 0, job.output
    kept = json.loads((job.folder / "plan.json").read_text())
    peaks = {line["step"]: line["peak_bytes"] for line in read_metrics(job.folder) if line["step"] > 0}
    assert len([peak for peak in peaks.values() if peak > kept["expected_bytes"]]) > 1
    assert max(peaks.values()) <= kept["guaranteed_bytes"]
    said = [line for line in ESCAPE.sub("", job.output).splitlines() if "that the plan expects" in line]
    assert len(said) == 1
    beyond = min(step for step, peak in peaks.items() if peak > kept["expected_bytes"])
    assert f"info: step {beyond}: the peak of rank " in said[0]
    assert ": expert holds " in said[0]
    assert "guarantees whatever" not in job.output


def test_training_refuses_what_cannot_fit(start, figures, recipe):
    one = ["hardware.threads_per_rank=1", "activation_checkpoint.mode=none"]
    peak = figures(recipe, sets=one)["peak_bytes"]
    sets = [*one, "training.steps=1", f"hardware.device_memory={peak - 1}"]
    job = start(sets=sets)
    assert job.wait() == 2
    said = ESCAPE.sub("", job.output)
    assert "the run does not fit" in said
    assert "plan.allow_unfit" in said
    assert "step 1" not in said
    assert read_status(job.folder)["state"] == "failed"
    kept = json.loads((job.folder / "plan.json").read_text())
    assert not kept["fits"]
    changes = [change.replace(" = ", "=", 1) for change in kept["changes"]]
    assert start(sets=[*sets, *changes]).wait() == 0
    assert start(sets=[*sets, "plan.allow_unfit=true"]).wait() == 0
