"""The multi-objective genetic search that several schedulers share: pymoo's NSGA-II."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def nsga2(
    problem: Any,
    start: NDArray[np.int64],
    *,
    crossover: Any,
    mutation: Any,
    repair: Any,
    generations: int,
    seed: int,
) -> Any:
    """Runs NSGA-II from a first population of legal genomes.

    Args:
        problem: A pymoo `Problem` of integer variables.
        start: The first population, (individuals, variables); it sets the size of all.
        crossover: A pymoo `Crossover`.
        mutation: A pymoo `Mutation`.
        repair: A pymoo `Repair`.
        generations: Generations, the first included.
        seed: Of pymoo's own draws.

    Returns:
        pymoo's result: front ``X`` with objectives ``F``, and the last population ``pop``.

    Source:
        Deb et al., A fast and elitist multiobjective genetic algorithm, IEEE TEC 2002.
    """
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.optimize import minimize

    algorithm = NSGA2(
        pop_size=len(start),
        sampling=start,  # type: ignore[arg-type]  # pymoo takes arrays, its hint does not
        crossover=crossover,
        mutation=mutation,
        repair=repair,
        eliminate_duplicates=False,
    )
    return minimize(problem, algorithm, ("n_gen", generations), seed=seed, verbose=False)
