"""What a user gets wrong: one message that names the value, what it must be and where it stands; status 2, or
1 where something cannot be reached. Nothing trains."""

import shutil
import subprocess

import pytest
from steppe_program import ESCAPE, read_status

_RANKS_2 = ("--ranks", 2)


def complaint(job, status: int) -> str:
    assert job.wait() == status, job.output
    lines = [line for line in ESCAPE.sub("", job.output).splitlines() if line]
    said = [line for line in lines if "error: " in line or "[launch] rank" in line and "failed: " in line]
    assert len(said) == 1, job.output
    assert "step 1" not in job.output
    return said[0]


@pytest.mark.parametrize("arguments", [(), _RANKS_2], ids=["alone", "ranks"])
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.stepz=1", ["`training.stepz` (--set)", "did you mean `training.steps`"]),
        ("optimizer.learning_rate=1", ["`optimizer.learning_rate` (--set)", "in Steppe `optimizer.lr`"]),
    ],
)
def test_unknown_key(start, arguments, override, words):
    job = start(*arguments, sets=[override])
    said = complaint(job, 2)
    assert all(word in said for word in words)
    assert not job.folder.exists()


def test_unknown_key_names_its_line(start, recipe, tmp_path):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(recipe.read_text().replace("lr = 0.01", "lr = 0.01\nweight_decey = 0.2"))
    said = complaint(start(recipe=wrong), 2)
    line = wrong.read_text().splitlines().index("weight_decey = 0.2") + 1
    assert "did you mean `optimizer.weight_decay`" in said
    assert f"wrong.toml:{line}" in said


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["parallelism.expert_parallel_degree=3"],
            [
                "parallelism.expert_parallel_degree must",
                "divide the number of ranks W=2, got 3 (parallelism.expert_parallel_degree: --set)",
            ],
        ),
        (
            ["parallelism.ulysses_degree=2", "model.num_attention_heads=3", "model.num_key_value_heads=1"],
            ["parallelism.ulysses_degree must divide model.num_attention_heads=3", "got 2"],
        ),
        (["model.vocab_size=100"], ["text.json", "257", "vocab_size", "100"]),
    ],
    ids=["degree", "heads", "vocabulary"],
)
def test_what_ranks_refuse(start, overrides, words):
    job = start(*_RANKS_2, sets=overrides)
    said = complaint(job, 2)
    assert all(word in said for word in words)
    status = read_status(job.folder)
    assert status["state"] == "failed"
    assert status["step"] == 0
    assert status["reason"] in said


def test_missing_dataset(start, tmp_path):
    job = start(sets=[f"data.prepared={tmp_path / 'nowhere'}"])
    said = complaint(job, 2)
    assert f'data.prepared = "{tmp_path / "nowhere"}"' in said
    assert str(tmp_path / "nowhere/text.idx") in said
    assert "python -m steppe.data prepare" in said
    assert read_status(job.folder)["state"] == "failed"


def test_source_that_was_not_prepared(start, recipe, tmp_path):
    plain = tmp_path / "plain.toml"
    lines = recipe.read_text().splitlines(keepends=True)
    plain.write_text("".join(line for line in lines if not line.startswith("prepared")))
    said = complaint(start(recipe=plain), 2)
    assert "[[data.train]] path = " in said
    assert "set data.prepared and run `python -m steppe.data prepare" in said


@pytest.mark.parametrize(("key", "file"), [("path", "config.json"), ("config", "")])
def test_model_that_is_not_there(start, tmp_path, key, file):
    job = start(sets=[f"model.{key}={tmp_path / 'nowhere'}"])
    said = complaint(job, 2)
    assert f'model.{key} = "{tmp_path / "nowhere"}"' in said
    assert f"cannot open {tmp_path / 'nowhere' / file}: No such file" in said


@pytest.fixture
def damaged(recipe, tmp_path):
    """A copy of the prepared files."""
    return shutil.copytree(recipe.parent / "prepared", tmp_path / "damaged")


def test_truncated_dataset(start, damaged):
    tokens = damaged / "text.bin"
    whole = tokens.stat().st_size
    tokens.write_bytes(tokens.read_bytes()[: whole // 2])
    said = complaint(start(*_RANKS_2, sets=[f"data.prepared={damaged}"]), 2)
    assert str(tokens) in said
    assert str(whole // 2) in said


def test_truncated_index(start, damaged):
    index = damaged / "text.idx"
    index.write_bytes(index.read_bytes()[:-8])
    said = complaint(start(sets=[f"data.prepared={damaged}"]), 2)
    assert str(index) in said


def test_token_outside_the_vocabulary(start, damaged):
    tokens = damaged / "text.bin"
    tokens.write_bytes((999).to_bytes(2, "little") * (tokens.stat().st_size // 2))
    job = start(*_RANKS_2, sets=[f"data.prepared={damaged}", "validation.at_start=false"])
    said = complaint(job, 2)
    assert "999" in said
    assert "257" in said
    assert str(damaged / "text") in said
    assert read_status(job.folder)["state"] == "failed"


def test_port_in_use(start, taken_port):
    rank = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1"}
    job = start(MASTER_PORT=taken_port, **rank)
    said = complaint(job, 1)
    assert str(taken_port) in said
    assert "MASTER_PORT" in said
    assert "in use" in said
    assert not job.folder.exists()


def test_a_rank_that_never_comes(start, free_port):
    rank = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1"}
    said = complaint(start(sets=["comm.init_timeout=2"], MASTER_PORT=free_port, **rank), 1)
    assert "of 2 ranks these have not arrived: 1" in said
    assert "comm.init_timeout" in said
    assert str(free_port) in said


def test_ranks_within_a_launchers_rank(start, free_port):
    rank = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1"}
    said = complaint(start(*_RANKS_2, MASTER_PORT=free_port, **rank), 2)
    assert "--ranks" in said


def test_recipe_that_is_not_there(start, tmp_path):
    said = complaint(start(recipe=tmp_path / "nothing.toml"), 2)
    assert f"{tmp_path / 'nothing.toml'}: No such file" in said


@pytest.mark.parametrize("given", ["0", "-1", "2.5", "abc"])
def test_ranks_that_are_no_number_of_ranks(start, given):
    job = start(f"--ranks={given}")
    assert job.wait() == 2
    assert f"--ranks: must be a whole number from 1 on, got {given}" in job.output


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("inspect", "nowhere"), 2, ["there is no nowhere"]),
        (("report", "recipe.toml"), 2, ["recipe.toml holds no JSON object", "steppe plan --json"]),
        (
            ("bench", "vocab", "--dry", "--tokens", 10**12, "--hidden", 10**9),
            2,
            ["--tokens = 1000000000000 times --hidden = 1000000000", "2^62 bytes"],
        ),
        (("bench", "dispatch", "--tokens", 10**15), 2, ["--tokens = 1000000000000000", "2^62 bytes"]),
        (("bench", "optimizer", "--samples", "many"), 2, ["--samples: must be a whole number from 1 on"]),
        (("bench", "optimizer", "--params", "nan"), 2, ["--params: must be a whole number from 1 to 1e+12"]),
        (("bench", "optimizer", "--bucket", "2.5"), 2, ["--bucket: must be a whole number from 1 to 1e+12"]),
    ],
)
def test_other_commands(program, tmp_path, arguments, status, words):
    (tmp_path / "recipe.toml").write_text("[model]\n")
    result = subprocess.run(
        [program, *map(str, arguments)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == status, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert len(result.stderr.splitlines()) <= 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--ranks", 0), "--ranks"), (("--rank", 2), "--rank"), (("--set",), "--set")],
)
def test_usage(start, arguments, word):
    job = start(*arguments)
    assert job.wait() == 2
    assert word in job.output
    assert "--help" in job.output


def test_more_ranks_than_a_machine_can_bear(start):
    job = start("--ranks", 100000)
    assert "--ranks must be at most" in complaint(job, 2)
    assert not job.folder.exists()


def test_no_recipe(program):
    result = subprocess.run([program, "train"], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 2
    assert "recipe is required" in result.stderr
    assert "--help" in result.stderr
