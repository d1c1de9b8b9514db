"""What a run's folder holds already: a run that goes on or begins again, another's, or other files."""

import json
import shutil

from steppe_program import LONG, losses, read_metrics, wait_until


def test_a_folder_of_another_recipe_says_which_keys_differ(start, tmp_path):
    never_saves = ["checkpoint.first_step=false", "checkpoint.interval=0"]
    killed = start(sets=[*LONG, *never_saves], folder=tmp_path / "run")
    killed.wait_for_step(1)
    killed.end()
    refused = start(sets=[*LONG, *never_saves, "training.steps=3"], folder=tmp_path / "run")
    assert refused.wait() == 2
    assert "training.steps (1000000 there, 3 here)" in refused.output
    assert "no complete checkpoint" in refused.output


def test_a_folder_of_other_files_is_left_alone(start, tmp_path):
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "thesis.tex").write_text("chapter")
    (folder / "recipe.toml").write_text("# by hand")
    (folder / "run.out").write_text("a launcher's")
    refused = start("--ranks", 2, folder=folder)
    assert refused.wait() == 2
    assert (
        f'run.folder = "{folder}" holds files that are not a run\'s: recipe.toml, thesis.tex'
        in refused.output
    )
    assert sorted(path.name for path in folder.iterdir()) == ["recipe.toml", "run.out", "thesis.tex"]
    for _ in range(2):  # a run's folder from then on
        beside = start("--ranks", 2, "--beside-other-files", folder=folder)
        assert beside.wait() == 0, beside.output
    assert (folder / "thesis.tex").read_text() == "chapter"
    assert (folder / "recipe.toml.old").read_text() == "# by hand"
    again = start("--ranks", 2, folder=folder)
    assert again.wait() == 0, again.output


def test_a_run_with_nothing_left_to_do_keeps_its_recipe(start, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    kept = (folder / "recipe.toml").read_text()
    again = start("--ranks", 2, folder=folder, sets=["training.steps=3", "optimizer.lr=0.5"])
    assert again.wait() == 0, again.output
    assert "step 5 of 3 is done: nothing is left to do" in again.output
    assert (folder / "recipe.toml").read_text() == kept
    longer = start("--ranks", 2, folder=folder, sets=["training.steps=6", "optimizer.lr=0.5"])
    assert longer.wait() == 0, longer.output
    assert "steps = 6" in (folder / "recipe.toml").read_text()


def test_the_order_of_a_recipes_lines_does_not_make_another(start, tmp_path):
    folder = tmp_path / "run"
    never_saves = ["checkpoint.first_step=false", "checkpoint.interval=0"]
    killed = start(sets=[*LONG, *never_saves], folder=folder)
    killed.wait_for_step(1)
    killed.end()
    sections = (folder / "recipe.toml").read_text().split("\n\n")
    (folder / "recipe.toml").write_text("\n\n".join(reversed(sections)))
    again = start(sets=[*LONG, *never_saves], folder=folder)
    wait_until(lambda: (folder / "metrics.jsonl.old").exists(), "the run begins again")
    again.end()


def test_another_recipes_folder_is_refused(start, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    never = start(folder=folder, sets=["checkpoint.resume=never"])
    assert never.wait() == 2
    assert "holds a run already" in never.output
    other = start(folder=folder, sets=["training.seq_length=32"])
    assert other.wait() == 2
    assert "training.seq_length = 64, this run has 32" in other.output
    assert "checkpoint.load_weights_only = true" in other.output
    assert read_metrics(folder) == read_metrics(finished.folder)


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(start, finished, tmp_path):
    folder = tmp_path / "run"
    sets = ["checkpoint.keep=0", "checkpoint.interval=2"]
    job = start("--ranks", 2, folder=folder, sets=sets)
    assert job.wait() == 0, job.output
    shutil.rmtree(folder / "checkpoints")
    again = start("--ranks", 2, folder=folder, sets=sets)
    assert again.wait() == 0, again.output
    assert losses(folder) == losses(finished.folder)
    assert len((folder / "metrics.jsonl.old").read_text().splitlines()) == len(read_metrics(folder))


def test_a_folder_for_checkpoints_that_cannot_be_made_stops_the_run_at_once(start, tmp_path):
    (tmp_path / "file").touch()
    job = start("--ranks", 2, sets=[f"checkpoint.folder={tmp_path}/file/checkpoints", *LONG])
    assert job.wait() == 1
    assert job.output.count("step 1 is not saved: rank 0: ") == 1
    assert "Not a directory" in job.output
    assert json.loads((job.folder / "status.json").read_text())["state"] == "failed"
