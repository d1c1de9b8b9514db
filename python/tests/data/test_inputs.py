"""Every kind of input gives the documents it holds, in order, or a clear error."""

import errno
import gzip
import json
import os

import pyarrow
import pyarrow.parquet
import pytest
from indexed_reader import read_indexed

from steppe.data import sources

TEXTS = ["first document", "", "zwölf Boxkämpfer", 'line\nbreak and "quotes"', "last"]


def as_bytes(texts):
    return [[*text.encode(), 256] for text in texts if text]


def test_a_source_tree_is_read_in_order(run, corpus, tmp_path):
    status, out, _ = run(corpus, "--include", "*.py", "--tokenizer", "bytes", "--output", tmp_path / "set")
    assert status == 0
    expected = [(corpus / name).read_bytes() for name in ("a.py", "b.py", "broken.py", "sub/c.py")]
    assert read_indexed(tmp_path / "set") == [[*text, 256] for text in expected]
    assert "1 empty, 0 not UTF-8" in out


def test_files_that_are_not_text_are_dropped_and_named(run, corpus, tmp_path):
    status, out, _ = run(corpus, "--tokenizer", "bpe:300", "--output", tmp_path / "set")
    assert status == 0
    assert len(read_indexed(tmp_path / "set")) == 4
    assert "1 empty, 1 not UTF-8" in out
    assert f"not UTF-8: {corpus}/broken.py" in out


def write_jsonl(path, texts, key="text"):
    lines = "".join(json.dumps({"id": i, key: text}) + "\n\n" for i, text in enumerate(texts))
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(lines.encode())


@pytest.mark.parametrize("name", ["set.jsonl", "set.jsonl.gz", "set.parquet"])
@pytest.mark.parametrize("key", ["text", "body"])
def test_records_give_their_texts(run, tmp_path, name, key):
    path = tmp_path / name
    if path.suffix == ".parquet":
        columns = {"id": list(range(len(TEXTS) + 1)), key: [*TEXTS, None]}
        pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    else:
        write_jsonl(path, TEXTS, key)
    status, out, _ = run(path, "--text-key", key, "--tokenizer", "bytes", "--output", tmp_path / "out")
    assert status == 0
    assert read_indexed(tmp_path / "out") == as_bytes(TEXTS)
    assert f"{2 if path.suffix == '.parquet' else 1} empty" in out


def test_many_small_pieces_change_nothing(run, tmp_path, monkeypatch):
    texts = [f"document {i} " * (i % 7) for i in range(200)]
    write_jsonl(tmp_path / "set.jsonl", texts)
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "set.parquet")
    monkeypatch.setattr(sources, "PIECE_BYTES", 64)
    for name in ("set.jsonl", "set.parquet"):
        assert run(tmp_path / name, "--tokenizer", "bytes", "--output", tmp_path / "out")[0] == 0
        assert read_indexed(tmp_path / "out") == as_bytes(texts)


@pytest.mark.parametrize("text", ["line of text\n" * 999, "ä€𝄞" * 999, "no end " * 999])
def test_a_large_file_is_read_in_stretches_as_one_document(run, tmp_path, monkeypatch, text):
    (tmp_path / "large.txt").write_text(text)
    (tmp_path / "small.txt").write_text("after")
    monkeypatch.setattr(sources, "STRETCH_BYTES", 1000)
    inputs = [tmp_path / "large.txt", tmp_path / "small.txt"]
    pieces = list(sources.cut(sources.find_files([sources.Input(str(path)) for path in inputs])))
    assert len(pieces) > 5
    assert sum(piece.progress for piece in pieces) == sum(path.stat().st_size for path in inputs)
    assert run(*inputs, "--tokenizer", "bytes", "--output", tmp_path / "out")[0] == 0
    assert read_indexed(tmp_path / "out") == as_bytes([text, "after"])
    # Cut within a character, a stretch would not be UTF-8.
    status, out, _ = run(*inputs, "--tokenizer", "bpe:300", "--output", tmp_path / "out")
    assert status == 0
    assert "2 documents" in out
    assert "0 not UTF-8" in out


def test_a_large_file_that_turns_out_not_to_be_text_is_taken_back(run, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("before")
    (tmp_path / "b.txt").write_bytes(b"fine line\n" * 300 + b"\xff\n" + b"fine line\n" * 300)
    (tmp_path / "c.txt").write_text("before")
    monkeypatch.setattr(sources, "STRETCH_BYTES", 1000)
    status, out, _ = run(tmp_path / "*.txt", "--tokenizer", "bpe:300", "--output", tmp_path / "out")
    assert status == 0
    first, last = read_indexed(tmp_path / "out")
    assert first == last
    assert "1 not UTF-8" in out


def test_max_bytes_stops_at_a_document(run, tmp_path):
    write_jsonl(tmp_path / "set.jsonl", ["x" * 100] * 50)
    args = ("--tokenizer", "bytes", "--output", tmp_path / "out", "--max-bytes")
    assert run(tmp_path / "set.jsonl", *args, "1kB")[0] == 0
    assert 5 <= len(read_indexed(tmp_path / "out")) <= 10
    assert run(tmp_path / "set.jsonl", *args, "1")[0] == 0
    assert len(read_indexed(tmp_path / "out")) == 1


def test_the_library_of_python_is_a_corpus(run, tmp_path):
    assert (
        run("stdlib:", "--tokenizer", "bytes", "--output", tmp_path / "out", "--max-bytes", "300kB")[0] == 0
    )
    documents = read_indexed(tmp_path / "out")
    assert len(documents) > 5
    assert any(b"import" in bytes(document[:-1]) for document in documents)
    for path in (file.path for file in sources.find_files([sources.Input("stdlib:")])):
        assert path.suffix == ".py"
        assert not {"site-packages", "test", "tests"} & set(path.parts)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "set.jsonl",
            b'{"text": "a"}\n{"body": "b"}\n',
            ["set.jsonl:2", "no key 'text'", "'body': name one with --text-key"],
        ),
        ("set.jsonl", b'{"text": "a"}\n\n{"text": \n', ["set.jsonl:3", "not JSON"]),
        ("set.jsonl", b'{"text": 5}\n', ["set.jsonl:1", "must be text, got int"]),
        ("set.jsonl", b"[1]\n", ["set.jsonl:1", "is no object with a key 'text'", "one on each line"]),
        ("set.jsonl", b"", ["no document is left", "0 documents"]),
        ("set.json", b'[{"text": "a"}]\n', ["set.json: may be text or records", "--type"]),
        ("set.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 999)[:-30], ["set.jsonl.gz", "cannot be read"]),
        ("set.parquet", b"PAR1 not really", ["set.parquet", "not a Parquet file"]),
        ("empty.txt", b"", ["no document is left", "1 empty"]),
    ],
)
def test_bad_files_are_named(run, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    status, _, err = run(tmp_path / name, "--tokenizer", "bytes", "--output", tmp_path / "out")
    assert status == 1
    for word in words:
        assert word in err
    assert sorted(path.name for path in tmp_path.glob("out*")) == []


def test_bad_columns_are_named(run, tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"number": [1]}), tmp_path / "set.parquet")
    args = (tmp_path / "set.parquet", "--tokenizer", "bytes", "--output", tmp_path / "out")
    assert "no column 'text'; its columns are number: name one with --text-key" in run(*args)[2]
    assert "must be of type string, got int64" in run(*args, "--text-key", "number")[2]


def test_files_whose_suffix_does_not_say_what_they_hold(run, tmp_path):
    (tmp_path / "set.json").write_text('{"text": "a"}\n')
    args = (tmp_path / "set.json", "--tokenizer", "bytes", "--output", tmp_path / "out")
    assert run(*args, "--type", "jsonl")[0] == 0
    assert read_indexed(tmp_path / "out") == as_bytes(["a"])
    assert run(*args, "--type", "text")[0] == 0
    assert read_indexed(tmp_path / "out") == as_bytes(['{"text": "a"}\n'])
    # Of a folder each is a text.
    assert run(tmp_path, "--include", "set.json", *args[1:])[0] == 0
    (tmp_path / "run.toml").write_text("[data]\n")
    both = (tmp_path / "set.json", tmp_path / "run.toml", *args[1:])
    assert "run.toml: a recipe stands alone; with --type text it is text" in run(*both)[2]
    assert run(*both, "--type", "text")[0] == 0
    assert len(read_indexed(tmp_path / "out")) == 2


def test_an_editors_mark_before_the_first_line(run, tmp_path):
    (tmp_path / "set.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n')
    assert run(tmp_path / "set.jsonl", "--tokenizer", "bytes", "--output", tmp_path / "out")[0] == 0
    assert read_indexed(tmp_path / "out") == as_bytes(["a", "b"])


def test_a_column_of_a_few_texts(run, tmp_path):
    texts = pyarrow.array(["a", "b", "a"]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "set.parquet")
    assert run(tmp_path / "set.parquet", "--tokenizer", "bytes", "--output", tmp_path / "out")[0] == 0
    assert read_indexed(tmp_path / "out") == as_bytes(["a", "b", "a"])


def test_a_folder_that_cannot_be_read_is_not_passed_over(run, corpus, tmp_path, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if os.path.basename(path) == "sub":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)  # root may read everything
    status, _, err = run(corpus, "--tokenizer", "bytes", "--output", tmp_path / "out")
    assert status == 1
    assert f"error: {corpus / 'sub'}: Permission denied" in err
    assert not (tmp_path / "out.idx").exists()


def test_a_link_to_nothing_is_passed_over_and_named(run, corpus, tmp_path):
    (corpus / "lost.py").symlink_to(tmp_path / "nowhere")
    status, _, err = run(corpus, "--include", "*.py", "--tokenizer", "bytes", "--output", tmp_path / "out")
    assert status == 0
    assert err.count("passed over") == 1
    assert f"note: {corpus / 'lost.py'} is no file, or a link to none" in err


def test_places_that_cannot_be_written_are_named(run, corpus, tmp_path):
    (tmp_path / "file").touch()
    args = (corpus, "--tokenizer", "bytes", "--output")
    for output in (tmp_path / "file" / "out", tmp_path / "file" / "deep" / "out"):
        assert f"error: {output.parent}: cannot be made: a file stands in its place" in run(*args, output)[2]
    assert f"--output {tmp_path}: is a folder; add a name" in run(*args, tmp_path)[2]
    # Nothing is made for inputs that are not there.
    run(tmp_path / "nothing", *args[1:], tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


def test_missing_inputs_are_named(run, corpus, tmp_path):
    args = ("--tokenizer", "bytes", "--output", tmp_path / "out")
    assert "no such file or folder" in run(tmp_path / "nothing.txt", *args)[2]
    assert "no file that matches *.rs" in run(corpus, "--include", "*.rs", *args)[2]
