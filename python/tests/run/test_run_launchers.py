"""Under what starts ranks elsewhere: torchrun itself; srun and mpirun by the variables they set."""

import signal
import sys

import pytest
from steppe_program import LONG, read_metrics, read_status

_TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"]
_SLURM = {
    "SLURM_JOB_ID": 17,
    "SLURM_STEP_ID": 0,
    "SLURM_NTASKS": 2,
    "SLURM_TASKS_PER_NODE": "2",
    "SLURM_NODEID": 0,
}


def torchrun(port):
    return [*_TORCHRUN, "--master-addr", "127.0.0.1", "--master-port", str(port)]


def test_torchrun_trains_until_it_is_told_to_stop(start, free_port):
    job = start(sets=LONG, launcher=torchrun(free_port), OMP_NUM_THREADS="")
    job.wait_for_step(2)
    job.process.send_signal(signal.SIGTERM)
    job.wait()  # torchrun's status is 1, whatever its ranks say
    metrics = read_metrics(job.folder)
    assert metrics[0]["num_ranks"] == 2
    assert read_status(job.folder) == {"state": "stopped", "reason": "SIGTERM", "step": metrics[-1]["step"]}
    assert f"stopped by SIGTERM after step {metrics[-1]['step']}" in job.output
    assert "failed to bind" not in job.output


def test_torchrun_shows_the_message_of_a_rank_that_fails(start, free_port):
    sets = ["validation.at_start=false", "parallelism.vocab_parallel_degree=3"]
    job = start(sets=sets, launcher=torchrun(free_port))
    assert job.wait() == 1
    root_cause = job.output.partition("Root Cause")[2]
    assert "parallelism.vocab_parallel_degree must" in root_cause
    assert "got 3" in root_cause
    assert "To enable traceback" not in job.output  # what torchrun says where there is no message
    status = read_status(job.folder)
    assert status["state"] == "failed"
    assert "parallelism.vocab_parallel_degree" in status["reason"]


@pytest.mark.parametrize(
    "variables",
    [
        lambda rank: {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": 2,
            "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": 2,
        },
        lambda rank: {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": 2},
        lambda rank: {**_SLURM, "SLURM_PROCID": rank, "SLURM_LOCALID": rank},
    ],
    ids=["openmpi", "mpich", "slurm"],
)
def test_ranks_from_variables(start, free_port, tmp_path, variables):
    folder = tmp_path / "run"
    ranks = [
        start(sets=["validation.steps=1"], folder=folder, MASTER_PORT=free_port, **variables(rank))
        for rank in (0, 1)
    ]
    for job in ranks:
        assert job.wait() == 0, job.output
    assert read_status(folder) == {"state": "finished", "reason": "", "step": 5}
    assert [metrics.get("num_ranks") for metrics in read_metrics(folder)][1:] == [2] * 5
    assert "step 5/5" in ranks[0].output
    assert ranks[1].output == ""


def test_a_launchers_rank_fails_and_takes_the_others_along(start, free_port, tmp_path, recipe):
    """Only rank 1's data is missing: rank 0, which prints, says whose fault it is."""
    ranks = []
    for rank, prepared in enumerate((recipe.parent / "prepared", tmp_path / "nowhere")):
        variables = {**_SLURM, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}
        sets = [f"data.prepared={prepared}"]
        ranks.append(start(sets=sets, folder=tmp_path / "run", MASTER_PORT=free_port, **variables))
    assert [job.wait() for job in ranks] == [1, 2]  # another's failure; bad input of its own
    assert ranks[0].output.count("rank 1 failed: ") == 1
    assert str(tmp_path / "nowhere/text.idx") in ranks[0].output
    status = read_status(tmp_path / "run")
    assert status["state"] == "failed"
    assert status["reason"].startswith("rank 1 failed: ")


def test_a_launchers_rank_0_dies_and_the_other_says_so(start, free_port, tmp_path):
    """Without a word, and with the store that it served."""
    ranks = []
    for rank in (0, 1):
        variables = {**_SLURM, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}
        ranks.append(start(sets=LONG, folder=tmp_path / "run", MASTER_PORT=free_port, **variables))
    ranks[0].wait_for_step(2)
    ranks[0].process.kill()
    assert ranks[1].wait() == 1
    said = ranks[1].output
    assert "rank 0 failed: " in said
    assert "rank 1 failed: " not in said
    # The store's library has a page to say about each try to reach it.
    assert said.count("sendBytes failed") < 60, said  # seven seconds of tries: 140


def test_a_used_folder_is_refused_to_all_ranks(start, free_port, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text('{"step":1}\n')
    ranks = []
    for rank in (0, 1):
        variables = {**_SLURM, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}
        ranks.append(start(folder=tmp_path / "run", MASTER_PORT=free_port, **variables))
    assert ranks[0].wait() == 2
    assert ranks[1].wait() == 1
    assert ranks[0].output.count("holds a run already") == 1
    assert not (tmp_path / "run/status.json").exists()
