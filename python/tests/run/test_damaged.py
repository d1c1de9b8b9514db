"""Checkpoints that somebody damaged, and places that an export cannot or must not take."""

import shutil
import subprocess

import pytest
from steppe_program import clean_environment, read_metrics, read_status


@pytest.fixture(scope="session")
def saved(start_once):
    """A run whose checkpoints are of steps 1, 2, 4 and 5."""
    job = start_once(sets=["checkpoint.keep=0", "checkpoint.interval=2"])
    assert job.wait() == 0, job.output
    return job


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the run."""
    copy = tmp_path / "run"
    shutil.copytree(saved.folder, copy)
    return copy


def cut(path, keep=-1):
    path.write_bytes(path.read_bytes()[:keep])


@pytest.mark.parametrize("name", ["manifest.json", "rank_0000.safetensors", "rank_0000.crc32c"])
def test_the_checkpoint_before_one_that_is_cut_short_is_taken(start, saved, folder, name):
    damaged = folder / "checkpoints/step_00000005" / name
    cut(damaged)
    job = start(folder=folder)
    assert job.wait() == 0, job.output
    assert f"passed over: [checkpoint] {damaged}" in job.output
    assert f"goes on from {folder}/checkpoints/step_00000004: step 4" in job.output
    figures = [[(m["step"], m.get("loss")) for m in read_metrics(where)] for where in (folder, saved.folder)]
    assert figures[0] == figures[1]


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(start, folder):
    checkpoints = folder / "checkpoints"
    for manifest in checkpoints.glob("step_*/manifest.json"):
        cut(manifest)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for sets in ([], [f"checkpoint.load={checkpoints}/step_00000001"]):
        job = start(folder=folder, sets=sets)
        assert job.wait() == 2, job.output
        assert f"{checkpoints} holds no complete checkpoint" in job.output
        assert f"{checkpoints}/step_00000001/manifest.json is cut short" in job.output
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_of_checkpoints_that_cannot_be_read_is_no_empty_one(start, folder):
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").symlink_to("checkpoints")
    metrics = read_metrics(folder)
    job = start(folder=folder)
    assert job.wait() == 1, job.output
    assert f"cannot read the folder {folder}/checkpoints: Too many levels of symbolic links" in job.output
    assert read_metrics(folder) == metrics


def test_a_run_that_went_on_and_cannot_save_says_what_is_left(start, folder):
    """A folder stands where "latest" belongs."""
    (folder / "checkpoints/step_00000006.partial").touch()
    (folder / "checkpoints/latest.partial").mkdir()
    job = start(folder=folder, sets=["training.steps=6"])
    assert job.wait() == 0, job.output  # a new start clears such leftovers away
    (folder / "checkpoints/latest").unlink()
    (folder / "checkpoints/latest").mkdir()
    again = start(folder=folder, sets=["training.steps=7"])
    assert again.wait() == 1, again.output
    assert "step 7 is not saved: rank 0: " in again.output
    assert "that of step 6, which the run goes on from, is untouched" in again.output
    assert read_status(folder)["state"] == "failed"


def test_places_for_an_export(program, saved, tmp_path):
    def export(out):
        command = [program, "export", saved.folder, out]
        return subprocess.run(command, env=clean_environment(), capture_output=True, text=True)

    file, nowhere, link = tmp_path / "file", tmp_path / "nowhere", tmp_path / "link"
    file.touch()
    nowhere.symlink_to(tmp_path / "gone")
    for out in (file, nowhere):
        refused = export(out)
        assert refused.returncode == 2, refused.stderr
        assert f"{out} must be a new or an empty folder" in refused.stderr
    assert file.read_bytes() == b""
    (tmp_path / "target").mkdir()
    link.symlink_to("target")
    exported = export(link)
    assert exported.returncode == 0, exported.stderr
    assert link.is_symlink()
    assert (tmp_path / "target/model.safetensors").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "nowhere", "target"]
