"""The tokenizer of a recipe that starts from a Hugging Face folder."""

import json

import pytest

from steppe.data.tokenizer import END_OF_TEXT, byte_tokenizer

_RECIPE = """
[model]
path = "{model}"
[training]
seq_length = 16
[data]
prepared = "{prepared}"
{tokenizer}
[[data.train]]
path = "{text}"
"""


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text(byte_tokenizer().to_str(pretty=False))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_OF_TEXT}))
    (tmp_path / "text.txt").write_text("some text")

    def write(tokenizer):
        recipe = tmp_path / "recipe.toml"
        paths = {name: tmp_path / name for name in ("model", "prepared")}
        recipe.write_text(_RECIPE.format(**paths, text=tmp_path / "text.txt", tokenizer=tokenizer))
        return recipe

    write.root = tmp_path
    return write


def test_is_the_models_by_default(run, folder):
    status, _, err = run(folder(""))
    assert status == 0, err
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (folder.root / "prepared" / name).read_bytes() == (folder.root / "model" / name).read_bytes()
    assert json.loads((folder.root / "prepared" / "text.json").read_text())["eos_id"] == 256


def test_is_the_recipes_when_it_names_one(run, folder):
    status, _, err = run(folder('tokenizer = "bytes"'))
    assert status == 0, err
    assert not (folder.root / "prepared" / "tokenizer_config.json").exists()


def test_a_model_without_one_is_named(run, folder):
    (folder.root / "model" / "tokenizer.json").unlink()
    status, _, err = run(folder(""))
    assert status != 0
    assert str(folder.root / "model") in err
