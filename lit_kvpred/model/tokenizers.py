"""Two models may share a prompt only if they read it the same way."""

from __future__ import annotations

from itertools import zip_longest

from transformers import PreTrainedTokenizerBase

from lit_kvpred.errors import TokenizerMismatchError

# Words, casing, digits, white space of several kinds, accents, CJK, an emoji, code and markup: what
# merges, normalisers and pre-tokenizers treat differently.
_SAMPLE = (
    "The quick brown foxes couldn't jump 12345.67 metres over naïve café façades.\n"
    "def f(x_1, *args):\n    return {'a': [x_1 ** 2, None]}  # tabs\there\r\n\n\n"
    "ÅNGSTRÖM ﬁnally Straße 日本語のテキスト Привет 👍🏽 <b>&amp;</b> https://a.org/?q=1 ~~ ..."
)


def check_same_tokenizer(first: PreTrainedTokenizerBase, second: PreTrainedTokenizerBase) -> None:
    """Checks that two tokenizers give every text the same ids.

    The maps from token to id must be identical, and so must the ids of a mixed sample text, in
    which different merges or normalisers show although the vocabularies are equal. The sizes of the
    models' embeddings play no part: they may be padded differently.

    Args:
        first: The base's tokenizer.
        second: The auxiliary's tokenizer.

    Raises:
        TokenizerMismatchError: They differ; the message names the first difference.
    """
    _check_vocabularies(first.get_vocab(), second.get_vocab())
    _check_ids(first, second)


def _check_vocabularies(first: dict[str, int], second: dict[str, int]) -> None:
    # In the order of the ids, so that the difference named is the first one of the table.
    for token in sorted(first, key=first.__getitem__) + sorted(second, key=second.__getitem__):
        if first.get(token) != second.get(token):
            raise TokenizerMismatchError(
                f"tokenizers differ: token {token!r} has {_id(first, token)} in the first and "
                f"{_id(second, token)} in the second; both models need the same tokenizer"
            )


def _check_ids(first: PreTrainedTokenizerBase, second: PreTrainedTokenizerBase) -> None:
    ids = [tokenizer(_SAMPLE)["input_ids"] for tokenizer in (first, second)]
    for position, (ours, theirs) in enumerate(zip_longest(*ids)):
        if ours != theirs:
            raise TokenizerMismatchError(
                f"tokenizers differ: same vocabulary, but at token {position} of a sample text the "
                f"first gives {_token(first, ours)} and the second {_token(second, theirs)}; both "
                "models need the same tokenizer"
            )


def _id(vocabulary: dict[str, int], token: str) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "no id"


def _token(tokenizer: PreTrainedTokenizerBase, token_id: int | None) -> str:
    if token_id is None:
        return "nothing"
    return f"{tokenizer.convert_ids_to_tokens(token_id)!r} (id {token_id})"
