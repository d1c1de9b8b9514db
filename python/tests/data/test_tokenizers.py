"""The kinds of tokenizer, what is saved of them, and the end token."""

import json

import numpy as np
import pytest
import tokenizers
from indexed_reader import read_indexed

from steppe.data.indexed import IndexedWriter, token_dtype


def record_of(prefix):
    return json.loads(prefix.with_name(prefix.name + ".json").read_text())


def test_a_trained_bpe_decodes_to_the_text(run, corpus, tmp_path):
    out = tmp_path / "out"
    assert run(corpus, "--include", "*.py", "--tokenizer", "bpe:320", "--output", out)[0] == 0
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    record = record_of(out)
    assert 257 < record["vocab_size"] <= 320
    assert record["vocab_size"] == tokenizer.get_vocab_size()
    assert tokenizer.id_to_token(record["eos_id"]) == "<|endoftext|>"
    documents = read_indexed(out)
    texts = [(corpus / name).read_text() for name in ("a.py", "b.py", "sub/c.py")]
    assert [tokenizer.decode(ids[:-1]) for ids in documents] == texts
    assert all(ids[-1] == record["eos_id"] for ids in documents)
    assert len(documents[2]) < len(texts[2]) / 2  # it did learn from the text


def test_training_is_deterministic_and_processes_change_nothing(run, corpus, tmp_path):
    files = {}
    for folder, processes in (("one", 1), ("again", 1), ("three", 3)):
        prefix = tmp_path / folder / "out"
        assert run(corpus, "--tokenizer", "bpe:320", "--output", prefix, processes=processes)[0] == 0
        names = ("out.bin", "out.idx", "tokenizer.json")
        files[folder] = [(tmp_path / folder / name).read_bytes() for name in names]
    assert files["one"] == files["again"]
    assert files["one"] == files["three"]


def test_bytes_as_a_tokenizer_json(run, corpus, tmp_path):
    assert run(corpus, "--tokenizer", "bytes", "--output", tmp_path / "out")[0] == 0
    assert (record_of(tmp_path / "out")["vocab_size"], record_of(tmp_path / "out")["eos_id"]) == (257, 256)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "def f():\n\treturn 'größe €𝄞'\x00\x7f"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def make_tokenizer(folder, eos="<stop>", config=None):
    folder.mkdir(exist_ok=True)
    vocabulary = {"[UNK]": 0, "def": 1, "import": 2, "os": 3, "x": 4, eos: 5}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("config", [{"eos_token": "<stop>"}, {"eos_token": {"content": "<stop>"}}])
def test_a_given_tokenizer_is_used_and_copied_byte_for_byte(run, corpus, tmp_path, config):
    given = tmp_path / "model"
    make_tokenizer(given, config=config)
    out = tmp_path / "prepared" / "out"
    assert run(corpus / "sub", "--tokenizer", given, "--output", out)[0] == 0
    assert read_indexed(out) == [[2, 3] * 50 + [5]]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (out.parent / name).read_bytes() == (given / name).read_bytes()


def test_the_end_token_can_be_named_and_must_exist(run, corpus, tmp_path):
    given = tmp_path / "model"
    make_tokenizer(given)
    args = (corpus / "sub", "--tokenizer", given / "tokenizer.json", "--output", tmp_path / "out")
    status, _, err = run(*args)
    assert status == 1
    assert "say which with --eos" in err
    for eos in ("os", "3"):
        assert run(*args, "--eos", eos)[0] == 0
        assert read_indexed(tmp_path / "out")[0][-1] == 3
    assert "'6' is neither a token" in run(*args, "--eos", "6")[2]


def test_an_end_token_that_is_named_and_not_there(run, corpus, tmp_path):
    make_tokenizer(tmp_path / "model", config={"eos_token": "</x>"})
    status, _, err = run(corpus / "sub", "--tokenizer", tmp_path / "model", "--output", tmp_path / "out")
    assert status == 1
    assert "tokenizer_config.json names '</x>', which it does not have either; say which with --eos" in err


def test_a_text_too_small_for_the_entries_that_are_wanted(run, tmp_path):
    (tmp_path / "one.txt").write_text("one")
    status, _, err = run(tmp_path / "one.txt", "--tokenizer", "bpe:300", "--output", tmp_path / "out")
    assert status == 0
    assert "note: the text gives no more than 259 entries" in err


def test_wrong_tokenizers_are_named(run, corpus, tmp_path):
    (tmp_path / "bad.json").write_text('{"version": "1.0"}')
    for name, words in {
        str(tmp_path / "nothing.json"): "there is no file",
        str(tmp_path): "there is no file",
        str(tmp_path / "bad.json"): "is not a tokenizer.json",
        "bpe:100": "at least 257",
        "bpe:many": "at least 257",
    }.items():
        status, _, err = run(corpus, "--tokenizer", name, "--output", tmp_path / "out")
        assert status == 1
        assert words in err


def test_one_folder_has_one_tokenizer(run, corpus, tmp_path):
    assert run(corpus, "--tokenizer", "bytes", "--output", tmp_path / "a")[0] == 0
    status, _, err = run(corpus, "--tokenizer", "bpe:300", "--output", tmp_path / "b")
    assert status == 1
    assert "a.json was prepared with another tokenizer (bytes)" in err
    assert run(corpus, "--tokenizer", "bytes", "--output", tmp_path / "b")[0] == 0
    assert run(corpus, "--tokenizer", "bpe:300", "--output", tmp_path / "c" / "b")[0] == 0


def test_large_vocabularies_take_int32(tmp_path):
    assert token_dtype(65499) == np.uint16
    assert token_dtype(65500) == np.int32
    writer = IndexedWriter(tmp_path / "set", token_dtype(151_936))
    for document in ([151_935, 7], [3]):
        writer.add(np.array(document))
        writer.end_document()
    writer.finish()
    assert read_indexed(tmp_path / "set") == [[151_935, 7], [3]]
