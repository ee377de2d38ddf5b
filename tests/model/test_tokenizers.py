from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lit_kvpred.errors import TokenizerMismatchError
from lit_kvpred.model.loading import load_base, load_tokenizer
from lit_kvpred.model.tokenizers import check_same_tokenizer
from tests.base_folders import make_base

_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
_MERGES = [("e", "r"), ("r", "e"), ("o", "v"), ("ov", "er")]


def _tokenizer(vocabulary=None, merges=None, normalizer=None) -> PreTrainedTokenizerFast:
    merges = _MERGES if merges is None else merges
    if vocabulary is None:
        tokens = ["<end>", *_BYTES, *("".join(pair) for pair in _MERGES)]
        vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def test_equal_tokenizers_pass():
    assert check_same_tokenizer(_tokenizer(), _tokenizer()) is None


def test_first_token_with_another_id_is_named_with_both_ids():
    first = _tokenizer()
    ids = first.get_vocab()
    ids["er"], ids["ov"] = ids["ov"], ids["er"]
    with pytest.raises(TokenizerMismatchError) as caught:
        check_same_tokenizer(first, _tokenizer(ids))
    message = str(caught.value)
    assert "'er' has id 257 in the first and id 259 in the second" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("swap", "expected"),
    [
        (False, "'<tool>' has no id in the first and id 261 in the second"),
        (True, "'<tool>' has id 261 in the first and no id in the second"),
    ],
)
def test_token_that_only_one_knows_is_refused(swap, expected):
    plain, extended = _tokenizer(), _tokenizer()
    extended.add_tokens(["<tool>"])
    pair = (extended, plain) if swap else (plain, extended)
    with pytest.raises(TokenizerMismatchError, match=expected):
        check_same_tokenizer(*pair)


def test_same_vocabulary_with_merges_in_another_order_is_refused():
    # "er" before "re" reads "...ere..." one way, "re" before "er" the other.
    reordered = [_MERGES[1], _MERGES[0], *_MERGES[2:]]
    first, second = _tokenizer(), _tokenizer(merges=reordered)
    assert first.get_vocab() == second.get_vocab()
    with pytest.raises(TokenizerMismatchError, match="same vocabulary, but at token"):
        check_same_tokenizer(first, second)


def test_same_vocabulary_with_another_normaliser_is_refused():
    with pytest.raises(TokenizerMismatchError, match="same vocabulary, but at token"):
        check_same_tokenizer(_tokenizer(), _tokenizer(normalizer=normalizers.Lowercase()))


def test_one_sample_longer_than_the_other_is_refused():
    second = _tokenizer(normalizer=normalizers.Strip())
    second.backend_tokenizer.normalizer = normalizers.Replace("...", "")
    with pytest.raises(TokenizerMismatchError, match="the second nothing"):
        check_same_tokenizer(_tokenizer(), second)


def test_embeddings_padded_to_another_size_play_no_part(tmp_path):
    folders = [make_base(tmp_path / str(size), vocab_size=size) for size in (258, 320)]
    sizes = [load_base(folder).get_output_embeddings().weight.shape[0] for folder in folders]
    assert sizes == [258, 320]
    assert check_same_tokenizer(*(load_tokenizer(folder) for folder in folders)) is None
