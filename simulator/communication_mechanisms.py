"""Published communication mechanisms as presets over the one kernel.

A mechanism fixes how gradients are cut, ordered and waited for. Some leave partition and credit to
a tuner (ByteScheduler), some fix them (P3), and some merge gradients instead (PyTorch DDP).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.communication import iteration_time_s, mechanism_flags
from dtgym.simulator.communication_layers import LayerTimes
from dtgym.simulator.errors import above, at_least, one_of
from dtgym.simulator.networks import Network

MIB = 2.0**20

DEFAULT_PARTITION_BYTES = 4e6
"""ByteScheduler's default partition: 1,000,000 parameters."""

DEFAULT_CREDIT_BYTES = 16e6
"""ByteScheduler's default credit: 4,000,000 parameters."""

P3_PARTITION_BYTES = 160e3
"""P3's slice in its released branch: 40,000 parameters."""


@dataclass(frozen=True)
class Mechanism:
    """How gradients are cut, ordered and waited for.

    Attributes:
        name: Key of `MECHANISMS`.
        partition_bytes: Fixed partition, or None where it is tunable.
        credit_bytes: Fixed credit, or None where it is tunable.
        order: See `dtgym.simulator.communication.iteration_time_s`.
        barrier: See there.
        credit_rule: See there.
        credit_return: See there.
        merge: Turns a model's layers into what is communicated, or None: layer by layer.
        source: Where the mechanism and its constants come from.
    """

    name: str
    partition_bytes: float | None
    credit_bytes: float | None
    order: str = "priority"
    barrier: bool = False
    credit_rule: str = "positive"
    credit_return: str = "completion"
    merge: Callable[[LayerTimes], LayerTimes] | None = None
    source: str = ""

    @property
    def tunable(self) -> bool:
        """Whether partition and credit are left to a tuner."""
        return self.partition_bytes is None

    def layers(self, layers: LayerTimes) -> LayerTimes:
        """Returns what is communicated: `layers`, merged if the mechanism merges."""
        return self.merge(layers) if self.merge else layers

    def flags(self, architecture: str) -> int:
        """Returns the mechanism's bits for `communication.batch_iteration_time_s`."""
        return mechanism_flags(
            architecture=architecture,
            order=self.order,
            barrier=self.barrier,
            credit_rule=self.credit_rule,
            credit_return=self.credit_return,
        )

    def iteration_time_s(
        self,
        layers: LayerTimes,
        network: Network,
        partition_bytes: ArrayLike = DEFAULT_PARTITION_BYTES,
        credit_bytes: ArrayLike = DEFAULT_CREDIT_BYTES,
        *,
        architecture: str = "ps",
    ) -> NDArray[np.float64]:
        """Iteration times under this mechanism; a fixed partition and credit override given ones.

        Examples:
            >>> layers = LayerTimes([1, 1, 1], [1, 1, 1], [1.5, 3, 1.5])
            >>> MECHANISMS["fifo"].iteration_time_s(layers, Network(0, 1, 0, 1)).tolist()
            [13.0]
        """
        return iteration_time_s(
            self.layers(layers),
            network,
            partition_bytes if self.partition_bytes is None else self.partition_bytes,
            credit_bytes if self.credit_bytes is None else self.credit_bytes,
            architecture=architecture,
            order=self.order,
            barrier=self.barrier,
            credit_rule=self.credit_rule,
            credit_return=self.credit_return,
        )


def buckets(
    layers: LayerTimes, *, first_bytes: float = 1 * MIB, bucket_bytes: float = 25 * MIB
) -> LayerTimes:
    """Merges gradients into buckets in the order of the backward pass, as PyTorch DDP does.

    A bucket closes as soon as it holds its size. Its bytes go to its lowest layer, whose gradient
    is the last to be ready; the other layers keep their compute times and communicate nothing.

    Args:
        layers: The model.
        first_bytes: Size at which the first bucket closes, bytes.
        bucket_bytes: Size at which every other bucket closes, bytes.

    Raises:
        InvalidInput: A size that is not above 0 bytes.

    Source:
        PyTorch 2.13, torch/nn/parallel/distributed.py: first bucket 1 MiB, others 25 MiB.

    Examples:
        >>> buckets(LayerTimes([1, 1, 1], [1, 1, 1], [5, 2, 1]), first_bytes=1,
        ...         bucket_bytes=4).gradient_bytes.tolist()
        [7.0, 0.0, 1.0]
    """
    limit = float(above("first_bytes", first_bytes, 0, "bytes"))
    following = float(above("bucket_bytes", bucket_bytes, 0, "bytes"))
    merged = np.zeros(layers.layers)
    held = 0.0
    for layer in range(layers.layers - 1, -1, -1):
        held += layers.gradient_bytes[layer]
        if held >= limit or layer == 0:
            merged[layer] = held
            held, limit = 0.0, following
    return LayerTimes(layers.forward_s, layers.backward_s, merged)


def merged_gradients(layers: LayerTimes, *, overhead_s: float, s_per_byte: float) -> LayerTimes:
    """Merges gradients as MG-WFBP does, where waiting costs less than another message.

    Going through the backward pass, a gradient is merged into the next one to be ready if its own
    transfer would not have started before that one is ready, or if waiting for that one takes less
    than the overhead of a message.

    Args:
        layers: The model.
        overhead_s: Time of a message besides its bytes, s.
        s_per_byte: Time per byte, s/byte.

    Raises:
        InvalidInput: A negative or non-finite number.

    Source:
        MG-WFBP (Shi et al., INFOCOM 2019), greedy merge of the released code.

    Examples:
        >>> layers = LayerTimes([1, 1, 1], [1, 1, 1], [4, 4, 4])
        >>> merged_gradients(layers, overhead_s=2, s_per_byte=1).gradient_bytes.tolist()
        [12.0, 0.0, 0.0]
    """
    overhead = float(at_least("overhead_s", overhead_s, 0, "s"))
    per_byte = float(at_least("s_per_byte", s_per_byte, 0, "s/byte"))
    ready = np.cumsum(layers.backward_s[::-1])[::-1]
    merged = layers.gradient_bytes.copy()
    free = 0.0
    for layer in range(layers.layers - 1, 0, -1):
        if merged[layer] == 0.0:
            continue
        start = max(free, ready[layer])
        following = ready[layer - 1]
        if start > following or following - ready[layer] < overhead:
            merged[layer - 1] += merged[layer]
            merged[layer] = 0.0
        else:
            free = start + overhead + merged[layer] * per_byte
    return LayerTimes(layers.forward_s, layers.backward_s, merged)


MECHANISMS: dict[str, Mechanism] = {
    mechanism.name: mechanism
    for mechanism in (
        Mechanism(
            "bytescheduler",
            None,
            None,
            source="ByteScheduler (Peng et al., SOSP 2019) and its release, common/bytecore.py",
        ),
        Mechanism(
            "byteps",
            None,
            None,
            credit_rule="fit",
            source="BytePS (Jiang et al., OSDI 2020), common/scheduled_queue.cc",
        ),
        Mechanism(
            "fifo",
            np.inf,
            np.inf,
            order="fifo",
            source="MXNet without a scheduler: whole tensors as they become ready, no barrier",
        ),
        Mechanism(
            "fifo_barrier",
            np.inf,
            np.inf,
            order="fifo",
            barrier=True,
            source="PyTorch and TensorFlow without a scheduler: as fifo, with a global barrier",
        ),
        Mechanism(
            "p3",
            P3_PARTITION_BYTES,
            1.0,
            credit_return="upload",
            source="P3 (Jayarajan et al., MLSys 2019) and its release: slices of 40,000 "
            "parameters; a sender that blocks until a slice has left",
        ),
        Mechanism(
            "tictac",
            np.inf,
            1.0,
            credit_return="upload",
            source="TicTac (Hashemi et al., MLSys 2019): whole tensors in the order in which the "
            "forward pass needs them, which on a chain of layers is what both TIC and TAC give",
        ),
        Mechanism(
            "ddp_buckets",
            np.inf,
            np.inf,
            order="fifo",
            barrier=True,
            merge=buckets,
            source="PyTorch DistributedDataParallel: buckets of 1 MiB, then 25 MiB, and a barrier",
        ),
    )
}
"""Every mechanism by name. A credit of one byte means one piece in flight."""


def mechanism(name: str) -> Mechanism:
    """Returns the mechanism of that name.

    Raises:
        InvalidInput: Unknown name; the message lists the known ones.

    Examples:
        >>> mechanism("p3").partition_bytes
        160000.0
    """
    return MECHANISMS[one_of("mechanism", name, tuple(MECHANISMS))]
