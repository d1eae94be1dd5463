"""Seeds: one stream per environment, so that results do not depend on the size of a batch.

Three levels, each a pure function of the one above:

* ``reset(seed=s)`` of a vector environment gives environment i the child seed
  ``child_seeds(s, n)[i]``; a scalar environment takes its seed as it is. So environment i of a
  batch of any size lives exactly what ``gym.make(id)`` lives after
  ``reset(seed=child_seeds(s, n)[i])``.
* Episode e of a seed has the key ``episode_keys(seed, e)``. A reset without a seed goes on with
  episode e + 1, and so does the automatic reset at the end of an episode.
* Within an episode all randomness is drawn from the key: either by `generator`, a NumPy generator
  of its own, or by `uniform`, a counter-based draw that needs no state and no order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtgym.simulator.errors import InvalidInput

# Increment and multipliers of the SplitMix64 finaliser (Steele, Lea and Flood, Fast splittable
# pseudorandom number generators, OOPSLA 2014; constants of variant 13 by Stafford).
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)


def child_seeds(seed: int, count: int) -> list[int]:
    """Seeds of the environments of a batch: child i does not depend on `count`.

    Child i is ``SeedSequence(seed, spawn_key=(i,))``, NumPy's own way to split a seed, cut to 63
    bits so that it fits an int64 and JSON readers. Unlike ``seed + i``, the children of seeds 0 and
    1 have nothing in common.

    Args:
        seed: At least 0.
        count: Number of environments.

    Raises:
        InvalidInput: A negative seed.

    Examples:
        >>> child_seeds(7, 2) == child_seeds(7, 5)[:2]
        True
    """
    if seed < 0:
        raise InvalidInput(f"seed must be at least 0, got {seed}")
    return [
        int(np.random.SeedSequence(seed, spawn_key=(i,)).generate_state(1, np.uint64)[0] >> 1)
        for i in range(count)
    ]


def stream_keys(seeds: Sequence[int]) -> NDArray[np.uint64]:
    """One well-mixed 64-bit key per seed, whatever the size of the seeds.

    Returns:
        uint64, shape (seeds,).

    Raises:
        InvalidInput: A negative seed.
    """
    if any(seed < 0 for seed in seeds):
        raise InvalidInput(f"seed must be at least 0, got {min(seeds)}")
    states = [np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] for seed in seeds]
    return np.array(states, dtype=np.uint64)


def episode_keys(streams: NDArray[np.uint64], episodes: ArrayLike) -> NDArray[np.uint64]:
    """Key of episode e of each stream.

    Args:
        streams: From `stream_keys`, shape (environments,).
        episodes: Number of the episode within the stream, from 0; broadcasts.

    Returns:
        uint64, shape (environments,).

    Examples:
        >>> len(set(episode_keys(stream_keys([1, 2]), [[0], [1]]).ravel().tolist()))
        4
    """
    return mix(streams, np.asarray(episodes))


def mix(keys: NDArray[np.uint64], counters: ArrayLike) -> NDArray[np.uint64]:
    """Hashes each key with its counter (SplitMix64 seeded with the key, at that position).

    Args:
        keys: uint64, any shape.
        counters: Integers from 0, broadcast against `keys`.

    Returns:
        uint64 in the broadcast shape; neighbours in either argument give unrelated values.
    """
    positions = np.asarray(counters).astype(np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        # In place from here on: a batch of episodes draws millions of these at once.
        state = np.atleast_1d(keys) + positions * GOLDEN_GAMMA
        shifted = state >> np.uint64(30)
        state ^= shifted
        state *= _FIRST_MULTIPLIER
        np.right_shift(state, np.uint64(27), out=shifted)
        state ^= shifted
        state *= _SECOND_MULTIPLIER
        np.right_shift(state, np.uint64(31), out=shifted)
        state ^= shifted
    return state


def uniform(keys: NDArray[np.uint64], counters: ArrayLike) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), 53 bits each, one per key and counter.

    Examples:
        >>> draws = uniform(stream_keys([0]), np.arange(100_000))
        >>> bool(abs(draws.mean() - 0.5) < 0.005 and draws.max() < 1)
        True
    """
    bits = mix(keys, counters)
    bits >>= np.uint64(11)
    draws = bits.astype(np.float64)
    draws *= 2.0**-53
    return draws


def generator(episode_key: np.uint64 | int) -> np.random.Generator:
    """A NumPy generator that belongs to one episode of one environment.

    Examples:
        >>> key = episode_keys(stream_keys([3]), 0)[0]
        >>> bool(generator(key).random() == generator(key).random())
        True
    """
    return np.random.Generator(np.random.PCG64(int(episode_key)))
