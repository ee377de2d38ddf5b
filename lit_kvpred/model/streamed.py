"""A base whose feed-forward weights wait on a slow tier and come layer by layer (Sirius 5.2).

They are about two thirds of a model. During a forward of the base the weights of one layer are in
memory while those of the next are being read; everything else stays. A sparse draft has gathered
weights of its own, so that Sirius needs the slow tier once a prompt, once to gather, and once each
period.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from lit_kvpred.errors import CheckpointError, ConfigurationError, UnsupportedFamilyError
from lit_kvpred.model.family import find_decoder
from lit_kvpred.model.feed_forward import FeedForward, locate_feed_forwards
from lit_kvpred.model.offload import return_freed_memory
from lit_kvpred.model.presence import entrust, keeper_of, take_back
from lit_kvpred.model.slow_tier import FileTier, HostTier, LayerBuffer, SlowTier, WeightPlace
from lit_kvpred.model.stored_tensors import tensors_of_file


@dataclass
class _Load:
    """A layer on its way into a buffer."""

    layer: int
    buffer: LayerBuffer
    done: Future[None]


class StreamedFeedForwards:
    """Brings the feed-forward weights of a base to it, layer by layer.

    Results are those of the resident base bit for bit. Between uses the parameters keep shape,
    dtype and device, but hold NaN in a single element of memory. One forward at a time, inference
    only; place and cast the base before.

    Args:
        base: Its feed-forward weights are given up and its hooks added.
        tier: Holds these weights: those of `streamed_weights`, layer by layer.

    Attributes:
        base: As given.
        parts: The feed-forward part of each layer.
        bytes_read: Bytes read from the tier so far, in the form in which it keeps them.
        bytes_outside: Of these, read outside a forward of the base: gathered for a sparse draft,
            fingerprinted, or restored.

    Raises:
        UnsupportedFamilyError: If the feed-forward parts are of no ordinary kind, or layers share
            weights.
        ConfigurationError: If the weights are streamed already.
    """

    @torch.inference_mode(False)
    def __init__(self, base: PreTrainedModel, tier: SlowTier) -> None:
        self.base, self.parts = base, locate_feed_forwards(base)
        self._weights = streamed_weights(self.parts)
        linears = [linear for part in self.parts for linear in part.linears]
        if any(keeper_of(linear) is not None for linear in linears):
            raise ConfigurationError("the feed-forward weights of this base are streamed already")
        self.bytes_read = self.bytes_outside = 0
        self._tier = tier
        self._device = self._weights[0][0].device
        places = [[WeightPlace(tuple(w.shape), w.dtype) for w in ws] for ws in self._weights]
        self._absent = [[_absent(w) for w in ws] for ws in self._weights]
        self._buffers = [LayerBuffer(places, self._device) for _ in range(2)]
        self._views = [[b.weights(i) for i in range(len(places))] for b in self._buffers]
        accelerated = self._device.type != "cpu"
        self._side_stream = torch.Stream(self._device) if accelerated else None
        self._last_use: list[torch.Event | None] = [None, None]
        # The buffer that was used last; the other one takes what comes next.
        self._recent = 0
        self._present: int | None = None
        self._load: _Load | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="lit-kvpred-weights")
        self._trainable = [[w.requires_grad for w in ws] for ws in self._weights]
        self._layer_of = {
            linear: layer for layer, part in enumerate(self.parts) for linear in part.linears
        }
        self._handles: list[RemovableHandle] = []
        self._attach()

    @property
    def n_bytes(self) -> int:
        """Bytes that a forward of the whole base reads."""
        return sum(self._tier.n_bytes(layer) for layer in range(len(self.parts)))

    @contextmanager
    def present(self, module: nn.Module) -> Iterator[None]:
        """Inside, the weights of the layer that the linear map ``module`` belongs to are there.

        Raises:
            CheckpointError: If they can't be read.
        """
        layer = self._layer_of[module]
        if self._present == layer:
            yield
            return
        before = self.bytes_read
        self._bring(layer)
        self.bytes_outside += self.bytes_read - before
        try:
            yield
        finally:
            self._put_away()

    @torch.inference_mode(False)
    @torch.no_grad()
    def restore(self) -> None:
        """Bring all weights back for good and end the streaming; does nothing a second time.

        Raises:
            CheckpointError: If they can't be read; they go on being streamed.
        """
        if not self._handles:
            return
        self._put_away()
        self._wait()
        restored = []
        for layer, weights in enumerate(self._weights):
            values = [torch.empty(w.shape, dtype=w.dtype, device=w.device) for w in weights]
            self._tier.read(layer, values)
            self._count(layer)
            self.bytes_outside += self._tier.n_bytes(layer)
            restored.append(values)
        for weights, values, flags in zip(self._weights, restored, self._trainable, strict=True):
            for weight, value, flag in zip(weights, values, flags, strict=True):
                weight.data = value
                weight.requires_grad_(flag)
        self._detach()

    def __enter__(self) -> StreamedFeedForwards:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()

    def __deepcopy__(self, memo: Any) -> NoReturn:
        _refuse("be copied")

    def __reduce__(self) -> NoReturn:
        _refuse_saving()

    # -- hooks ------------------------------------------------------------------------------

    def _attach(self) -> None:
        # Copies of a module share its hooks: each makes sure that it runs for its own.
        decoder = find_decoder(self.base)
        self._handles = [decoder.register_forward_pre_hook(partial(self._begin, decoder))]
        for part in self.parts:
            for linear in part.linears:
                enter = partial(self._enter, linear)
                self._handles.append(linear.register_forward_pre_hook(enter))
                self._handles.append(linear.register_state_dict_pre_hook(_refuse_saving))
                guard = linear.register_load_state_dict_pre_hook(_refuse_loading)
                self._handles.append(guard)
                entrust(linear, self)
            leaving = part.linears[-1]
            leave = partial(self._leave, leaving)
            self._handles.append(leaving.register_forward_hook(leave))
        self._handles.append(self.base.register_state_dict_pre_hook(_refuse_saving))
        for weights in self._weights:
            for weight in weights:
                weight.requires_grad_(False)
        for layer in range(len(self.parts)):
            self._assign(layer, self._absent[layer])
        return_freed_memory()

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for linear in self._layer_of:
            take_back(linear)
        self._threads.shutdown()
        self._tier.close()
        self._buffers.clear()
        self._views.clear()

    def _begin(self, decoder: nn.Module, module: nn.Module, _: tuple[Any, ...]) -> None:
        """The first layer is read while embeddings and its attention are computed."""
        if module is decoder:
            self._start(0)

    def _enter(self, linear: nn.Module, module: nn.Module, args: tuple[Any, ...]) -> None:
        if module is not linear:
            return
        self._require_unmoved()
        if torch.is_grad_enabled() and args[0].requires_grad:
            _refuse("be trained through", "run it under torch.no_grad()")
        layer = self._layer_of[linear]
        if self._present == layer:
            return
        self._bring(layer)
        if layer + 1 < len(self.parts):
            self._start(layer + 1)

    def _require_unmoved(self) -> None:
        now, then = self._weights[0][0], self._absent[0][0]
        if (now.dtype, now.device) != (then.dtype, then.device):
            _refuse(
                f"be moved or cast from {then.dtype} on {then.device} to {now.dtype} on "
                f"{now.device}",
                "load it in that type and stream it from there",
            )

    def _leave(self, linear: nn.Module, module: nn.Module, _: tuple[Any, ...], __: Any) -> None:
        if module is linear:
            self._put_away()

    # -- weights ----------------------------------------------------------------------------

    def _bring(self, layer: int) -> None:
        """Let the parameters of ``layer`` hold their values."""
        self._put_away()
        self._start(layer)
        if self._load is not None and self._load.layer == layer:
            self._wait()
        number = next(i for i, buffer in enumerate(self._buffers) if buffer.layer == layer)
        self._assign(layer, self._views[number][layer])
        self._present, self._recent = layer, number

    def _put_away(self) -> None:
        """Let the parameters of the layer that is there hold nothing."""
        if self._present is None:
            return
        self._assign(self._present, self._absent[self._present])
        if self._side_stream is not None:
            event = torch.Event(self._device)
            event.record(torch.accelerator.current_stream(self._device))
            self._last_use[self._recent] = event
        self._present = None

    def _start(self, layer: int) -> None:
        """Start to read ``layer`` unless it is here or on its way."""
        if self._load is not None and self._load.layer != layer:
            self._wait()
        if self._load is not None or any(buffer.layer == layer for buffer in self._buffers):
            return
        number = 1 - self._recent
        buffer = self._buffers[number]
        buffer.layer = None
        done = self._threads.submit(self._read, layer, number)
        self._load = _Load(layer, buffer, done)

    def _wait(self) -> None:
        """Wait for what is on its way."""
        if self._load is None:
            return
        load, self._load = self._load, None
        load.done.result()
        load.buffer.layer = load.layer

    def _read(self, layer: int, number: int) -> None:
        """In the background."""
        last_use = self._last_use[number]
        if last_use is not None:
            last_use.synchronize()
        with nullcontext() if self._side_stream is None else self._side_stream:
            self._tier.read(layer, self._views[number][layer])
        if self._side_stream is not None:
            self._side_stream.synchronize()
        self._count(layer)

    def _count(self, layer: int) -> None:
        self.bytes_read += self._tier.n_bytes(layer)

    def _assign(self, layer: int, values: Sequence[Tensor]) -> None:
        for weight, value in zip(self._weights[layer], values, strict=True):
            weight.data = value


def streamed_weights(parts: Sequence[FeedForward]) -> list[list[nn.Parameter]]:
    """The weights that are streamed, layer by layer: those of the linear maps, without biases.

    Raises:
        UnsupportedFamilyError: If layers share weights, or they are no floating-point numbers.
    """
    layers: list[list[nn.Parameter]] = [
        [linear.weight for linear in part.linears]  # type: ignore[misc]
        for part in parts
    ]
    weights = [weight for layer in layers for weight in layer]
    if len({id(weight) for weight in weights}) < len(weights):
        raise UnsupportedFamilyError(
            "layers of this base share their feed-forward weights, which can't be streamed; load "
            "it whole"
        )
    if not all(weight.is_floating_point() for weight in weights):
        raise UnsupportedFamilyError(
            "the feed-forward weights of this base are quantised, which can't be streamed; load "
            "it whole"
        )
    return layers


def stream_feed_forwards(base: PreTrainedModel) -> StreamedFeedForwards:
    """Move the feed-forward weights of a base in memory to a slow tier.

    That is a file in the system's temporary folder, or the host's memory where the base is on an
    accelerator. `StreamedFeedForwards.restore`, or leaving its context, brings them back.

    Raises:
        UnsupportedFamilyError: If they can't be streamed.
        CheckpointError: If the temporary folder can't take them; they stay in memory.
    """
    layers = streamed_weights(locate_feed_forwards(base))
    if layers[0][0].device.type != "cpu":
        held = [[w.detach() for w in weights] for weights in layers]
        return StreamedFeedForwards(base, HostTier(held))
    return StreamedFeedForwards(base, _TemporaryFileTier(layers))


def streamed_of(base: PreTrainedModel) -> StreamedFeedForwards | None:
    """What streams the feed-forward weights of ``base``; None where they are in memory."""
    for module in base.modules():
        keeper = keeper_of(module)
        if isinstance(keeper, StreamedFeedForwards):
            return keeper
    return None


class _TemporaryFileTier(FileTier):
    """Weights in a file of our own, which goes with the tier."""

    def __init__(self, layers: Sequence[Sequence[Tensor]]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lit-kvpred-")
        file = Path(self._folder.name) / "feed_forwards.safetensors"
        named = {
            f"{layer}.{i}": weight.detach().contiguous()
            for layer, weights in enumerate(layers)
            for i, weight in enumerate(weights)
        }
        try:
            save_file(named, file)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"can't off-load the feed-forward weights to {self._folder.name} ({error}); free "
                "disk space or keep the base in memory"
            ) from error
        stored = tensors_of_file(file)
        super().__init__(
            [
                [stored[f"{layer}.{i}"] for i in range(len(weights))]
                for layer, weights in enumerate(layers)
            ]
        )

    def close(self) -> None:
        """Close and remove the file."""
        super().close()
        self._folder.cleanup()


def _absent(weight: Tensor) -> Tensor:
    """As ``weight`` in shape, dtype and device, without its memory; whoever uses it gets NaN."""
    value = torch.full((1,), torch.nan, dtype=weight.dtype, device=weight.device)
    return value.expand(weight.shape)


def _refuse_saving(*_: object) -> NoReturn:
    _refuse("be saved or copied")


def _refuse_loading(*_: object) -> NoReturn:
    _refuse("be given other weights")


def _refuse(what: str, remedy: str = "load it whole") -> NoReturn:
    raise ConfigurationError(
        f"the feed-forward weights of this base are streamed, so that it can't {what}; {remedy}"
    )
