"""Jobs that share GPUs log each other: the log never runs over its end."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dtgym.baselines.scheduling import METHODS
from dtgym.simulator import cluster, cluster_engine, cluster_rules
from dtgym.simulator.cluster_resources import Resources
from dtgym.simulator.job_speed import SpeedModel
from dtgym.simulator.jobs import JobTable


@settings(max_examples=30)
@given(data=st.data())
def test_the_log_of_shared_gpus_grows_before_it_is_full(data):
    """Pairs log each other's stretches; nothing may be written behind the end of a tight log."""
    count = data.draw(st.integers(1, 40))
    few = st.integers(0, 3)
    gpu_share = [data.draw(st.sampled_from([0.0, 0.3, 0.5])) for _ in range(count)]
    jobs = JobTable.from_columns(
        submit_s=[data.draw(few) for _ in range(count)],
        duration_s=[1 + data.draw(few) for _ in range(count)],
        num_gpus=[data.draw(st.sampled_from([1, 1, 2, 4])) for _ in range(count)],
        estimate_s=[1 + data.draw(few) for _ in range(count)],
        cpu_stage_s=[1 - share for share in gpu_share],
        gpu_stage_s=gpu_share,
    )
    machines = cluster.homogeneous(3, 2, cpu_cores_per_gpu=64)
    policy = data.draw(st.sampled_from(["lucid", "muri", "lucid-method", "srtf"]))
    spare = 4096
    whole = []

    class Tight(Resources):
        """Logs as small as they can be, each the front of a larger array that must stay empty."""

        def guard(self, rows, places):
            old, fields = self.machine, {}
            sizes = {"log_row": rows, "log_work_ms": rows, "log_places": places}
            for name, size in sizes.items():
                values = getattr(old, name)
                larger = np.zeros((size + spare, *values.shape[1:]), values.dtype)
                used = min(size, len(values))
                larger[:used] = values[:used]
                whole.append((larger, size))
                fields[name] = larger[:size]
            self.machine = old._replace(**fields)

        def grow_log(self):
            self.guard(len(self.machine.log_row) + 1, len(self.machine.log_places) + 1)

    machine = Tight(jobs, machines, placement="consolidate", speed=SpeedModel())
    machine.guard(1, 1)
    if policy == "lucid-method":
        cluster_engine.run(machine, METHODS["lucid-like"]())
    else:
        levels = (np.zeros(0, np.int64), np.zeros(1, np.int64), 1000)
        cluster_rules.run(
            machine, policy, order=None, skip=True, levels=levels, interval_ms=0, depth=1,
            threshold=None,
        )  # fmt: skip
    assert len(whole) > 3
    for larger, size in whole:
        assert not larger[size:].view(np.int64).any()
