"""Few queries, as in decoding: a loop of the engine does all steps for a head of K, and then for the next
head that no other thread has begun. So a thread that wakes late computes fewer heads, and Python is called
once for each thread.
"""

from __future__ import annotations

import numpy as np

from flash.cpu.engine import Array
from flash.cpu.job import SAFE, Job, Task, before_any_key
from flash.cpu.threads import BLAS_THREADS, helpers_for, run_together


def tasks_left(job: Job, threads: int | None) -> list[Task] | None:
    """Compute the heads whose sums without the maximum are safe, and return the tasks of the others. None,
    with nothing written, if the engine has no such loop for the call.
    """
    batch, heads, seq_q, d = job.q.shape
    if job.engine.attend is None or 0 in (batch, heads, seq_q) or job.group * seq_q > job.engine.few_rows:
        return None
    if job.tops is not None:
        return None  # the loop gives no maxima
    rows, queries = job.group * seq_q, slice(0, seq_q)
    seen = job.rules.seen_by_any(queries)
    if not seen or not job.rules.leave_alone(queries):
        return None
    kv_heads, keys = heads // job.group, slice(seen.start, seen.stop)
    helpers = helpers_for(batch * kv_heads, threads or BLAS_THREADS.usual(), job.multiplications)
    with np.errstate(all="ignore"):  # what is infinite is unsafe
        q = np.multiply(job.q, job.dtype.type(job.scale), dtype=job.dtype, order="C")
        q = q.reshape(batch, kv_heads, rows, d)
        total = _before_any_key(job, rows)
        out = np.empty((batch, kv_heads, rows, job.v.shape[3]), job.dtype)
        work = job.engine.attend(job.k, job.v, keys, q, total, out, SAFE, helpers + 1)
        if work is None:
            return None
        shared, is_safe = work
        run_together(shared, helpers)
        job.out[...] = out.reshape(job.out.shape)
        if job.lse is not None:
            job.lse[...] = np.log(total).reshape(job.lse.shape)
    if is_safe.all():
        return []
    of_unsafe = (
        (int(b), slice(int(kv) * job.group, (int(kv) + 1) * job.group))
        for b, kv in zip(*np.nonzero(~is_safe), strict=True)
    )
    return [Task(b, of_head, queries) for b, of_head in of_unsafe]


def _before_any_key(job: Job, rows: int) -> Array:
    """The sums of weights before any key, [batch, kv_heads, rows]."""
    batch, heads, seq_q, _ = job.q.shape
    total = np.empty((batch, heads * seq_q), job.dtype)
    for b, of_item in enumerate(total):
        sinks = job.rules.sinks(b, slice(0, heads), heads * seq_q)
        of_item[:] = before_any_key(sinks, heads * seq_q, job.dtype, shifted=False)[1]
    return total.reshape(batch, -1, rows)
