"""The joined model: auxiliary and predictor in front of a frozen base (arXiv 2410.08391)."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from lit_kvpred.checks import require_count
from lit_kvpred.errors import ConfigurationError, PromptError
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.auxiliary import Auxiliary
from lit_kvpred.model.caches import ReplayCache, filled_cache
from lit_kvpred.model.exact_tail import ExactTail, require_exact_tail
from lit_kvpred.model.family import FamilyAdapter, split_heads
from lit_kvpred.model.features import FeatureKind
from lit_kvpred.model.least_squares import LeastSquaresFit, Weighting
from lit_kvpred.model.offload import AuxiliaryStore
from lit_kvpred.model.predicted_rows import PredictedRows
from lit_kvpred.model.predictor import KVPredictor
from lit_kvpred.model.prefix import PrefixAuxiliary
from lit_kvpred.model.reading import CacheRows, read_rows
from lit_kvpred.model.sequences import Sequences, describe_batch
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import SparseBase

if TYPE_CHECKING:
    from lit_kvpred.generation.context import ExactContext
    from lit_kvpred.generation.events import Event
    from lit_kvpred.generation.generate import GenerationOutput
    from lit_kvpred.generation.prefill import Prefill

Init = Literal["default", "least_squares"]


class KVPredictionOutput(NamedTuple):
    """What the training path returns.

    Attributes:
        logits: The base's logits on predicted rows, ``(B, T, V)``.
        auxiliary_logits: The auxiliary's logits, ``(B, T, V_auxiliary)``; None where it has none.
        predicted: Per predicted base layer ``(keys, values)``, each ``(B, heads, T, dim)``,
            un-rotated.
    """

    logits: Tensor
    auxiliary_logits: Tensor | None
    predicted: list[tuple[Tensor, Tensor]]


class KVPredictionModel(nn.Module):
    """A frozen base whose prompt cache an auxiliary and linear maps predict (KVP 2).

    Args:
        base: The base; its parameters are frozen and it stays in eval mode for good.
        auxiliary: From `build_auxiliary`.
        features: What the predictor reads. ``kv``: keys for keys and values for values, as
            published. ``hidden``: the auxiliary's last hidden state with its last layer's keys and
            values. None: ``hidden`` for a prefix, ``kv`` otherwise.
        init: ``default`` (torch's own, as published) or ``least_squares``; the latter is complete
            once `fit_least_squares` has seen calibration batches.
        layer_map: For each predicted base layer the auxiliary layer that feeds it (features
            ``kv``); by default the published rule of the auxiliary's kind.
        exact_tail: Last prompt rows that the base runs itself on the predicted ones, 1 in the
            paper; or the fraction of the prompt's new rows, never fewer than 16 of them.
        rank: Width of a bottleneck that all maps of features ``hidden`` share; None for none.

    Raises:
        ConfigurationError: For unknown settings or a layer map that doesn't fit.
        UnsupportedFamilyError: If the base's family can't be served.
    """

    def __init__(
        self,
        base: PreTrainedModel,
        auxiliary: Auxiliary,
        *,
        features: FeatureKind | None = None,
        init: Init = "default",
        layer_map: list[int] | None = None,
        exact_tail: ExactTail = 1,
        rank: int | None = None,
    ) -> None:
        super().__init__()
        if features not in (None, "kv", "hidden"):
            raise ConfigurationError(f"features '{features}' are unknown; use 'kv' or 'hidden'")
        require_exact_tail("exact_tail", exact_tail)
        if not isinstance(auxiliary, Auxiliary):
            raise ConfigurationError(
                f"auxiliary must come from build_auxiliary, got {type(auxiliary).__name__}"
            )
        if auxiliary.cut is not None and auxiliary.adapter.model is not base:
            raise ConfigurationError(
                "the prefix auxiliary was built from another model; pass the same base to both"
            )
        if init not in ("default", "least_squares"):
            raise ConfigurationError(f"init '{init}' is unknown; use 'default' or 'least_squares'")
        self.base = base
        self.auxiliary = auxiliary
        self.init, self.exact_tail = init, exact_tail
        self.adapter = FamilyAdapter(base)
        self.predictor = KVPredictor(
            auxiliary.features(features or auxiliary.default_features, self.adapter, layer_map),
            self.adapter.shapes[auxiliary.exact_layers :],
            rank,
        )
        self._store: AuxiliaryStore | None = None
        self.register_state_dict_pre_hook(lambda *_: self.restore_auxiliary())
        base.requires_grad_(False)
        base.eval()

    def train(self, mode: bool = True) -> KVPredictionModel:
        """Set the training mode of auxiliary and predictor; the base always stays in eval mode.

        In train mode with gradient checkpointing transformers would drop the cache (KVP 11).
        """
        super().train(mode)
        self.base.eval()
        return self

    # -- the training path ------------------------------------------------------------------

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> KVPredictionOutput:
        """The training path: every base position attends to predicted rows only (KVP 3.1).

        Args:
            input_ids: ``(B, T)`` long.
            attention_mask: ``(B, T)``, 0 at padding on either side.
            document_ids: ``(B, T)`` long, packed documents per row, -1 at right padding.
        """
        sequences = describe_batch(input_ids, attention_mask, document_ids)
        logits_from = 0 if self.auxiliary.has_head else None
        auxiliary = self.read_auxiliary(input_ids, sequences, logits_from=logits_from)
        predicted = self.predict(auxiliary)
        logits = self.replay(predicted, input_ids, sequences)
        return KVPredictionOutput(
            logits, auxiliary.logits, list(zip(predicted.keys, predicted.values, strict=True))
        )

    def read_auxiliary(
        self, input_ids: Tensor, sequences: Sequences, *, logits_from: int | None = None
    ) -> CacheRows:
        """The auxiliary's rows; without ``logits_from`` nothing unneeded is computed."""
        self.restore_auxiliary()
        return self.auxiliary.read(
            input_ids, sequences, self.predictor.features, logits_from=logits_from
        )

    def read_both(
        self,
        input_ids: Tensor,
        sequences: Sequences,
        *,
        logits_from: int | None = None,
        auxiliary_logits_from: int | None = None,
    ) -> tuple[CacheRows, CacheRows]:
        """The auxiliary's rows and the base's exact ones; a prefix reads both in one pass."""
        self.restore_auxiliary()
        if isinstance(self.auxiliary, PrefixAuxiliary) and auxiliary_logits_from is None:
            base = self.read_base(input_ids, sequences, logits_from=logits_from)
            return self.auxiliary.of_base(base), base
        return (
            self.read_auxiliary(input_ids, sequences, logits_from=auxiliary_logits_from),
            self.read_base(input_ids, sequences, logits_from=logits_from),
        )

    @torch.no_grad()
    def read_base(
        self, input_ids: Tensor, sequences: Sequences, *, logits_from: int | None = None
    ) -> CacheRows:
        """The base's exact rows, and its logits from row ``logits_from`` on if asked for.

        With a prefix they come with the hidden states that leave it.
        """
        stop = self.adapter.n_layers - 1 if logits_from is None else None
        depth = self.auxiliary.exact_layers
        whole = depth == self.adapter.n_layers
        return read_rows(
            self.adapter,
            input_ids,
            sequences,
            logits_from=logits_from,
            stop_after=None if whole else stop,
            hidden_at=depth or None,
        )

    def predict(self, auxiliary: CacheRows) -> PredictedRows:
        """Auxiliary rows to predicted base rows, through the base's own key norm."""
        raw_keys, values = self.predictor(auxiliary)
        first = self.auxiliary.exact_layers
        shapes = self.adapter.shapes[first:]
        return PredictedRows(
            [self.adapter.apply_key_norm(k, first + i) for i, k in enumerate(raw_keys)],
            [split_heads(v, s.heads) for v, s in zip(values, shapes, strict=True)],
            auxiliary.stored[:first],
        )

    def replay(self, predicted: PredictedRows, input_ids: Tensor, sequences: Sequences) -> Tensor:
        """Base logits ``(B, T, V)`` with all rows predicted, each query's own included."""
        return self.base(
            input_ids,
            position_ids=sequences.position_ids,
            attention_mask=sequences.attention_mask(self.adapter),
            cache=ReplayCache(*self.stored(predicted, sequences.position_ids)),
            use_cache=True,
        ).logits

    def continue_from(
        self,
        predicted: PredictedRows,
        input_ids: Tensor,
        sequences: Sequences,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """Base logits of the rows after the predicted ones, as at inference (matched split).

        Args:
            predicted: Rows of the first ``cut`` tokens.
            input_ids: All tokens ``(B, T)``.
            sequences: Of all tokens.
            hidden: For a prefix, ``(B, T, hidden)`` leaving it; saves running it again.

        Returns:
            ``(B, T - cut, V)``.
        """
        cut = predicted.n_rows
        cache = filled_cache(*self.stored(predicted, sequences.position_ids[:, :cut]))
        arguments = {
            "position_ids": sequences.position_ids[:, cut:],
            "attention_mask": sequences.attention_mask(self.adapter, cut),
        }
        shared = self.auxiliary.cut
        if hidden is not None and shared is not None:
            rows = input_ids.shape[1] - cut
            return shared.run_upper(hidden[:, cut:], cache, logits_to_keep=rows, **arguments)
        return self.base(input_ids[:, cut:], cache=cache, use_cache=True, **arguments).logits

    def stored(
        self, predicted: PredictedRows, position_ids: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Rows of all layers as the base stores them: rotated, in its compute dtype."""
        tables = self.adapter.rotary_tables(position_ids)
        dtype = self.adapter.compute_dtype
        first = self.adapter.n_layers - len(predicted.keys)
        keys = [k for k, _ in predicted.exact]
        keys += [tables.rotate(k, first + i).to(dtype) for i, k in enumerate(predicted.keys)]
        return keys, [v for _, v in predicted.exact] + [v.to(dtype) for v in predicted.values]

    # -- fitting ----------------------------------------------------------------------------

    def fit_least_squares(
        self,
        batches: Iterable[Mapping[str, Tensor] | Tensor],
        *,
        ridge: float | None = None,
        weighting: Weighting = "attention",
    ) -> LeastSquaresFit:
        """Fit the predictor in closed form on exact base rows, in one pass over ``batches``.

        Args:
            batches: Token ids ``(B, T)``, or mappings with ``input_ids`` and optionally
                ``attention_mask`` or ``document_ids``.
            ridge: Penalty relative to the mean squared feature; None chooses it on every eighth
                batch (1e-4 where there are fewer).
            weighting: ``attention`` counts the error of a row by the root of the attention that it
                receives in the base's predicted layers; ``uniform`` counts all rows alike.

        Raises:
            ConfigurationError: If ``ridge`` is negative or the weighting unknown.
            ValueError: If ``batches`` is empty.
        """
        from lit_kvpred.model.calibration import calibrate

        return calibrate(self, batches, ridge=ridge, weighting=weighting)

    # -- inference --------------------------------------------------------------------------

    def fill(self, cache: Cache, predicted: PredictedRows, sequences: Sequences) -> None:
        """Append predicted rows to the layers of ``cache`` that they belong to.

        Args:
            cache: The base's cache.
            predicted: ``T`` rows; without exact ones they go to the top layers.
            sequences: Of these tokens.
        """
        keys, values = self.stored(predicted, sequences.position_ids)
        first = self.adapter.n_layers - len(keys)
        padding = None if sequences.all_real else ~sequences.real[:, None, :, None]
        for i, (k, v) in enumerate(zip(keys, values, strict=True)):
            if padding is not None:
                # A fully masked row of the auxiliary may be NaN, which a mask alone can't hide.
                k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
            cache.update(k, v, first + i)

    @torch.inference_mode()
    def prefill(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        context: ExactContext | None = None,
        static_length: int | None = None,
    ) -> Prefill:
        """Predict all prompt rows but the last, run the base on the last token (KVP 4.2).

        Args:
            input_ids: ``(B, N)`` long, left-padded; N = 1 runs the base alone.
            attention_mask: ``(B, N)``, 0 at left padding.
            context: Exact rows that the prompts begin with, from `exact_context` or an answer.
            static_length: Slots of a static cache, at least N; None makes a dynamic one.

        Returns:
            ``.logits`` ``(B, V)`` of the first answer token and ``.cache`` with N rows.

        Raises:
            ConfigurationError: If ``static_length`` is less than N.
            PromptError: If the prompt is empty, too long, or padded on the right.
        """
        from lit_kvpred.generation.prefill import predicted_prefill
        from lit_kvpred.generation.prompt import describe_prompt
        from lit_kvpred.generation.turns import turn_on

        prompt = describe_prompt(self.adapter, input_ids, attention_mask, context=context)
        if static_length is not None:
            require_count("static_length", static_length, least=prompt.n_rows)
        with turn_on(self.base):
            return predicted_prefill(self, prompt, static_length=static_length)

    @torch.inference_mode()
    def exact_context(self, input_ids: Tensor, context: ExactContext | None = None) -> ExactContext:
        """The base's own rows of a text that later prompts begin with, such as a system prompt.

        Args:
            input_ids: ``(1, C)`` long.
            context: Exact rows to go on from.

        Raises:
            PromptError: If the text is empty, too long, or more than one.
        """
        from lit_kvpred.generation.context import ExactContext
        from lit_kvpred.generation.prefill import exact_prefill
        from lit_kvpred.generation.prompt import describe_prompt
        from lit_kvpred.generation.turns import turn_on

        prompt = describe_prompt(self.adapter, input_ids, None, context=context)
        if prompt.batch_size != 1:
            raise PromptError(f"a context is one text, got {prompt.batch_size}")
        with turn_on(self.base):
            cache = exact_prefill(self.adapter, prompt).cache
        return ExactContext.of_cache(self.adapter, input_ids[0], cache, prompt.sequences.real[0])

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        correction: Correction | None = None,
        **settings: Any,
    ) -> GenerationOutput:
        """Answer prompts from a predicted cache.

        Args:
            input_ids: ``(B, N)`` long, left-padded.
            attention_mask: ``(B, N)``, 0 at left padding.
            correction: Makes prompt and text exact after ``correction.period`` tokens; None stays
                on the predicted prompt for good.
            **settings: Fields of `lit_kvpred.generation.settings.GenerationSettings`, such as
                ``max_new_tokens``, ``sampling``, ``stop_strings``, ``static_cache``, ``context``
                and ``keep_context`` (a conversation's later turns read only what is new).

        Returns:
            ``.sequences`` ``(B, N + answer)``, ``.answers`` and ``.stats``.

        Raises:
            PromptError: If a prompt is empty, too long or padded on the right.
            ConfigurationError: If settings contradict each other.
        """
        from lit_kvpred.generation.generate import generate

        return generate(
            self,
            input_ids,
            attention_mask,
            settings=GenerationSettings(**settings),
            correction=correction,
        )

    def stream(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        correction: Correction | None = None,
        **settings: Any,
    ) -> Generator[Event, None, GenerationOutput]:
        """Like `generate`, but yields token, retraction and exactness events as they happen."""
        from lit_kvpred.generation.generate import stream

        return stream(
            self,
            input_ids,
            attention_mask,
            settings=GenerationSettings(**settings),
            correction=correction,
        )

    @property
    def sparse_base(self) -> SparseBase:
        """Makes sparse copies of the base for drafts.

        Raises:
            UnsupportedFamilyError: If its feed-forward parts are of no ordinary kind.
        """
        return SparseBase(self.adapter)

    # -- memory and artefacts ---------------------------------------------------------------

    def release_auxiliary(self) -> None:
        """Move the auxiliary's and predictor's weights to disk until the next prompt needs them.

        A network that was passed to `build_auxiliary` as ``source`` is moved itself, not a copy.
        """
        if self._store is None:
            self._store = AuxiliaryStore()
        self._store.release(nn.ModuleList([self.auxiliary, self.predictor]))

    def restore_auxiliary(self) -> None:
        """Bring released weights back; does nothing when they are here."""
        if self._store is not None:
            self._store.restore()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the trained part and a reference to the base; see `lit_kvpred.model.artefact`."""
        from lit_kvpred.model.artefact import save_artefact

        self.restore_auxiliary()
        save_artefact(self, Path(folder))

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, base: PreTrainedModel | str | None = None
    ) -> KVPredictionModel:
        """Load an artefact.

        Args:
            folder: What `save_pretrained` wrote.
            base: The base, or a folder or hub id to load it from in the dtype it had; None loads
                the one that the artefact names.

        Raises:
            CheckpointError: If the artefact is damaged or was made for another base.
        """
        from lit_kvpred.model.artefact import load_artefact

        return load_artefact(Path(folder), base)
