"""A run's recorded steps, the page about them in a real browser, the snapshot for PyTorch's memory viewer."""

import json
import os
import pickle
import re
import shutil
import struct
import subprocess

import pytest
import torch.cuda._memory_viz as memory_viz
from steppe_program import clean_environment, read_metrics

_STEPS, _RANKS = (2, 5), (0, 1)


@pytest.fixture(scope="session")
def folder(start_once):
    sets = ["logging.moe=detailed", f"profiler.steps={list(_STEPS)}", f"profiler.ranks={list(_RANKS)}"]
    job = start_once("--ranks", 2, sets=sets)
    assert job.wait() == 0, job.output
    return job.folder


@pytest.fixture(scope="session")
def report(program):
    def call(*arguments, status=0):
        command = [str(argument) for argument in (program, "report", *arguments)]
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == status, done.stderr
        return done

    return call


@pytest.fixture(scope="session")
def browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    reason = "no Chromium in PATH (Debian: chromium)"
    return pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@pytest.fixture(scope="session")
def page(report, folder):
    report(folder)
    return folder / "report.html"


def _timeline(folder, step, rank):
    return json.loads((folder / f"timeline/step_{step}_rank_{rank}.json").read_text())


def _peak(timeline):
    """The highest of the device's live bytes, and its parts, by adding up the events."""
    live = dict(zip(timeline["categories"], timeline["start"][0], strict=True))
    highest, parts = sum(live.values()), dict(live)
    for size, category, domain, after in timeline["events"]:
        if domain == 0:
            live[timeline["categories"][category]] += size
            assert sum(live.values()) == after
            if after > highest:
                highest, parts = after, dict(live)
    return highest, {name: size for name, size in parts.items() if size}


@pytest.mark.parametrize("step", _STEPS)
def test_recorded_steps_have_the_peak_that_metrics_tell(folder, step):
    (metrics,) = (line for line in read_metrics(folder) if line["step"] == step)
    highest, parts = max((_peak(_timeline(folder, step, rank)) for rank in _RANKS), key=lambda peak: peak[0])
    assert highest == metrics["peak_bytes"]
    assert parts == metrics["peak_by_category"]


def test_only_named_steps_and_ranks_are_recorded(folder):
    names = {path.name for path in (folder / "timeline").iterdir()}
    assert names == {f"step_{step}_rank_{rank}.json" for step in _STEPS for rank in _RANKS}


def test_phases_of_a_step_are_in_its_marks(folder):
    marks = [text for _, text in _timeline(folder, 2, 0)["marks"]]
    assert marks[0] == "embedding forward"
    assert marks[-1] == "optimizer"
    assert "layer 1 backward" in marks


def _dom(browser, page, profile):
    """The page's elements at its load event, when it must be drawn, and what its scripts complained about."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={profile}", "--window-size=1280,1000"]
    command += ["--enable-logging=stderr", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_page_draws_itself_in_a_browser(browser, page, folder, tmp_path):
    dom, complaints = _dom(browser, page, tmp_path / "profile")
    assert complaints == []
    assert 'data-ready="true"' in dom
    for section in ("memory", "peaks", "curves", "load"):
        assert f'<section class="card" id="{section}">' in dom
    held = {name for rank in _RANKS for name in _peak(_timeline(folder, 2, rank))[1]}
    drawn = set(re.findall(r'<path class="area" data-name="(\w+)" fill="var\(--\w+\)" d="M[\d.]+,', dom))
    assert drawn >= held
    assert dom.count('class="line"') > 8  # loss, throughput, …
    assert "finished" in dom
    assert "NaN" not in re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)


def test_the_page_is_drawn_before_the_first_frame(browser, page, tmp_path):
    """A busy machine's browser may give none before it prints or dumps the page: no observer is called."""
    frameless = tmp_path / "frameless.html"
    script = "<script>window.ResizeObserver = class { observe() {} };</script>"
    frameless.write_text(page.read_text().replace("<script", script + "<script", 1))
    dom, complaints = _dom(browser, frameless, tmp_path / "profile")
    assert complaints == []
    assert dom.count('class="area"') > 10
    assert dom.count('class="line"') > 8


def test_the_planned_peak_stands_beside_the_measured_one(browser, report, folder, tmp_path):
    plan = tmp_path / "plan.json"
    measured = max(line["peak_bytes"] for line in read_metrics(folder))
    plan.write_text(json.dumps({"fits": True, "peak_bytes": measured + 2048, "by_category": {"weights": 7}}))
    report(folder, "--plan", plan, "--output", tmp_path / "page.html")
    dom, complaints = _dom(browser, tmp_path / "page.html", tmp_path / "profile")
    assert complaints == []
    assert "Plan against measurement" in dom
    assert "−2.00 KiB" in dom
    assert 'class="planned"' in dom


def test_a_runs_own_plan_is_held_against_it(browser, report, program, recipe, start, tmp_path):
    """Though the recipe is elsewhere by then."""
    moved = tmp_path / "moved.toml"
    moved.write_text(recipe.read_text())
    job = start("--ranks", 2, recipe=moved, sets=["optimizer.placement=stream", "training.steps=2"])
    assert job.wait() == 0, job.output
    moved.unlink()
    report(job.folder)
    dom, complaints = _dom(browser, job.folder / "report.html", tmp_path / "profile")
    assert complaints == []
    kept = json.loads((job.folder / "plan.json").read_text())
    assert "Plan against measurement" in dom
    for term in (*kept["terms"], *kept["host_terms"]):
        assert f"<td>{term['name']}</td>" in dom
    assert "in host memory" in dom
    assert "optimizer, to the device" in dom


def test_a_run_that_was_refused_shows_what_would_have_to_change(browser, report, start, tmp_path):
    sets = ["activation_checkpoint.mode=none", "training.steps=1"]
    fits = start(sets=sets)
    assert fits.wait() == 0, fits.output
    peak = json.loads((fits.folder / "plan.json").read_text())["peak_bytes"]
    job = start(sets=[*sets, f"hardware.device_memory={peak - 1}"])
    assert job.wait() == 2, job.output
    kept = json.loads((job.folder / "plan.json").read_text())
    assert kept["changes"]
    report(job.folder)
    dom, complaints = _dom(browser, job.folder / "report.html", tmp_path / "profile")
    assert complaints == []
    assert "does not fit" in dom
    assert "What would have to change" in dom
    for change in kept["changes"]:
        assert change in dom


@pytest.mark.parametrize("ground", [[], ["--dark", "--only-changes"]])
def test_the_picture_is_a_png_of_the_chart(browser, report, folder, tmp_path, ground):
    picture = tmp_path / "memory.png"
    report(folder, "--png", picture, "--browser", browser, "--output", tmp_path / "page.html", *ground)
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (2400, 1280)
    assert len(content) > 30_000  # one colour alone would be a tenth of it


def test_without_a_browser_the_page_is_written_and_the_reason_told(report, folder, tmp_path):
    page, picture = tmp_path / "page.html", tmp_path / "memory.png"
    done = report(folder, "--output", page, "--png", picture, "--browser", "no-such-browser", status=1)
    assert "needs Chromium, and no-such-browser is not in PATH" in done.stderr
    assert page.exists()
    assert not picture.exists()


def test_pytorch_reads_the_snapshot(report, folder, tmp_path):
    snapshot = tmp_path / "snapshot.pickle"
    report(folder, "--snapshot", snapshot, "--output", tmp_path / "page.html")
    data = pickle.loads(snapshot.read_bytes())
    assert "segments: " in memory_viz.segsum(data)
    assert "Device 0" in memory_viz.trace(data)
    assert "MemoryViz.js" in memory_viz.trace_plot(data)
    assert memory_viz.segment_plot(data)

    live, highest, categories = {}, 0, set()
    for entry in data["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            overlap = [
                a
                for a, size in live.items()
                if a < entry["addr"] + entry["size"] and entry["addr"] < a + size
            ]
            assert not overlap
            live[entry["addr"]] = entry["size"]
            categories.add(entry["frames"][0]["name"])
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
        highest = max(highest, sum(live.values()))
    peaks = [_peak(_timeline(folder, step, rank)) for step in _STEPS for rank in _RANKS]
    assert highest == max(peak[0] for peak in peaks)
    assert {"weights", "optimizer", "attention", "expert"} <= categories
    (segment,) = (one for one in data["segments"] if one["device"] == 0)
    active = {b["address"]: b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"}
    assert active == live
    # Freed pairs gone, what remains is what the step left alive.
    rest = memory_viz.filter_alloc_free_pairs(data)["device_traces"][0]
    assert sum(entry["size"] for entry in rest if entry["action"] == "alloc") == sum(live.values())


def test_mistakes_are_named(report, folder, tmp_path):
    assert "nowhere is not there" in report(tmp_path / "nowhere", status=2).stderr
    assert "metrics.jsonl" in report(tmp_path, status=2).stderr
    (tmp_path / "other.json").write_text("{}")
    assert "steppe plan --json" in report(tmp_path / "other.json", status=2).stderr
    assert "cannot write" in report(folder, "--output", tmp_path / "none/page.html", status=1).stderr
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "metrics.jsonl").write_text('{"step":1,"loss":2.5,"peak_bytes":3,"peak_by_category":{}}\n{"st')
    done = report(bare)
    assert "unfinished" in done.stderr
    assert "profiler.steps" in done.stderr
    assert "needs a recorded timeline" in report(bare, "--snapshot", tmp_path / "s.pickle", status=2).stderr


def test_a_rank_that_the_run_does_not_have(start):
    job = start(sets=["profiler.steps=[1]", "profiler.ranks=[0,3]"])
    assert job.wait() == 2
    assert "profiler.ranks must be below the 1 ranks of the run, got 3" in job.output
