"""What is trained: transformers by their shape, with parameters, FLOPs and bytes per layer.

A transformer is an embedding, `layers` equal blocks, and a head (final norm and the projection to
the vocabulary). Counts are exact: biases, norms and positions included, so that totals equal those
of the released checkpoints. Convolutional networks are in `convolutional`.

Example:
    >>> transformer("llama3-8b").parameters
    8030261248
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from dtgym.simulator.errors import InvalidInput, at_least


@dataclass(frozen=True, slots=True)
class Transformer:
    """Shape of a decoder-only transformer, dense or with mixtures of experts.

    Attributes:
        name: Name of the model.
        layers: Number of blocks.
        hidden: Width h of the residual stream.
        heads: Attention heads.
        vocab: Vocabulary, as padded for training.
        sequence: Tokens of one sequence in training.
        kv_heads: Key and value heads (grouped-query attention); 0 stands for `heads`.
        head_dim: Width of one head; 0 stands for hidden / heads.
        ffn: Width of the feed-forward layer (of one expert); 0 stands for 4 h.
        gated: Whether the feed-forward layer has a gate (SwiGLU and alike).
        tied: Whether head and embedding share their matrix.
        bias: Whether output and feed-forward projections carry biases.
        qkv_bias: Whether the query, key and value projection does.
        norm_bias: Whether norms carry a bias (LayerNorm) or only a scale (RMSNorm).
        qk_norm: Whether queries and keys are normalised per head.
        embedding_norm: Whether a norm follows the embedding.
        positions: Learned positions; 0 for rotary, ALiBi or none.
        experts: Experts per block; 1 for a dense model.
        experts_per_token: Experts each token visits.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    sequence: int
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    gated: bool = False
    tied: bool = True
    bias: bool = True
    qkv_bias: bool = True
    norm_bias: bool = True
    qk_norm: bool = False
    embedding_norm: bool = False
    positions: int = 0
    experts: int = 1
    experts_per_token: int = 1

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "vocab", "sequence", "experts"):
            at_least(f"Transformer.{name}", getattr(self, name), 1)
        for name in ("kv_heads", "head_dim", "ffn", "positions"):
            at_least(f"Transformer.{name}", getattr(self, name), 0)
        if not self.head_dim:
            if self.hidden % self.heads:
                raise InvalidInput(
                    f"Transformer.heads must divide hidden ({self.hidden}), got {self.heads}"
                )
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.ffn:
            object.__setattr__(self, "ffn", 4 * self.hidden)
        if self.heads % self.kv_heads:
            raise InvalidInput(
                f"Transformer.kv_heads must divide heads ({self.heads}), got {self.kv_heads}"
            )
        if not 1 <= self.experts_per_token <= self.experts:
            raise InvalidInput(
                f"Transformer.experts_per_token must lie in 1..{self.experts} (experts), "
                f"got {self.experts_per_token}"
            )

    @property
    def qkv_width(self) -> int:
        """Outputs of the joint query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Parameters of one block's attention, without its norm."""
        inner = self.heads * self.head_dim
        count = self.hidden * self.qkv_width + inner * self.hidden
        count += self.qkv_width if self.qkv_bias else 0
        count += self.hidden if self.bias else 0
        return count + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert, or of the whole feed-forward layer of a dense model."""
        inputs = 2 if self.gated else 1
        count = (inputs + 1) * self.hidden * self.ffn
        return count + (inputs * self.ffn + self.hidden if self.bias else 0)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one block with all its experts, the router and both norms."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        norms = 2 * self.hidden * (2 if self.norm_bias else 1)
        return self.attention_parameters + self.experts * self.expert_parameters + router + norms

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding: vocabulary, learned positions, norm."""
        count = (self.vocab + self.positions) * self.hidden
        return count + (self.hidden * (2 if self.norm_bias else 1) if self.embedding_norm else 0)

    @property
    def head_parameters(self) -> int:
        """Parameters of the final norm and, unless tied, of the projection to the vocabulary."""
        norm = self.hidden * (2 if self.norm_bias else 1)
        return norm + (0 if self.tied else self.vocab * self.hidden)

    @property
    def parameters(self) -> int:
        """All parameters, exact."""
        blocks = self.layers * self.layer_parameters
        return self.embedding_parameters + blocks + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets (all of them in a dense model)."""
        idle = (self.experts - self.experts_per_token) * self.expert_parameters
        return self.parameters - self.layers * idle

    def layer_forward_flops(self, tokens: int, sequence: int = 0, *, causal: bool = False) -> float:
        """FLOPs of one block's forward pass over `tokens` tokens.

        Args:
            tokens: Tokens of all sequences together.
            sequence: Tokens of one sequence; 0 takes the model's.
            causal: Whether the masked half of attention is left out (as flash kernels do).
        """
        length = sequence or self.sequence
        projections = self.hidden * self.qkv_width + self.heads * self.head_dim * self.hidden
        feed_forward = (3 if self.gated else 2) * self.hidden * self.ffn * self.experts_per_token
        router = self.hidden * self.experts if self.experts > 1 else 0
        attention = 2 * length * self.heads * self.head_dim * (0.5 if causal else 1.0)
        return 2.0 * tokens * (projections + feed_forward + router + attention)

    def head_forward_flops(self, tokens: int) -> float:
        """FLOPs of the projection to the vocabulary, forward."""
        return 2.0 * tokens * self.hidden * self.vocab

    def training_flops(self, sequences: int, sequence: int = 0, *, causal: bool = False) -> float:
        """FLOPs the model needs for one step: forward once, backward twice that, no recompute.

        Examples:
            >>> f"{transformer('gpt3-175b').training_flops(1536):.3g}"
            '3.39e+18'
        """
        length = sequence or self.sequence
        tokens = sequences * length
        block = self.layer_forward_flops(tokens, length, causal=causal)
        return 3.0 * (self.layers * block + self.head_forward_flops(tokens))

    def layer_weight_bytes(self, bytes_per_element: float = 2.0) -> float:
        """Bytes of one block's weights."""
        return self.layer_parameters * bytes_per_element

    def border_bytes(self, sequences: int, bytes_per_element: float = 2.0) -> float:
        """Bytes of the activation between two blocks for `sequences` sequences."""
        return float(sequences) * self.sequence * self.hidden * bytes_per_element

    def with_sequence(self, sequence: int) -> Transformer:
        """The same model trained on other sequence lengths."""
        return replace(self, sequence=sequence)


@lru_cache(maxsize=1)
def _zoo() -> dict[str, dict[str, Any]]:
    import yaml

    text = (files("dtgym.simulator") / "catalog" / "models.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def model_names() -> tuple[str, ...]:
    """Names of the shipped transformers."""
    return tuple(_zoo())


def transformer(name: str) -> Transformer:
    """A transformer of the shipped zoo.

    Raises:
        InvalidInput: The zoo has no such model; the message lists what it has.
    """
    zoo = _zoo()
    if name not in zoo:
        raise InvalidInput(f"model must be one of {', '.join(zoo)}; got {name!r}")
    shape = {key: value for key, value in zoo[name].items() if key not in ("parameters", "source")}
    return Transformer(name=name, **shape)


def published_parameters(name: str) -> int | None:
    """The exact published number of parameters of a shipped model, if there is one."""
    transformer(name)
    return _zoo()[name].get("parameters")
