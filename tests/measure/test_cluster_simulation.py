"""The simulation of a cluster: what must hold whatever the cluster, and what is known without simulating."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_costs import Costs, Job, Part, Work, work_of
from simulate_cluster import Cluster, Simulation, simulate

COSTS = Costs()
STEADY = Cluster(2, cores=8, threads=2, coordination=0.0, start=3.0, slow_down=0.0, failures=0.0)
EQUAL = Work(tuple(Part(20.0, (0,), (0,)) for _ in range(24)), (0.0,), (0.0,))


def run(work, cluster, failures=(), seed=0):
    return Simulation(work, cluster, COSTS, np.random.default_rng(seed), failures).run()


def planned(parts, **changes):
    return work_of(Job(60_000, class_size=10, **changes), parts, 4e9, COSTS)


def test_equal_parts_without_trouble_take_the_work_divided_by_the_cores():
    assert run(EQUAL, STEADY).seconds == pytest.approx(3 + 24 * 20 / 16)  # 8 workers of 2 cores, 3 parts each


def test_the_driver_and_the_network_take_the_time_that_the_formula_says():
    handled = replace(STEADY, coordination=1.5)
    # One worker merges five times 4 of the 24 counts, then 4 results, and at last the other 4 counts with 2 results.
    assert run(EQUAL, replace(handled, nodes=1, cores=2)).seconds == pytest.approx(3 + 24 * (1.5 + 10) + 7 * 1.5)
    sized = replace(EQUAL, vector_bytes=(1e9,), count_bytes=(1e6,))
    lone = replace(STEADY, nodes=1, cores=2, network=1e8, storage=1e12)
    expected = 3 + 10 + 24 * (10 + COSTS.write * 1e6) + COSTS.merge * (24 + 6) * 1e6 + 0.01
    assert run(sized, lone).seconds == pytest.approx(expected)  # vectors are read once, counts come to the driver
    assert run(sized, lone).into_driver == 1e6
    assert run(sized, lone).network == pytest.approx(1e9 + 24e6 * COSTS.file_share + 1e6)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.floats(0, 0.6), st.floats(0, 40), st.integers(0, 1000))
def test_every_part_is_counted_once_and_no_run_is_shorter_than_its_work(parts, nodes, slow_down, failures, seed):
    work = planned(parts)
    cluster = replace(STEADY, nodes=nodes, slow_down=slow_down, failures=60 * failures, absence=5.0, detection=1.0)
    outcome = simulate(work, cluster, COSTS, seed)
    assert outcome.counted == {number: len(part.touched) for number, part in enumerate(work.parts)}
    assert outcome.attempts >= parts
    if slow_down == 0:
        assert outcome.seconds >= 3 + work.core_seconds / (nodes * 8)


def test_more_failures_do_not_shorten_runs_of_equal_parts():
    """On average; one more failure can shorten a run, because a node that is away misses the failure after it."""
    cluster = replace(STEADY, absence=2.0, detection=1.0, start=0.5)
    found = [
        [simulate(EQUAL, replace(cluster, failures=rate), COSTS, seed) for seed in range(20)]
        for rate in (0, 30, 100, 300)
    ]
    means = [np.mean([outcome.seconds for outcome in outcomes]) for outcomes in found]
    assert means == sorted(means)
    assert means[0] < means[1]
    assert min(outcome.seconds for outcomes in found for outcome in outcomes) == means[0] == 0.5 + 24 * 20 / 16
    lost = [np.mean([outcome.lost_seconds for outcome in outcomes]) for outcomes in found]
    assert lost[0] == 0
    assert lost == sorted(lost)
    assert all(outcome.attempts > 24 for outcome in found[3])


def test_slower_parts_and_a_slower_network_lengthen_a_run():
    work = planned(24)
    times = [simulate(work, replace(STEADY, slow_down=spread), COSTS, 1).seconds for spread in (0.0, 0.3, 0.9)]
    assert times == sorted(times)
    times = [simulate(work, replace(STEADY, network=rate), COSTS, 1).seconds for rate in (1e10, 1e7, 1e6)]
    assert times == sorted(times)
    assert times[0] < times[-1]


@pytest.mark.parametrize("columns", [None, 9900])
def test_the_parts_of_a_planned_job_have_all_pairs(columns):
    for parts in (1, 7, 40):
        work = work_of(Job(60_000, 10, 512, columns=columns), parts, 4e9, Costs(row={512: 0.0}, counter=0.0))
        rows = 60_000 * columns if columns else (60_000**2 + 60_000 * 512) / 2
        per_pair = COSTS.sampled[512] if columns else COSTS.tile[512]
        assert work.core_seconds == pytest.approx(per_pair * rows / 512**2, rel=0.01)
        assert sum(work.vector_bytes) == 60_000 * 512 * 4
        assert len(work.parts) == parts


def test_a_plan_of_a_hundred_million_items_needs_no_items():
    work = work_of(Job(100_000_000, class_size=1000, map_at_r=False), 300, 16e9, COSTS)
    assert work.core_seconds == pytest.approx(COSTS.tile[512] * (1e8 / 512) ** 2 / 2, rel=0.05)
    assert work.worker_memory <= 16e9
