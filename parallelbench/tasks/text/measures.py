"""Scores of free text: ParallelBench's (arXiv 2510.04767) as published, and others that see content.

The published ones have holes that its figures fall into: "cat" counts as included in "concatenate" but "dog" not in
"Dogs", a verbatim copy counts as no paraphrase only if its case is kept, and the grammar of a text says nothing about
its source. Values lie in [0, 1]; an empty text gets 0 everywhere.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dllm.validation import Checked
from parallelbench.tasks.text import library

ROUGE = ("rouge1", "rouge2", "rougeL")

FUNCTION_WORDS = frozenset(
    """a about after again all also although am an and any are as at be because been before being both but by can could
    did do does doing done down during each for from had has have having he her here hers him his how i if in instead
    into is it its just may me might more most must my no nor not now of off on once only or other our out over own
    rather same shall she should since so some such than that the their them then there these they this those though to
    too under until up us very was we were what when where which while who whom why will with would you your""".split()
)
LEGITIMATE_DOUBLES = frozenset(("had", "that"))


def words_of(text: str) -> list[str]:
    """Lower-case words, apostrophes kept ("don't"), hyphens split."""
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)*", text.lower())


def share_included(words: Sequence[str], text: str) -> float:
    """Share of the words that stand in the text as words of their own, in any case and any regular inflection (equal
    Porter stems)."""
    found = set(map(_stem, words_of(text)))
    return sum(all(_stem(part) in found for part in words_of(word)) for word in words) / len(words)


def is_more_than_a_list(words: Sequence[str], text: str) -> bool:
    """Whether anything but the words, articles and conjunctions is said."""
    given = {_stem(part) for word in words for part in words_of(word)}
    return any(_stem(w) not in given for w in words_of(text) if w not in ("a", "an", "the", "and", "or"))


def has_doubled_word(text: str) -> bool:
    """Whether a word is repeated at once ("the the"), the commonest damage of tokens committed together."""
    doubles = re.findall(r"\b([a-z]+)\s+\1\b", text.lower())
    return any(word not in LEGITIMATE_DOUBLES for word in doubles)


def is_bare(text: str, one_sentence: bool) -> bool:
    """Whether a text is one line from a capital (or digit, or quote) to a full stop, and one sentence if asked."""
    whole = re.fullmatch(r"[\"'A-Z0-9][^\n]*[.!?][\"']?", text) is not None
    return whole and not (one_sentence and re.search(r"[.!?][\"']?\s+[\"'A-Z]", text))


def rouge(prediction: str, reference: str) -> dict[str, float]:
    """F1 of ROUGE-1, -2 and -L with stemming (rouge-score, which the published code calls)."""
    return {name: float(value.fmeasure) for name, value in _rouges()[0].score(reference, prediction).items()}


def content(prediction: str, references: Sequence[str]) -> float:
    """ROUGE-L F1 over the stems of content words only, best over the references: 0 for a text on something else,
    however grammatical."""
    return max(float(_rouges()[1].score(ref, prediction)["rougeL"].fmeasure) for ref in references)


def bleu(prediction: str, source: str) -> float:
    """BLEU of one sentence, up to 4-grams, tokenised as by mteval 13a, not smoothed: Hugging Face evaluate's."""
    return _bleu().corpus_score([prediction], [[source]]).score / 100


def novelty(prediction: str, source: str) -> float:
    """1 for other words, 0 for a copy in any case, punctuation or company: 1 - the larger of BLEU over lower-case
    words and the share of the source's 4-grams that recur."""
    said, given = words_of(prediction), words_of(source)
    n = min(4, len(given))
    grams = [given[i : i + n] for i in range(len(given) - n + 1)]
    found = {tuple(said[i : i + n]) for i in range(len(said) - n + 1)}
    kept = sum(tuple(gram) in found for gram in grams) / len(grams)
    return 1 - max(bleu(" ".join(said), " ".join(given)), kept)


@dataclass(frozen=True)
class BertScore(Checked):
    """BERTScore F1 (arXiv 1904.09675) with a model at `path`, without idf weights and rescaling.

    The hidden layer is the one tuned for the model's name (17 for roberta-large, which the published scores use).
    Raises ValueError when package, model or layer are missing.
    """

    path: str

    @property
    def version(self) -> str:
        return f"bertscore-{_bert(self.path).hash}"

    def __call__(self, prediction: str, reference: str) -> float:
        scores = _bert(self.path).score([prediction], [reference])
        return min(max(float(scores[2]), 0.0), 1.0)


@cache
def _bert(path: str) -> Any:
    try:
        from bert_score import BERTScorer  # pyright: ignore[reportMissingImports]
        from bert_score.utils import model2layers  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ValueError(f"bertscore={path} needs bert-score: pip install 'dllm-parallelbench[scorers]'") from error
    name = path.rstrip("/").split("/")[-1]
    if name not in model2layers:
        raise ValueError(f"no layer is known for bertscore={path}; name its folder as the model, such as roberta-large")
    try:
        return BERTScorer(model_type=path, num_layers=model2layers[name])
    except (OSError, ValueError, AssertionError) as error:
        raise ValueError(f"cannot load bertscore={path}: {str(error).splitlines()[0]}") from error


@cache
def _rouges() -> tuple[Any, Any]:
    """Of all words, and of content words."""
    scorer = library("rouge_score.rouge_scorer").RougeScorer  # pulls nltk: a second, and only for text tasks
    return scorer(ROUGE, use_stemmer=True), scorer(["rougeL"], tokenizer=_ContentWords())


class _ContentWords:
    def tokenize(self, text: str) -> list[str]:
        return [_stem(word) for word in words_of(text) if word not in FUNCTION_WORDS]


@cache
def _stemmer() -> Any:
    return library("nltk.stem.porter").PorterStemmer()


def _stem(word: str) -> str:
    return _stemmer().stem(word)


@cache
def _bleu() -> Any:
    return library("sacrebleu.metrics.bleu").BLEU(tokenize="13a", smooth_method="none")
