"""The five text tasks of ParallelBench (arXiv 2510.04767): a sentence with given words (easy, medium, hard), a
paraphrase, a summary. Zero-shot, one user turn; wording and texts are our own (`text_source`).

`score` is ours and sees content; `score_published` is the paper's composite (its figures and leaderboards plot
`grammar` alone). `grammar` is 1 where the backend finds no mistake; backends disagree, so a task's version names it.
`score_strict` is `score` where the answer is a bare sentence or paragraph, else 0. `no_repeats` is 0 where a word is
doubled. An empty answer gets 0 everywhere.
"""

import random
from dataclasses import dataclass

from parallelbench.tasks.base import Draw, Drawn, Sample
from parallelbench.tasks.text.grammar import HARPER, Grammar
from parallelbench.tasks.text.measures import (
    ROUGE,
    BertScore,
    bleu,
    content,
    has_doubled_word,
    is_bare,
    is_more_than_a_list,
    novelty,
    rouge,
    share_included,
)
from parallelbench.tasks.text.source import LEVELS, draw_dialogue, draw_paraphrases, draw_words

_VERSION = "1"
WORDS_WORDINGS = (
    "{words}\nWrite one English sentence that contains these words. Answer with the sentence only.",
    "{words}\nUse all of these words in one sentence of your own. Reply with that sentence and nothing else.",
    "Make up one English sentence with all of the words below and write nothing else.\n{words}",
    "Words: {words}\nTask: one sentence with all of them\nOutput: the sentence only",
)
PARAPHRASE_WORDINGS = (
    "{text}\nSay this in other words and keep its meaning. Answer with the sentence only.",
    "{text}\nHow else could one put that? Reply with one sentence that means the same and nothing else.",
    "Paraphrase the sentence below and write nothing else.\n{text}",
    "Sentence: {text}\nTask: paraphrase\nOutput: the sentence only",
)
SUMMARY_WORDINGS = (
    "{text}\nSummarize this conversation in one or two sentences. Answer with the summary only.",
    "{text}\nWhat was agreed or said here, in a sentence or two? Reply with that and nothing else.",
    "Sum up the conversation below in one or two sentences and write nothing else.\n{text}",
    "Conversation:\n{text}\nTask: summary in one or two sentences\nOutput: the summary only",
)


@dataclass(frozen=True)
class WordsToSentence(Drawn):
    """Write a sentence with four words: of one everyday scene (easy), loosely related (medium), unrelated and partly
    abstract (hard)."""

    level: str
    grammar: Grammar = HARPER

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level not in LEVELS:
            raise ValueError(f"unknown level {self.level!r}; choose one of {', '.join(LEVELS)}")

    @property
    def name(self) -> str:
        return f"text/words_to_sentence_{self.level}"

    @property
    def version(self) -> str:
        return _version(self.grammar)

    def draw(self, rng: random.Random, index: int) -> Draw:
        words, sentence = draw_words(self.level, rng)
        prompt, *wordings = (wording.format(words=", ".join(words)) for wording in WORDS_WORDINGS)
        return Draw(prompt, {"words": words}, sentence, wordings)

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score`: all words stand there as words, in any regular inflection and case, in more than a list, without a
        mistake or a doubled word. `score_published`: published inclusion (case-sensitive substrings) and grammar.
        `words`: share of the words that stand there."""
        words, text = list(sample.data["words"]), completion.strip()
        grammar, no_repeats, share = _grammar(self.grammar, text), _no_repeats(text), share_included(words, text)
        inclusion = float(all(word in text for word in words))
        score = grammar * no_repeats * (share == 1) * is_more_than_a_list(words, text)
        return {
            "score": score,
            "score_strict": score * is_bare(completion, one_sentence=True),
            "score_published": inclusion * grammar,
            "grammar": grammar,
            "inclusion": inclusion,
            "words": share,
            "no_repeats": no_repeats,
        }


@dataclass(frozen=True)
class Paraphrase(Drawn):
    """Say a sentence in other words."""

    grammar: Grammar = HARPER
    bertscore: BertScore | None = None
    name: str = "text/paraphrase"

    @property
    def version(self) -> str:
        return _version(self.grammar) + (f"+{self.bertscore.version}" if self.bertscore else "")

    def draw(self, rng: random.Random, index: int) -> Draw:
        text, references = draw_paraphrases(rng)
        prompt, *wordings = (wording.format(text=text) for wording in PARAPHRASE_WORDINGS)
        return Draw(prompt, {"text": text, "references": references}, references[0], wordings)

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score` = content x novelty x grammar, lexical: what a reference paraphrase says (else the source's words),
        not in the source's words. `score_published` = inv_bleu x bertscore x grammar and `bertscore` are there only
        with a BERTScore model."""
        source, text = str(sample.data["text"]), completion.strip()
        references = [str(reference) for reference in sample.data.get("references", ())] or [source]
        grammar, no_repeats = _grammar(self.grammar, text), _no_repeats(text)
        inv_bleu = 1 - bleu(text, source) if text else 0.0
        values = {"content": content(text, references), "novelty": novelty(text, source) if text else 0.0}
        score = values["content"] * values["novelty"] * grammar * no_repeats
        scores = {
            "score": score,
            "score_strict": score * is_bare(completion, one_sentence=True),
            "grammar": grammar,
            "inv_bleu": inv_bleu,
            "no_repeats": no_repeats,
            **values,
        }
        if self.bertscore is None:
            return scores
        bertscore = self.bertscore(text, source) if text else 0.0
        return {**scores, "bertscore": bertscore, "score_published": inv_bleu * bertscore * grammar}


@dataclass(frozen=True)
class Summary(Drawn):
    """Sum up a short conversation."""

    grammar: Grammar = HARPER
    name: str = "text/summary"

    @property
    def version(self) -> str:
        return _version(self.grammar)

    def draw(self, rng: random.Random, index: int) -> Draw:
        dialogue, summary = draw_dialogue(rng)
        prompt, *wordings = (wording.format(text=dialogue) for wording in SUMMARY_WORDINGS)
        return Draw(prompt, {"text": dialogue}, summary, wordings)

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score` = content (words of the reference summary, function words aside) x grammar, 0 with a doubled word.
        `score_published` = rougeL x grammar."""
        text = completion.strip()
        grammar, no_repeats = _grammar(self.grammar, text), _no_repeats(text)
        scores, said = rouge(text, sample.target), content(text, [sample.target])
        score = said * grammar * no_repeats
        return {
            "score": score,
            "score_strict": score * is_bare(completion, one_sentence=False),
            "score_published": scores["rougeL"] * grammar,
            "grammar": grammar,
            "content": said,
            "no_repeats": no_repeats,
            **{name: scores[name] for name in ROUGE},
        }


def _version(grammar: Grammar) -> str:
    return f"{_VERSION}+{grammar.name}-{grammar.version}"


def _grammar(grammar: Grammar, text: str) -> float:
    """Published: 0 for an empty text, else whether there is no mistake at all."""
    return float(bool(text) and not grammar.check(text))


def _no_repeats(text: str) -> float:
    return float(bool(text) and not has_doubled_word(text))
