"""A recipe for a model, a length and a number of GPUs: written, planned, prepared, trained; or refused."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from steppe_program import clean_environment, read_metrics
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

_PYTHON = Path(__file__).parents[2]
_TINY = Qwen3MoeConfig(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=257,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    intermediate_size=24,
    max_position_embeddings=64,
)
# Few parameters, and many bytes a token.
_WIDE = Qwen3MoeConfig(
    num_hidden_layers=2,
    hidden_size=12288,
    num_attention_heads=96,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=1024,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
    intermediate_size=6144,
)


@pytest.fixture(scope="session")
def model(recipe, tmp_path_factory):
    """A tiny model of transformers with its tokenizer; the folder's name is an awkward one."""
    folder = tmp_path_factory.mktemp("models") / 'a "tiny" model'
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(_TINY).save_pretrained(folder)
    shutil.copy(recipe.parent / "prepared" / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="session")
def wide(tmp_path_factory):
    """A config.json alone."""
    folder = tmp_path_factory.mktemp("wide")
    _WIDE.save_pretrained(folder)
    return folder


@pytest.fixture
def run(program, tmp_path):
    def call(*command, status=0, **variables):
        done = subprocess.run(
            [str(part) for part in command],
            cwd=tmp_path,
            env=clean_environment(**variables),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return call


@pytest.fixture
def init(program, run, recipe):
    def call(folder, *arguments, gpus=2, length=64, status=0, launcher=()):
        command = [*launcher, program, "init", "--model", folder, "--data", recipe.parent / "text"]
        return run(*command, "--gpus", gpus, "--seq-length", length, *arguments, status=status)

    return call


def test_the_recipe_is_planned_prepared_and_trained(program, init, run, model, tmp_path):
    assert init(model, "--output", "run.toml").stdout == ""
    text = (tmp_path / "run.toml").read_text()
    written = tomllib.loads(text)
    assert written["model"] == {"path": str(model)}
    assert written["training"]["seq_length"] == 64
    assert text.startswith("# For 2 ranks on this machine")
    assert "# It fits: " in text
    assert "layouts, " in text
    for section in ("parallelism", "dispatch", "loss", "activation_checkpoint", "offload", "optimizer"):
        assert f"\n[{section}]  # " in text

    run(program, "plan", "run.toml", "--world-size", 2)
    prepare = [sys.executable, "-m", "steppe.data", "prepare", "run.toml", "--processes", "1"]
    run(*prepare, PYTHONPATH=_PYTHON, PATH=os.environ["PATH"])
    run(program, "train", "run.toml", "--ranks", 2, "--set", "training.steps=3", "--set", "optimizer.lr=1e-3")
    losses = [line["loss"] for line in read_metrics(tmp_path / "runs/run") if "loss" in line]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


def test_without_an_output_it_is_printed(init, model, wide):
    assert tomllib.loads(init(model).stdout)["model"] == {"path": str(model)}
    # Without weights the tokenizer is the user's to name.
    printed = init(wide, "--hardware", "A100", length=65536).stdout
    written = tomllib.loads(printed)
    assert written["model"] == {"config": str(wide / "config.json")}
    assert "tokenizer" not in written["data"]
    assert '# tokenizer = "' in printed


def test_weights_without_a_tokenizer_leave_it_to_the_user(init, model, tmp_path):
    assert '# tokenizer = "' not in init(model).stdout
    folder = tmp_path / "bare"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("tokenizer*"))
    printed = init(folder).stdout
    assert tomllib.loads(printed)["model"] == {"path": str(folder)}
    assert '# tokenizer = "' in printed


def test_the_recipe_for_gpus_fits_them(program, init, run, wide):
    init(wide, "--hardware", "A100", "--output", "wide.toml", length=131072)
    found = json.loads(run(program, "plan", "wide.toml", "--world-size", 2, "--json").stdout)
    assert found["fits"]
    assert found["seq_length"] == 131072
    assert found["hardware"] == "A100"


def test_a_length_too_long_for_the_gpus(init, wide, tmp_path):
    output = ("--hardware", "A100", "--output", "wide.toml")
    said = init(wide, *output, gpus=1, length=1 << 20, status=1).stderr
    assert "no layout of 1 ranks fits A100" in said
    assert "queries, keys, values" in said
    assert not (tmp_path / "wide.toml").exists()
    # What would fit is said, and does.
    length = int(said.split("training.seq_length = ")[1].split()[0])
    assert length > 100_000
    init(wide, *output, gpus=1, length=length)


def test_a_file_that_is_there_is_left_alone(init, model, tmp_path):
    (tmp_path / "run.toml").write_text("mine")
    said = init(model, "--output", "run.toml", status=2).stderr
    assert "run.toml exists already" in said
    assert (tmp_path / "run.toml").read_text() == "mine"


def test_a_disk_that_takes_no_more_is_no_obstacle_later(init, model, tmp_path):
    full = ("env", "--ignore-signal=XFSZ", "prlimit", "--fsize=100")
    said = init(model, "--output", "run.toml", status=2, launcher=full).stderr
    assert "cannot write run.toml: File too large" in said
    assert list(tmp_path.iterdir()) == []
    init(model, "--output", "run.toml")
    assert tomllib.loads((tmp_path / "run.toml").read_text())["model"] == {"path": str(model)}


def test_a_folder_without_a_model(init, tmp_path):
    said = init(tmp_path, "--output", "run.toml", status=2).stderr
    assert f"--model must be a config.json or a folder with one, got {tmp_path}" in said
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    said = init(tmp_path, "--output", "run.toml", status=2).stderr
    assert 'model_type = "bert"' in said
    assert not (tmp_path / "run.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hardware", "H300"), "--hardware: must be auto, A100, H100, H200, B200, got H300"),
        (
            ("--output", "no/such/folder/run.toml"),
            "run.toml: there is no folder no/such/folder",
        ),
    ],
)
def test_options_with_a_mistake(init, model, arguments, words):
    assert words in init(model, *arguments, status=2).stderr


def test_data_that_is_elsewhere_is_noted(program, run, model):
    command = [program, "init", "--model", model, "--data", "corpus.jsonl", "--gpus", 1, "--seq-length", 64]
    done = run(*command)
    assert "note: there is no corpus.jsonl here" in done.stderr
    assert tomllib.loads(done.stdout)["data"]["train"] == [{"path": "corpus.jsonl"}]
    for elsewhere, named in (("stdlib:", {}), ("corpus/*.jsonl", {"name": "train"})):
        done = run(*command[:5], elsewhere, *command[6:])
        assert "note:" not in done.stderr
        assert tomllib.loads(done.stdout)["data"]["train"] == [{"path": elsewhere} | named]
    nothing = run(*command[:5], "", *command[6:], status=2)
    assert '--data must name what to train on, got ""' in nothing.stderr


def test_weights_that_are_not_read_are_noted(init, model, tmp_path):
    folder = tmp_path / "pickled"
    folder.mkdir()
    shutil.copy(model / "config.json", folder)
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    done = init(folder)
    assert f"note: {folder} holds no .safetensors: the recipe starts from random weights" in done.stderr
    assert tomllib.loads(done.stdout)["model"] == {"config": str(folder / "config.json")}
    assert "note:" not in init(model).stderr
