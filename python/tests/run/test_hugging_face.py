"""From a Hugging Face folder, through training, and back into one."""

import json
import re
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from steppe_program import clean_environment, read_metrics
from test_epochs import without_steps
from transformers import AutoModelForCausalLM, AutoTokenizer, OlmoeConfig, Qwen3MoeConfig

_VOCABULARY = 257  # bytes, and the end of text
_COMMON = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": _VOCABULARY,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
}
_CONFIGS = {
    "qwen3_moe": Qwen3MoeConfig(**_COMMON, head_dim=8, moe_intermediate_size=16, intermediate_size=24),
    "olmoe": OlmoeConfig(**_COMMON, intermediate_size=16, clip_qkv=0.5, tie_word_embeddings=True),
}


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders by family."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(2)
    for name, config in _CONFIGS.items():
        AutoModelForCausalLM.from_config(config).save_pretrained(root / name, max_shard_size="100KB")
    return {name: root / name for name in _CONFIGS}


@pytest.fixture(scope="session")
def from_path(recipe, models, tmp_path_factory):
    """The tiny recipe with model.path in place of the model's sizes, by family."""
    root = tmp_path_factory.mktemp("recipes")
    recipes = {}
    for name, folder in models.items():
        section = f'[model]\npath = "{folder}"\ncompute_dtype = "float32"\n\n[optimizer]'
        recipes[name] = root / f"{name}.toml"
        recipes[name].write_text(
            re.sub(r"\[model\].*?\[optimizer\]", section, recipe.read_text(), flags=re.DOTALL)
        )
    return recipes


@pytest.fixture(scope="session")
def export(program):
    def run(run_folder, out, *sets):
        overrides = [part for one in sets for part in ("--set", one)]
        command = [program, "export", run_folder / "checkpoints", out, *overrides]
        return subprocess.run(command, env=clean_environment(), capture_output=True, text=True)

    return run


def _stored(folder):
    return {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}


@pytest.mark.parametrize("family", _CONFIGS)
def test_without_an_update_the_model_comes_back(family, models, from_path, start, export, tmp_path):
    # So small a rate changes no weight of fp32.
    still = ["training.steps=1", "optimizer.lr=1e-30", "parallelism.expert_parallel_degree=2"]
    job = start("--ranks", 2, recipe=from_path[family], sets=still)
    assert job.wait() == 0, job.output
    out = tmp_path / "out"
    exported = export(job.folder, out, "checkpoint.export_dtype=float32", "checkpoint.max_shard_size=60KB")
    assert exported.returncode == 0, exported.stderr
    before, after = _stored(models[family]), _stored(out)
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []

    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in after.values())
    assert index["weight_map"].keys() == after.keys()
    shards = {path.name: path.stat().st_size for path in out.glob("*.safetensors")}
    assert set(index["weight_map"].values()) == shards.keys()
    assert len(shards) > 1

    tokens = torch.randint(_VOCABULARY, (2, 48), generator=torch.Generator().manual_seed(1))
    loaded = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (models[family], out)]
    with torch.no_grad():
        logits = [model(tokens).logits for model in loaded]
    assert (logits[0] - logits[1]).abs().max() <= 1e-5
    assert loaded[1].generation_config.eos_token_id == 256
    generation = "generation_config.json"
    assert (out / generation).read_bytes() == (models[family] / generation).read_bytes()


@pytest.fixture(scope="session")
def trained(from_path, start_once, export, tmp_path_factory):
    """A run of two ranks, and what it exports in fp32."""
    job = start_once(
        "--ranks", 2, recipe=from_path["qwen3_moe"], sets=["parallelism.vocab_parallel_degree=2"]
    )
    assert job.wait() == 0, job.output
    out = tmp_path_factory.mktemp("export") / "out"
    exported = export(job.folder, out, "checkpoint.export_dtype=float32")
    assert exported.returncode == 0, exported.stderr
    return job, out


def test_a_run_from_an_export_begins_where_the_other_ended(trained, from_path, start):
    job, out = trained
    sets = [f"model.path={out}", "training.steps=1", "parallelism.vocab_parallel_degree=2"]
    again = start("--ranks", 2, recipe=from_path["qwen3_moe"], sets=sets)
    assert again.wait() == 0, again.output
    ended, began = read_metrics(job.folder)[-1], read_metrics(again.folder)[0]
    assert ended["step"] == 5
    assert began["step"] == 0
    assert began["validation"] == ended["validation"]


def test_the_tokenizer_comes_along(trained, recipe):
    out = trained[1]
    prepared = recipe.parent / "prepared"
    assert (out / "tokenizer.json").read_bytes() == (prepared / "tokenizer.json").read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.encode("Größe 12") == list("Größe 12".encode())


def test_formats(trained, export, tmp_path):
    job, out = trained
    exact = _stored(out)
    for name, dtype in {"bfloat16": torch.bfloat16, "float16": torch.float16}.items():
        folder = tmp_path / name
        exported = export(job.folder, folder, f"checkpoint.export_dtype={name}")
        assert exported.returncode == 0, exported.stderr
        assert f"{len(exact)} tensors" in exported.stdout
        rounded = load_file(folder / "model.safetensors")
        assert all(torch.equal(rounded[key], tensor.to(dtype)) for key, tensor in exact.items())
        assert json.loads((folder / "config.json").read_text())["torch_dtype"] == name


def test_a_model_of_a_recipe_alone(recipe, start, export, tmp_path):
    job = start(sets=["training.steps=1", "model.rope_theta=5e5"])
    assert job.wait() == 0, job.output
    (tmp_path / "out").mkdir()
    exported = export(job.folder, f"{tmp_path}/out/")
    assert exported.returncode == 0, exported.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.model_type == "qwen3_moe"
    assert model.config.rope_parameters["rope_theta"] == 5e5
    assert model.config.eos_token_id == 256  # the data's
    assert model.dtype == torch.bfloat16


def test_expert_biases_have_no_place(from_path, start, export, tmp_path):
    sets = ["training.steps=1", "router.load_balancing=expert_bias"]
    job = start(recipe=from_path["qwen3_moe"], sets=sets)
    assert job.wait() == 0, job.output
    exported = export(job.folder, tmp_path / "out")
    assert exported.returncode == 2
    assert "expert biases" in exported.stderr
    assert not any(tmp_path.glob("out*"))


def test_a_folder_with_something_in_it_is_left_alone(trained, export):
    job, out = trained
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    exported = export(job.folder, out)
    assert exported.returncode == 2
    assert f"{out} must be a new or an empty folder" in exported.stderr
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_another_tokenizer_is_refused(trained, export, tmp_path):
    job, out = trained
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    exported = export(job.folder, tmp_path / "out", f"data.tokenizer={other}")
    assert exported.returncode == 2
    assert "is not the tokenizer that the data was prepared with" in exported.stderr


def test_import_lists_what_does_not_fit(models, from_path, start, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(models["olmoe"], broken)
    tensors = _stored(broken)
    (broken / "model.safetensors.index.json").unlink()
    for shard in broken.glob("*.safetensors"):
        shard.unlink()
    del tensors["model.layers.1.mlp.experts.2.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    save_file(tensors, broken / "model.safetensors")
    job = start(recipe=from_path["olmoe"], sets=[f"model.path={broken}"])
    assert job.wait() == 2
    assert "1 missing: model.layers.1.mlp.experts.2.up_proj.weight" in job.output
    assert "1 of another shape: model.layers.0.self_attn.q_norm.weight is [8], not [32]" in job.output
    assert "1 without a use: model.layers.0.self_attn.q_proj.bias" in job.output


def test_experts_that_the_degree_does_not_divide(from_path, start):
    job = start("--ranks", 3, recipe=from_path["olmoe"], sets=["parallelism.expert_parallel_degree=3"])
    assert job.wait() == 2
    said = "parallelism.expert_parallel_degree must divide model.num_experts=4, got 3"
    assert said in job.output


def test_a_run_goes_on_without_the_folder_that_it_started_from(models, from_path, start, tmp_path):
    """The checkpoint knows the model; another config.json in its place is refused."""
    source, folder = tmp_path / "source", tmp_path / "run"
    shutil.copytree(models["qwen3_moe"], source)
    sets = [f"model.path={source}", "lr_scheduler.type=constant", "checkpoint.interval=3"]

    def train(steps, folder=folder):
        sets_now = [*sets, f"training.steps={steps}"]
        return start("--ranks", 2, recipe=from_path["qwen3_moe"], sets=sets_now, folder=folder)

    def figures(folder):
        return [(m["step"], m["loss"], m["grad_norm"]) for m in read_metrics(folder) if "loss" in m]

    straight = train(5, tmp_path / "straight")
    assert straight.wait() == 0, straight.output
    assert f"starts with the weights in model.path = {source}" in straight.output
    first = train(3)
    assert first.wait() == 0, first.output

    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"num_experts_per_tok": 1}))
    changed = train(5)
    assert changed.wait() == 2
    assert f"is of another model than {source}/config.json says now" in changed.output
    assert "num_experts_per_tok was 2 and is 1" in changed.output

    shutil.rmtree(source)
    for steps in (4, 5):  # what the first of them saves knows the model as well
        again = train(steps)
        assert again.wait() == 0, again.output
        assert f"{source}/config.json is gone: the model's shape is that of" in again.output
    assert figures(folder) == figures(straight.folder)
    anew = train(5, tmp_path / "anew")
    assert anew.wait() == 2
    assert f'model.path = "{source}": cannot open' in anew.output


def test_a_run_counted_in_epochs_goes_on_without_its_folder(models, from_path, start, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(models["qwen3_moe"], source)
    recipe = without_steps(from_path["qwen3_moe"], tmp_path)

    def train(epochs, folder=tmp_path / "run"):
        sets = [f"model.path={source}", "lr_scheduler.type=constant", f"training.epochs={epochs}"]
        return start("--ranks", 2, recipe=recipe, sets=sets, folder=folder)

    def steps(folder):
        return [m["step"] for m in read_metrics(folder) if "loss" in m]

    first = train(0.1)
    assert first.wait() == 0, first.output
    before = steps(first.folder)
    shutil.rmtree(source)
    again = train(0.2)
    assert again.wait() == 0, again.output
    assert f"{source}/config.json is gone: the model's shape is that of" in again.output
    assert len(before) < len(steps(again.folder)) <= 2 * len(before)
    assert steps(again.folder) == list(range(1, len(steps(again.folder)) + 1))
    anew = train(0.1, tmp_path / "anew")
    assert anew.wait() == 2
    assert f'model.path = "{source}": cannot open' in anew.output
