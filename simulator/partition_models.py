"""Cost tables of the partition evaluator from the training cost model, without any measurement.

A transformer of L blocks has L + 2 layers here: embedding, blocks, head. What one layer costs on an
accelerator at a tensor-parallel degree is read off the calibrated kernel of `training`: three
stages are costed, and the difference between them is the embedding, a block and the head. So a
plan's stage times and a single cluster's step time come from the same model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dtgym.simulator import calibration as calibrations
from dtgym.simulator import plans as training_plans
from dtgym.simulator import training
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.hardware import Accelerator, Cluster, Node, NodeGroup
from dtgym.simulator.kernels import training_columns as columns
from dtgym.simulator.kernels.training_cost import plan_costs
from dtgym.simulator.partition_types import RECOMPUTE, CostTables
from dtgym.simulator.workload import Transformer

Floats = NDArray[np.float64]

TENSOR_PARALLEL = (1, 2, 4, 8)
SAMPLES = (1, 2, 4, 8, 16, 32)

# The two splits of blocks over three stages whose difference is one block on the middle stage.
_MIDDLE_BLOCKS = (1, 2)
_FORWARD, _BACKWARD, _WEIGHTS, _STORED, _UPDATE = range(5)


def analytic_tables(
    models: Sequence[Transformer],
    accelerators: Sequence[Accelerator],
    *,
    gpus_per_node: int = 8,
    tensor_parallel: Sequence[int] = TENSOR_PARALLEL,
    samples: Sequence[int] = SAMPLES,
) -> CostTables:
    """Cost tables with a row for each model on each accelerator, models outermost.

    Args:
        models: Transformers of at least four blocks, with their sequence lengths.
        accelerators: What they run on, in 16 bits.
        gpus_per_node: Accelerators that share the fast link; bounds tensor parallelism.
        tensor_parallel: Degrees; those that do not divide a model's heads have no price.
        samples: Sequences per replica and micro-batch.

    Raises:
        InvalidInput: No model or accelerator, or a model with fewer than four blocks.

    Examples:
        >>> from dtgym.simulator import hardware, workload
        >>> tables = analytic_tables(
        ...     [workload.transformer("llama2-7b")], [hardware.accelerator("A100-80")],
        ...     tensor_parallel=(1, 2), samples=(1,))
        >>> whole_s = tables.forward_s[0, :, 0, -1]
        >>> tables.layers.tolist(), bool(whole_s[0] > whole_s[1])
        ([34], True)
    """
    if not models or not accelerators:
        raise InvalidInput("models and accelerators must each name at least one")
    for model in models:
        if model.layers < 4:
            raise InvalidInput(
                f"model {model.name} must have at least 4 blocks, has {model.layers}"
            )
    degrees = sorted(tp for tp in set(tensor_parallel) if tp <= gpus_per_node)
    pairs = [(model, accelerator) for model in models for accelerator in accelerators]
    rows, sizes, batches = len(pairs), len(degrees), sorted(set(samples))
    borders = max(model.layers for model in models) + 3
    forward_s = np.full((rows, sizes, len(batches), borders), np.nan)
    backward_s, selective_s = forward_s.copy(), forward_s.copy()
    update_s = np.full((rows, sizes, borders), np.nan)
    parameters = update_s.copy()
    activation_bytes = np.full((rows, len(RECOMPUTE), sizes, borders), np.nan)
    largest = np.zeros((rows, sizes))
    output = np.zeros((rows, borders))
    for row, (model, accelerator) in enumerate(pairs):
        stop = model.layers + 3
        for t, tp in enumerate(degrees):
            if model.heads % tp:
                continue
            node = _node(accelerator, gpus_per_node)
            for b, batch in enumerate(batches):
                layer = _layers(model, node, tp, batch)
                forward_s[row, t, b, :stop] = _prefix(layer[0][0][_FORWARD])
                backward_s[row, t, b, :stop] = _prefix(layer[0][0][_BACKWARD])
                extra = layer[1][0][_BACKWARD] - layer[0][0][_BACKWARD]
                selective_s[row, t, b, :stop] = _prefix(np.maximum(extra, 0.0))
                if b == 0:
                    update_s[row, t, :stop] = _prefix(layer[0][0][_UPDATE])
                    parameters[row, t, :stop] = _prefix(layer[0][0][_WEIGHTS])
                    for kind, (costs, working) in enumerate(layer):
                        activation_bytes[row, kind, t, :stop] = _prefix(costs[_STORED] / batch)
                        largest[row, t] = max(largest[row, t], working / batch)
        output[row, 1 : stop - 1] = float(model.sequence) * model.hidden
        output[row, stop - 1] = float(model.sequence) * model.vocab
    return CostTables(
        names=tuple(f"{model.name} on {accelerator.name}" for model, accelerator in pairs),
        tensor_parallel=np.array(degrees),
        samples=np.array(batches),
        layers=np.array([model.layers + 2 for model, _ in pairs]),
        forward_s=forward_s,
        backward_s=backward_s,
        selective_s=selective_s,
        update_s=update_s,
        parameters=parameters,
        activation_bytes=activation_bytes,
        largest_activation_bytes=largest,
        output_elements=output,
    )


def _node(accelerator: Accelerator, gpus: int) -> Node:
    # Only the fast link counts: nothing here crosses nodes.
    return Node(accelerator.name, accelerator, gpus, 1, 1e12, 1e9, 1e11)


def _layers(model: Transformer, node: Node, tp: int, samples: int) -> list[tuple[Floats, float]]:
    """By recompute: (5, L + 2) forward, backward, parameters, stored bytes, update; working bytes.

    All per accelerator, for one micro-batch of `samples` sequences.
    """
    gpus = 3 * tp
    cluster = Cluster(node.name, (NodeGroup(-(-gpus // node.gpus), node),))
    problem = training_plans.Problem(model, cluster, global_batch=samples, gpus=gpus)
    splits = [[model.layers - middle - 1, middle, 1] for middle in _MIDDLE_BLOCKS]
    kinds = len(RECOMPUTE)
    plans = training_plans.Plans.of(
        tensor=tp,
        pipeline=3,
        microbatch=samples,
        sequence_parallel=int(tp > 1),
        recompute=np.repeat(np.arange(kinds), len(splits)),
        stage_layers=splits * kinds,
    )
    tables = training.encode(problem, plans)
    count, stages = tables.stage_layers.shape
    forward, backward = np.empty((count, stages)), np.empty((count, stages))
    scalars = np.empty((count, len(columns.SCALARS)))
    parts = np.empty((count, stages, len(columns.STAGE_PARTS)))
    memory = np.empty((count, stages, len(columns.MEMORY_PARTS)))
    plan_costs(
        tables.model_rows,
        tables.hardware_rows,
        tables.plan_rows,
        tables.model_index,
        tables.hardware_index,
        tables.stage_layers,
        calibrations.shipped().vector(),
        0,
        count,
        forward,
        backward,
        scalars,
        parts,
        memory,
        np.empty((count, stages)),
        np.empty(count, dtype=np.int64),
        np.empty(count),
    )
    whole = np.stack(
        [
            forward,
            backward,
            memory[..., columns.MEMORY_PARTS.index("weights")] / 2,
            memory[..., columns.MEMORY_PARTS.index("activations")],
            parts[..., columns.STAGE_PARTS.index("update_s")],
        ]
    ).reshape(5, kinds, len(splits), stages)
    return [_differences(whole[:, kind], splits[0], model.layers) for kind in range(kinds)]


def _differences(whole: Floats, split: list[int], blocks: int) -> tuple[Floats, float]:
    """Layers from stages: `whole` is (5, splits, stages), `split` the first split's blocks."""
    block = whole[:, 1, 1] - whole[:, 0, 1]
    # What a stage has besides its blocks: nothing but working memory and a host's fixed time.
    fixed = np.array([0.0, 0.0, 0.0, 1.0, 1.0]) * (whole[:, 0, 1] - block)
    costs = np.repeat(block[:, None], blocks + 2, axis=1)
    costs[:, 0] = whole[:, 0, 0] - split[0] * block - fixed
    costs[:, -1] = whole[:, 0, 2] - block - fixed
    return np.maximum(costs, 0.0), max(float(fixed[_STORED]), 0.0)


def _prefix(values: Floats) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values)))
