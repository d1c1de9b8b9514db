"""Over-long documents, recipes, skipping what is up to date, bounded memory, and Megatron's own code."""

import os

import numpy as np
import pytest
from indexed_reader import read_indexed

from steppe.data import encode, sources
from steppe.data.recipe import default_name


def write_lengths(folder, lengths):
    folder.mkdir(exist_ok=True)
    for i, length in enumerate(lengths):
        (folder / f"{i:03}.txt").write_text("x" * length)


# Lengths count the end token: of 9, 10 and 11 bytes, the first two fit 10 + 1 tokens.
@pytest.mark.parametrize(
    ("over_length", "expected", "line"),
    [
        ("split", [[120] * n + [256] for n in (9, 10, 11, 30)], "split               2"),
        (
            "truncate",
            [[120] * 9 + [256], [120] * 10 + [256], [120] * 11, [120] * 11],
            "cut                 2",
        ),
        ("drop", [[120] * 9 + [256], [120] * 10 + [256]], "over                2"),
    ],
)
def test_over_long_documents(run, tmp_path, over_length, expected, line):
    write_lengths(tmp_path / "in", [9, 10, 11, 30])
    args = ("--seq-length", 10, "--over-length", over_length, "--output", tmp_path / "out")
    status, out, _ = run(tmp_path / "in", "--tokenizer", "bytes", *args)
    assert status == 0
    assert read_indexed(tmp_path / "out") == expected
    assert line in out
    assert f"kept     {len(expected):>12}   {sum(map(len, expected))} tokens" in out


def test_the_histogram_counts_every_document(run, tmp_path):
    write_lengths(tmp_path / "in", [1, 2, 3, 6, 7, 200])
    out = run(tmp_path / "in", "--tokenizer", "bytes", "--output", tmp_path / "out")[1]
    rows = [line.split() for line in out.splitlines() if "–" in line]
    counts = {row[0]: int(row[3]) for row in rows}
    assert counts == {"2": 2, "4": 2, "8": 1, "16": 0, "32": 0, "64": 0, "128": 1}


def test_options_that_need_one_another(run, tmp_path):
    write_lengths(tmp_path / "in", [3])
    args = (tmp_path / "in", "--tokenizer", "bytes", "--output", tmp_path / "out")
    assert "needs --seq-length" in run(*args, "--over-length", "drop")[2]
    assert "--output and --tokenizer are required" in run(tmp_path / "in", "--tokenizer", "bytes")[2]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lengths(tmp_path / "code", [50, 60])
    write_lengths(tmp_path / "prose", [70])
    write_lengths(tmp_path / "quiz", [80])
    path = tmp_path / "run.toml"
    path.write_text(
        """
        [training]
        seq_length = 64
        [data]
        prepared = "prepared"
        tokenizer = "bpe:300"
        over_length = "drop"
        [[data.train]]
        path = "code"
        weight = 2
        [[data.train]]
        path = "prose"
        name = "essays"
        type = "text"
        [[validation.set]]
        path = "quiz"
        """
    )
    return path


def test_a_recipe_says_it_all(run, recipe):
    status, out, _ = run(recipe)
    assert status == 0
    prepared = recipe.parent / "prepared"
    assert {path.name for path in prepared.glob("*.idx")} == {"code.idx", "essays.idx", "quiz.idx"}
    # Training drops what is over length; preparation leaves it, so that seq_length can change.
    assert len(read_indexed(prepared / "essays")) == 1
    assert len(read_indexed(prepared / "code")) == 2
    assert out.count("documents,") == 3


def test_keys_are_overridden_as_in_training(run, recipe):
    sets = ("data.prepared=elsewhere", 'data.tokenizer="bytes"', "data.train[1].name=tales")
    status, _, error = run(recipe, *(part for one in sets for part in ("--set", one)))
    assert status == 0, error
    written = {path.name for path in (recipe.parent / "elsewhere").glob("*.idx")}
    assert written == {"code.idx", "tales.idx", "quiz.idx"}
    assert read_indexed(recipe.parent / "elsewhere" / "tales")[0][:3] == list(b"xxx")


@pytest.mark.parametrize("wrong", ["data.prepared", "data.train[7].name=x", "training.seq_length.x=1", "=3"])
def test_overrides_that_lead_nowhere(run, recipe, wrong):
    status, _, error = run(recipe, "--set", wrong)
    assert status == 1
    assert "--set" in error
    assert wrong in error
    assert not (recipe.parent / "prepared").exists()


def test_what_is_up_to_date_is_left(run, recipe):
    assert run(recipe)[0] == 0
    prepared = recipe.parent / "prepared"
    stamps = {path: path.stat().st_mtime_ns for path in prepared.iterdir()}
    status, out, _ = run(recipe)
    assert status == 0
    assert out.count("up to date") == 3
    assert {path: path.stat().st_mtime_ns for path in prepared.iterdir()} == stamps

    # A changed validation set is made anew, alone: it does not shape the tokenizer.
    (recipe.parent / "quiz" / "more.txt").write_text("xx")
    out = run(recipe)[1]
    assert out.count("up to date") == 2
    assert len(read_indexed(prepared / "quiz")) == 2

    # A lost or cut output, too.
    os.truncate(prepared / "code.bin", 4)
    out = run(recipe)[1]
    assert out.count("up to date") == 2
    assert len(read_indexed(prepared / "code")) == 2

    # A changed training set shapes the tokenizer, and so all.
    (recipe.parent / "code" / "more.txt").write_text("yyyy")
    out = run(recipe)[1]
    assert "up to date" not in out
    assert len(read_indexed(prepared / "code")) == 3

    # So does another setting.
    assert "up to date" not in run(recipe, "--max-bytes", 10)[1]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('prepared = "prepared"', "", "`data.prepared` must name the folder"),
        ('tokenizer = "bpe:300"', "", "`data.tokenizer` must be"),
        ('"drop"', '"cut"', "`data.over_length` must be"),
        ('path = "prose"', "", "[[data.train]] needs a `path`"),
        ("[[validation.set]]", "[validation.set]", "`validation.set` must be written [[validation.set]]"),
        ("seq_length = 64", 'seq_length = "64"', "`training.seq_length` must be a whole number above 0"),
        ("seq_length = 64", "seq_length = 0", "`training.seq_length` must be a whole number above 0"),
        ('path = "prose"', 'path = "none"', "none: no such file or folder"),
        ("weight = 2", "wieght = 2", "no key `wieght`"),
        ('name = "essays"', 'name = "code"', "two entries are named 'code'"),
        ('name = "essays"', 'name = "a/b"', "name must be of letters"),
        ('type = "text"', 'type = "csv"', "type must be one of"),
        ("[training]", "[training", "is not TOML"),
    ],
)
def test_mistakes_in_a_recipe_are_named(run, recipe, old, new, words):
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new, 1))
    status, _, err = run(recipe)
    assert status == 1
    assert words in err


def test_names_follow_the_path():
    names = {
        "stdlib:": "stdlib",
        "corpus/code.jsonl.gz": "code",
        "folder/": "folder",
        "a/.hidden.txt": ".hidden",
    }
    assert {path: default_name(path) for path in names} == names


def test_no_more_than_a_few_pieces_are_under_way(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x")
    taken = 0

    def pieces():
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield sources.Piece("files", path, paths=[path])

    spec = encode.EncoderSpec("bytes", tmp_path / "tokenizer.json", np.dtype(np.uint16))
    ahead = [taken - done for done, _ in enumerate(encode.encode_in_order(pieces(), spec, 2), 1)]
    assert len(ahead) == 100
    assert max(ahead) <= 2 * 3


def test_a_failed_run_leaves_the_files_as_they_were(run, tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text('{"text": "good"}\n')
    args = (path, "--tokenizer", "bytes", "--output", tmp_path / "out")
    assert run(*args)[0] == 0
    path.write_text('{"text": "good"}\n{"no": 1}\n')
    assert run(*args)[0] == 1
    assert read_indexed(tmp_path / "out") == [[*b"good", 256]]
    assert not list(tmp_path.glob("*.partial"))


def test_megatron_reads_our_files_and_we_its(run, corpus, tmp_path):
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    assert run(corpus, "--tokenizer", "bpe:300", "--output", tmp_path / "ours")[0] == 0
    documents = read_indexed(tmp_path / "ours")
    dataset = indexed.IndexedDataset(str(tmp_path / "ours"))
    assert [dataset[i].tolist() for i in range(len(dataset))] == documents
    assert dataset.document_indices.tolist() == list(range(len(documents) + 1))
    for dtype in (np.uint16, np.int32):
        builder = indexed.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
        for document in documents:
            builder.add_document(np.array(document), [len(document)])
        builder.finalize(str(tmp_path / "theirs.idx"))
        assert read_indexed(tmp_path / "theirs") == documents
        if dtype is np.uint16:
            for suffix in (".bin", ".idx"):
                theirs = (tmp_path / f"theirs{suffix}").read_bytes()
                assert theirs == (tmp_path / f"ours{suffix}").read_bytes()
