from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.family import LayerShape
from lit_kvpred.model.features import KeyValueFeatures
from lit_kvpred.model.predictor import KVPredictor
from lit_kvpred.model.reading import CacheRows

_AUXILIARY = [LayerShape(1, 4, 6), LayerShape(2, 4, 3), LayerShape(3, 2, 5)]
_BASE = [LayerShape(2, 5, 7), LayerShape(1, 8, 2), LayerShape(4, 2, 3)]


def _predictor(auxiliary, base, layer_map) -> KVPredictor:
    return KVPredictor(KeyValueFeatures(auxiliary, layer_map), base)


def _rows(shapes=_AUXILIARY, batch=2, length=5) -> CacheRows:
    raw = [torch.randn(batch, length, s.key_width) for s in shapes]
    values = [torch.randn(batch, length, s.value_width) for s in shapes]
    return CacheRows(raw, [], values, None)


def test_each_base_layer_has_its_own_affine_maps():
    predictor = _predictor(_AUXILIARY, _BASE, [0, 0, 2])
    rows = _rows()
    keys, values = predictor(rows)
    for layer, source in enumerate([0, 0, 2]):
        weight, bias = predictor.keys[layer].weight, predictor.keys[layer].bias
        expected = torch.einsum("btf,of->bto", rows.raw_keys[source], weight) + bias
        torch.testing.assert_close(keys[layer], expected)
        weight, bias = predictor.values[layer].weight, predictor.values[layer].bias
        expected = torch.einsum("btf,of->bto", rows.values[source], weight) + bias
        torch.testing.assert_close(values[layer], expected)
    maps = [*predictor.keys, *predictor.values]
    assert len({id(linear.weight) for linear in maps}) == 6
    assert not torch.equal(predictor.keys[0].weight, predictor.keys[1].weight)


def test_widths_follow_both_networks():
    keys, values = _predictor(_AUXILIARY, _BASE, [0, 1, 2])(_rows())
    assert [k.shape for k in keys] == [(2, 5, s.key_width) for s in _BASE]
    assert [v.shape for v in values] == [(2, 5, s.value_width) for s in _BASE]


def test_prediction_does_not_mix_positions():
    predictor, rows = _predictor(_AUXILIARY, _BASE, [0, 1, 2]), _rows()
    keys, values = predictor(rows)
    for source in range(3):
        rows.raw_keys[source][:, 3] += 1
        rows.values[source][:, 3] += 1
    moved_keys, moved_values = predictor(rows)
    for before, after in zip(keys + values, moved_keys + moved_values, strict=True):
        changed = (before != after).any(-1)
        assert changed[:, 3].all()
        assert not changed[:, [0, 1, 2, 4]].any()


def test_keys_come_from_keys_and_values_from_values():
    predictor, rows = _predictor(_AUXILIARY, _BASE, [0, 1, 2]), _rows()
    keys, values = predictor(rows)
    for source in rows.values:
        source += 1
    moved_keys, moved_values = predictor(rows)
    assert all(torch.equal(a, b) for a, b in zip(keys, moved_keys, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(values, moved_values, strict=True))


def test_default_initialisation_is_the_published_one():
    wide = [LayerShape(8, 32, 32)]
    torch.manual_seed(0)
    bound = 1 / 256**0.5
    for name, parameter in _predictor(wide, wide, [0]).named_parameters():
        values = parameter.detach()
        assert float(values.abs().max()) <= bound
        spread = pytest.approx(bound / 3**0.5, rel=0.2 if "bias" in name else 0.02)
        assert float(values.std()) == spread


@pytest.mark.parametrize("layer_map", [[0, 1, 2], [0, 0, 1], [2, 0, 0], [0, 0, 0]])
def test_last_feeding_layer(layer_map):
    predictor = _predictor(_AUXILIARY, _BASE, layer_map)
    assert predictor.features.last_layer == max(layer_map)
    # Rows of layers above it aren't needed.
    keys, _ = predictor(_rows(_AUXILIARY[: max(layer_map) + 1]))
    assert len(keys) == 3


@pytest.mark.parametrize("layer_map", [[0, 1, 3], [0, -1, 2], []])
def test_a_map_to_layers_that_are_not_there_is_refused(layer_map):
    with pytest.raises(ConfigurationError, match="one of 3 auxiliary layers for each predicted"):
        _predictor(_AUXILIARY, _BASE, layer_map)


@pytest.mark.parametrize("layer_map", [[0, 1], [0, 1, 2, 2]])
def test_a_map_of_another_length_is_refused(layer_map):
    with pytest.raises(ConfigurationError, match="can't predict 3 base layers"):
        _predictor(_AUXILIARY, _BASE, layer_map)


def test_identity_maps_return_what_they_get():
    predictor = _predictor(_AUXILIARY, _AUXILIARY, [0, 1, 2])
    predictor.set_identity_()
    rows = _rows()
    keys, values = predictor(rows)
    assert all(torch.equal(a, b) for a, b in zip(keys, rows.raw_keys, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(values, rows.values, strict=True))


def test_identity_needs_square_maps():
    square_keys = [LayerShape(1, 4, 7), *_AUXILIARY[1:]]
    predictor = _predictor(_AUXILIARY, square_keys, [0, 1, 2])
    with pytest.raises(ConfigurationError, match="map 0 of values is 6 -> 7; only square"):
        predictor.set_identity_()
    predictor = _predictor(_AUXILIARY, _AUXILIARY, [0, 0, 2])
    with pytest.raises(ConfigurationError, match="map 1 of keys is 4 -> 8; only square"):
        predictor.set_identity_()


def test_rows_of_another_precision_are_taken():
    predictor = _predictor(_AUXILIARY, _BASE, [0, 1, 2])
    rows = _rows()
    reduced = CacheRows(
        [k.bfloat16() for k in rows.raw_keys], [], [v.bfloat16() for v in rows.values], None
    )
    keys, values = predictor(reduced)
    assert {t.dtype for t in keys + values} == {torch.float32}
    torch.testing.assert_close(keys[0], predictor(rows)[0][0], atol=3e-2, rtol=3e-2)
