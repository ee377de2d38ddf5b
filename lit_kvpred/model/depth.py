"""Running part of a base's depth: its first layers, or its last ones from kept hidden states.

No forward is forked. The lower part is the ordinary forward, left as soon as the hidden states
that enter the cut layer are there. The upper part is a shallow copy of the model whose stack holds
only the layers from the cut on; hidden states enter it as ``inputs_embeds``. Every weight is
shared, and layers keep their original cache indices, so that one cache serves both parts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from lit_kvpred.errors import ConfigurationError, UnsupportedFamilyError
from lit_kvpred.model.caches import ForwardStopped, RecordingCache, SliceView, upper_view
from lit_kvpred.model.configs import keep_layers
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.hidden import hidden_states_entering
from lit_kvpred.model.shallow import replace_module, shallow_copy

# Position tables that a decoder adds to whatever enters it.
_POSITION_TABLES = ("wpe", "embed_positions")
_PROBE_TOKENS = 5


class DepthCut:
    """A base cut in two below layer ``depth``.

    Args:
        adapter: The base's adapter.
        depth: Layers of the lower part, at least 1; with all of them the upper part is norm and
            head alone.

    Attributes:
        depth: As given.
        upper: The causal LM over the layers from ``depth`` on; takes ``inputs_embeds``.

    Raises:
        ConfigurationError: If ``depth`` is out of range.
        UnsupportedFamilyError: If the two parts together are not the whole base.
    """

    def __init__(self, adapter: FamilyAdapter, depth: int) -> None:
        if not 1 <= depth <= adapter.n_layers:
            raise ConfigurationError(
                f"a prefix of {depth} layers can't be cut from {adapter.n_layers}; "
                f"choose between 1 and {adapter.n_layers}"
            )
        self.adapter, self.depth = adapter, depth
        self.upper = _upper_model(adapter, depth)
        self._probe()

    def run_lower(self, input_ids: Tensor, cache: Cache, **arguments: Any) -> Tensor:
        """Run the lower part over ``input_ids`` ``(B, T)``.

        Args:
            input_ids: Token ids, long.
            cache: Gets the rows of the lower layers.
            **arguments: ``position_ids`` and ``attention_mask``, as the base takes them.

        Returns:
            Hidden states that enter layer ``depth``, ``(B, T, hidden)``.
        """
        with (
            hidden_states_entering(self.adapter, self.depth, stop=True) as entering,
            suppress(ForwardStopped),
        ):
            self.adapter.decoder(input_ids, cache=cache, use_cache=True, **arguments)
        return entering[0]

    def run_upper(
        self,
        hidden: Tensor,
        cache: Cache,
        *,
        logits_to_keep: int,
        **arguments: Any,
    ) -> Tensor:
        """Run the upper part over hidden states ``(B, T, hidden)`` that enter it.

        Args:
            hidden: From `run_lower`.
            cache: Holds earlier rows of the upper layers and gets these ones; its lower layers may
                be ahead. A `SliceView` says itself where rows go.
            logits_to_keep: Rows, counted from the last, whose logits are wanted; at least 1.
            **arguments: ``position_ids`` and ``attention_mask``, as the base takes them.

        Returns:
            ``(B, logits_to_keep, V)``.
        """
        if self.depth < self.adapter.n_layers:
            if not isinstance(cache, SliceView):
                cache = upper_view(cache, self.depth, self.adapter.n_layers)
            arguments |= {"cache": cache, "use_cache": True}
        else:
            arguments["use_cache"] = False
        self._follow_base()
        output = self.upper(inputs_embeds=hidden, logits_to_keep=logits_to_keep, **arguments)
        return output.logits

    def fill_upper(
        self, hidden: Tensor, cache: Cache, *, whole_layers: bool = False, **arguments: Any
    ) -> None:
        """Like `run_upper`, for the rows alone.

        It ends with the last layer's keys and values, or with ``whole_layers`` behind that layer.
        """
        last = self.adapter.n_layers - 1
        if self.depth > last:
            return
        stop_after = None if whole_layers else last
        view = upper_view(cache, self.depth, self.adapter.n_layers, stop_after)
        self._follow_base()
        with suppress(ForwardStopped):
            self.upper.get_decoder()(inputs_embeds=hidden, cache=view, use_cache=True, **arguments)

    def _follow_base(self) -> None:
        """Take over the attention implementation, which can be changed at any time.

        Shared layers ask the base's configuration for it, masks are made by the upper part's own.
        """
        chosen = self.adapter.model.config._attn_implementation
        if self.upper.config._attn_implementation != chosen:
            self.upper.config._attn_implementation = chosen

    @torch.no_grad()
    def _probe(self) -> None:
        adapter = self.adapter
        device = adapter.model.get_input_embeddings().weight.device
        ids = torch.arange(_PROBE_TOKENS, device=device)[None] % adapter.config.vocab_size
        positions = torch.arange(_PROBE_TOKENS, device=device)[None]
        whole, parts = RecordingCache(), RecordingCache()
        arguments: dict[str, Any] = {"position_ids": positions}
        try:
            expected = adapter.model(ids, cache=whole, use_cache=True, **arguments).logits
            hidden = self.run_lower(ids, parts, **arguments)
            found = self.run_upper(hidden, parts, logits_to_keep=_PROBE_TOKENS, **arguments)
            same = _equal(found, expected) and all(
                _equal(a.keys, b.keys) and _equal(a.values, b.values)
                for a, b in zip(parts.layers, whole.layers, strict=True)
            )
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError):
            same = False
        if not same:
            raise UnsupportedFamilyError(
                f"model family '{adapter.family}' can't be cut in depth: its upper layers alone "
                "don't give the base's own output; use a pruned or canonical auxiliary"
            )


def _upper_model(adapter: FamilyAdapter, depth: int) -> PreTrainedModel:
    """A copy of the causal LM that shares all modules but the path to its stack of layers."""
    config = keep_layers(adapter.model.config, range(depth, adapter.n_layers))
    upper: PreTrainedModel = shallow_copy(adapter.model, config)
    if depth == adapter.n_layers:
        replace_module(upper, adapter.model, adapter.decoder, _Passthrough(), config)
        return upper
    rest = nn.ModuleList(list(adapter.layers)[depth:])
    decoder = replace_module(upper, adapter.model, adapter.layers, rest, config)
    for name in _POSITION_TABLES:
        if name in decoder._modules:
            decoder._modules[name] = _NoPositions()
    return upper


class _NoPositions(nn.Module):
    """In place of a position table: hidden states carry their positions already."""

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return torch.zeros(())


@dataclass
class _DecoderOutput(MoeModelOutputWithPast):
    """With every field that a causal LM may pass on."""

    cross_attentions: None = None


class _Passthrough(nn.Module):
    """In place of a decoder of which nothing is left to run."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _DecoderOutput:
        return _DecoderOutput(last_hidden_state=inputs_embeds)


def _equal(found: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-4 if expected.dtype == torch.float32 else 5e-2
    scale = float(expected.float().abs().max()) or 1.0
    return found.shape == expected.shape and bool(
        (found.float() - expected.float()).abs().max() <= tolerance * scale
    )
