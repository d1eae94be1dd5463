"""Measures this machine for the cost simulator: matrix products, memory, and collectives.

Alone it measures one device. Under ``torchrun`` it also measures all-reduces among the processes
(gloo on processors, nccl on GPUs) and fits their latency and bandwidth; all processes of one
machine share its links, processes on several machines its network.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dtgym.simulator import calibration
from dtgym.simulator.hardware import Accelerator, Cluster, Node, NodeGroup

MATMUL_SIZES = (512, 1024, 2048)
ALL_REDUCE_BYTES = (1 << 16, 1 << 19, 1 << 22, 1 << 25)


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        device: Name of the device.
        flop_per_s: Fastest matrix product.
        memory_bytes: Memory of the device.
        memory_bytes_per_s: Copy rate, bytes read plus written.
        ranks: Processes.
        ranks_per_node: Processes on this machine.
        latency_s: Fitted start of an all-reduce; 0 alone.
        bandwidth_bytes_per_s: Fitted payload rate of one direction; 0 alone.
    """

    device: str
    flop_per_s: float
    memory_bytes: float
    memory_bytes_per_s: float
    ranks: int
    ranks_per_node: int
    latency_s: float
    bandwidth_bytes_per_s: float


def best_duration_s(call: Callable[[], object], sync: Callable[[], None], budget_s: float) -> float:
    """Shortest wall time of `call` within a budget, after one run that is not counted."""
    call()
    sync()
    best = float("inf")
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        call()
        sync()
        best = min(best, time.perf_counter() - start)
    return best


def measure(budget_s: float = 1.0) -> Measured:
    """Measures this process's device and, under torchrun, the links among the processes.

    Args:
        budget_s: Time spent on each measurement.
    """
    import torch

    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    dtype = torch.bfloat16 if cuda else torch.float32

    def sync() -> None:
        if cuda:
            torch.cuda.synchronize(device)

    rates: list[float] = []
    for size in MATMUL_SIZES:
        left = torch.ones(size, size, dtype=dtype, device=device)
        duration = best_duration_s(lambda left=left: left @ left, sync, budget_s)
        rates.append(2 * size**3 / duration)
    source = torch.ones(1 << 26, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = best_duration_s(lambda: target.copy_(source), sync, budget_s)
    if cuda:
        properties = torch.cuda.get_device_properties(device)
        name, memory = properties.name, float(properties.total_memory)
    else:
        name = platform.processor() or platform.machine()
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    latency, bandwidth = _links(ranks, device, sync, budget_s) if ranks > 1 else (0.0, 0.0)
    return Measured(
        device=name.strip().replace(" ", "-"),
        flop_per_s=max(rates),
        memory_bytes=memory,
        memory_bytes_per_s=2 * source.numel() / copy_s,
        ranks=ranks,
        ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        latency_s=latency,
        bandwidth_bytes_per_s=bandwidth,
    )


def _links(ranks: int, device: object, sync: Callable[[], None], budget_s: float):
    """Latency and bandwidth from all-reduces of several sizes, the same on every rank."""
    import torch
    from torch import distributed

    distributed.init_process_group("nccl" if str(device).startswith("cuda") else "gloo")
    times: list[float] = []
    for size in ALL_REDUCE_BYTES:
        data = torch.ones(size // 4, device=device)  # pyright: ignore
        # Every rank must make the same calls: a number of them, not a time.
        repeats = max(3, int(10 * budget_s))
        distributed.all_reduce(data)
        best = float("inf")
        for _ in range(repeats):
            distributed.barrier()
            start = time.perf_counter()
            distributed.all_reduce(data)
            sync()
            best = min(best, time.perf_counter() - start)
        slowest = torch.tensor([best], device=device)  # pyright: ignore
        distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
        times.append(float(slowest.item()))
    distributed.destroy_process_group()
    return fit_link(np.array(ALL_REDUCE_BYTES, dtype=np.float64), np.array(times), ranks)


def fit_link(sizes: np.ndarray, times: np.ndarray, ranks: int) -> tuple[float, float]:
    """Start and payload rate from all-reduce times: t = start + 2 (n - 1) / n x bytes / rate.

    Weighted by 1 / t, so that small messages count as much as large ones.

    Examples:
        >>> sizes = np.array([1e5, 1e6, 1e7])
        >>> start, rate = fit_link(sizes, 1e-4 + 1.5 * sizes / 1e9, 4)
        >>> round(start * 1e6), round(rate / 1e6)
        (100, 1000)
    """
    moved = 2 * (ranks - 1) / ranks * sizes
    system = np.stack([np.ones_like(times), moved], axis=1) / times[:, None]
    start, per_byte = np.linalg.lstsq(system, np.ones_like(times), rcond=None)[0]
    return max(float(start), 0.0), 1 / max(float(per_byte), 1e-15)


def as_cluster(measured: Measured) -> Cluster:
    """The machine as a cluster whose sustained rates in the cost model are those measured.

    The model takes shares of stated peaks; what it is told here is the measured rate over that
    share. Links that were not measured (one process) are taken to be as fast as the memory.
    """
    values = calibration.shipped().values
    link = measured.bandwidth_bytes_per_s or measured.memory_bytes_per_s
    nodes = max(measured.ranks // measured.ranks_per_node, 1)
    inside = link if nodes == 1 else measured.memory_bytes_per_s
    device = Accelerator(
        name=measured.device,
        half_flop_per_s=measured.flop_per_s / values["matmul_ampere"],
        memory_bytes=measured.memory_bytes / measured.ranks_per_node,
        memory_bytes_per_s=measured.memory_bytes_per_s * values["elementwise"],
        peer_bytes_per_s=inside / values["peer_efficiency"],
    )
    node = Node(
        name=platform.node() or "this-machine",
        accelerator=device,
        gpus=measured.ranks_per_node,
        cpu_cores=os.cpu_count() or 1,
        memory_bytes=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        io_bytes_per_s=0.0,
        network_bytes_per_s=link * measured.ranks_per_node / values["network_efficiency"],
    )
    return Cluster("measured", (NodeGroup(nodes, node),), network_latency_s=measured.latency_s)
