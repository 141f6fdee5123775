"""The key index process: decodes batches, writes and searches index files, outside of the broker's process.

FORMAT   standard input carries jobs, standard output their results, one for each (storage/keyindex/index_jobs.py)
NOT HERE The jobs, the broker's side (`index_process.py`), the pipes (`helper_main.py`).
"""

from __future__ import annotations

from broker.io.helper_main import begin, receive, send
from storage.io.disk import Disk
from storage.keyindex.index_jobs import IndexJobs, Job


def main(niceness: str) -> None:
    """Runs jobs until the input ends."""
    source, target = begin(int(niceness))
    jobs = IndexJobs(Disk())
    while (job := receive(source)) is not None:
        assert isinstance(job, Job)
        send(target, jobs.run(job))
