"""Shapes of models: totals of released checkpoints, and how FLOPs scale."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtgym.simulator import convolutional, workload
from dtgym.simulator.errors import InvalidInput
from dtgym.simulator.workload import Transformer

RELEASED = [name for name in workload.model_names() if workload.published_parameters(name)]


@pytest.mark.parametrize("name", RELEASED)
def test_totals_equal_the_released_checkpoints(name: str) -> None:
    assert workload.transformer(name).parameters == workload.published_parameters(name)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3-175b", 174.6),
        ("megatron-530b", 529.6),
        ("megatron-1t", 1008.0),
        ("opt-175b", 174.6),
        ("nemotron4-340b", 341.0),
        ("gpt3-6.7b", 6.66),
    ],
)
def test_rounded_totals(name: str, billions: float) -> None:
    assert workload.transformer(name).parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "parameters", "gigaflops"),
    [
        ("alexnet", 61_100_840, 1.43),
        ("vgg16", 138_357_544, 30.9),
        ("vgg19", 143_667_240, 39.3),
        ("resnet50", 25_557_032, 8.18),
        ("resnet101", 44_549_160, 15.6),
        ("resnet152", 60_192_808, 23.0),
    ],
)
def test_convolutional_networks(name: str, parameters: int, gigaflops: float) -> None:
    layers = convolutional.convolutional_layers(name)
    assert sum(layer.parameters for layer in layers) == parameters
    total = sum(layer.forward_flops for layer in layers)
    assert total / 1e9 == pytest.approx(gigaflops, rel=0.01)
    assert len({layer.name for layer in layers}) == len(layers)


def test_a_mixture_of_experts_counts_what_a_token_meets() -> None:
    mixtral = workload.transformer("mixtral-8x7b")
    assert mixtral.active_parameters / 1e9 == pytest.approx(12.9, rel=0.01)
    dense = workload.transformer("llama3-8b")
    assert dense.active_parameters == dense.parameters


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 4096), st.integers(1, 64))
def test_flops_are_twice_the_products_parameters_per_token(
    layers: int, width: int, sequence: int, tokens: int
) -> None:
    model = Transformer("m", layers, 128 * width, 8, 1000, sequence, bias=False, qkv_bias=False)
    products = model.attention_parameters + model.expert_parameters
    scores = 4.0 * tokens * sequence * model.hidden
    assert model.layer_forward_flops(tokens) == pytest.approx(2.0 * tokens * products + scores)
    masked = model.layer_forward_flops(tokens, causal=True)
    assert masked == pytest.approx(2.0 * tokens * products + scores / 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": 0}, "Transformer.layers must be at least 1"),
        ({"heads": 7}, r"Transformer.heads must divide hidden \(64\), got 7"),
        ({"kv_heads": 3}, r"Transformer.kv_heads must divide heads \(8\), got 3"),
        ({"experts": 2, "experts_per_token": 3}, "experts_per_token must lie in 1..2"),
    ],
)
def test_impossible_shapes_are_refused(change: dict, words: str) -> None:
    shape = {"layers": 1, "hidden": 64, "heads": 8, "vocab": 10, "sequence": 4} | change
    with pytest.raises(InvalidInput, match=words):
        Transformer("m", **shape)


def test_unknown_models_are_refused_with_the_list() -> None:
    with pytest.raises(InvalidInput, match=r"model must be one of .*llama3-8b"):
        workload.transformer("llama9")
