"""A language model made by hand, two megabytes of it, in llama.cpp's own file format.

It has the shape of a Llama with one layer, whose attention and feed-forward weights are
all zero: what comes in goes through unchanged. Each token is embedded as a vector with a
single one; so the output matrix says directly which token follows which, and that is all
the model knows. Inside a tool call llama.cpp allows only what the tool's schema allows; of
that, the model prefers whatever comes to an end soonest.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tests.support.llama import speech

_HEADS = 4
_FEED_FORWARD = 32
_CONTEXT_TOKENS = 8192
_CERTAIN = 30.0
_IN_A_CALL = {'"': 8.0, "}": 6.0, "\n": 5.0, speech.CALL_ENDS: 4.0, speech.END: 3.0}
"""After any byte: how much each of these is preferred, where it is allowed."""


def write_model(path: Path) -> None:
    vocabulary = _Vocabulary()
    width = -(-len(vocabulary.tokens) // 32) * 32
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, vocabulary, width)
    for name, tensor in _tensors(vocabulary, width).items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class _Vocabulary:
    """All bytes, so that any prompt can be read; then marks; then whole words."""

    def __init__(self) -> None:
        self.bytes = _characters_of_bytes()
        spoken = (speech.CALL_BEGINS, speech.CALL_ENDS, *speech.words())
        words = [word for word in spoken if word not in self.bytes]
        self.tokens = [*self.bytes, *speech.CONTROLS, *words]
        self.types = [
            *[gguf.TokenType.NORMAL] * len(self.bytes),
            *[gguf.TokenType.CONTROL] * len(speech.CONTROLS),
            *[gguf.TokenType.USER_DEFINED] * len(words),
        ]
        self._numbers = {token: number for number, token in enumerate(self.tokens)}

    def number(self, token: str) -> int:
        return self._numbers[self.bytes[10] if token == "\n" else token]


def _characters_of_bytes() -> list[str]:
    """As GPT-2 writes them: those that can't be seen are moved behind the others."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in seen]
    moved = {byte: chr(256 + place) for place, byte in enumerate(hidden)}
    return [moved.get(byte, chr(byte)) for byte in range(256)]


def _describe(writer: Any, vocabulary: _Vocabulary, width: int) -> None:
    writer.add_name("made by hand")
    writer.add_context_length(_CONTEXT_TOKENS)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // _HEADS)
    writer.add_vocab_size(len(vocabulary.tokens))
    writer.add_file_type(0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(["Ġ a"])  # there must be one
    writer.add_bos_token_id(vocabulary.number("<|im_start|>"))
    writer.add_eos_token_id(vocabulary.number(speech.END))
    writer.add_pad_token_id(vocabulary.number("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(speech.TEMPLATE.read_text().rstrip("\n"))


def _tensors(vocabulary: _Vocabulary, width: int) -> dict[str, Any]:
    def zeros(*shape: int) -> Any:
        return np.zeros(shape, np.float32)

    def ones() -> Any:
        return np.ones(width, np.float32)

    tensors = {
        "token_embd": np.eye(len(vocabulary.tokens), width, dtype=np.float32),
        "output_norm": ones() / np.sqrt(width, dtype=np.float32),
        "output": _followers(vocabulary, width),
        "blk.0.attn_norm": ones(),
        "blk.0.ffn_norm": ones(),
        "blk.0.ffn_gate": zeros(_FEED_FORWARD, width),
        "blk.0.ffn_up": zeros(_FEED_FORWARD, width),
        "blk.0.ffn_down": zeros(width, _FEED_FORWARD),
    }
    for name in ("q", "k", "v", "output"):
        tensors[f"blk.0.attn_{name}"] = zeros(width, width)
    return tensors


def _followers(vocabulary: _Vocabulary, width: int) -> Any:
    """[next, current]: how likely it is."""
    followers = np.zeros((len(vocabulary.tokens), width), np.float32)
    number = vocabulary.number
    for byte in range(256):
        if byte != ord("\n"):
            for token, weight in _IN_A_CALL.items():
                followers[number(token), byte] += weight
    followers[number(speech.CALL_ENDS), number("\n")] += 9
    followers[number("{"), number("\n")] += 8
    for chain in speech.chains():
        for current, following in pairwise(chain):
            followers[number(following), number(current)] = _CERTAIN
    return followers
