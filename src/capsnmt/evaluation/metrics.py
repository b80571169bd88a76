"""Corpus scores. Each carries the signature without which its number means nothing.

`bleu` and `chrf` are the numbers to compare with other work of today; `paper_bleu` is the number to compare with the
paper's tables. The two differ by a BLEU point or more on the same output, so they stand in columns of their own.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sacremoses
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from capsnmt.errors import CapsNMTError


class PlainChrf(CHRF):
    """Plain floats: sacreBLEU mixes kinds where some resamples match nothing, and its own mean then fails."""

    def _compute_f_score(self, statistics: list[int]) -> float:
        return float(super()._compute_f_score(statistics))


@dataclass(frozen=True)
class Score:
    """One score of a corpus, in 0..100."""

    name: str
    value: float
    signature: str
    confidence: tuple[float, float] | None = None  # 95 %, as sacreBLEU prints it: mean of the samples ± half range


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, num_bootstrap: int = 1000) -> Score:
    """SacreBLEU: cased, tokeniser 13a, of untokenised lines.

    The resampling's seed is sacreBLEU's own: 12345, or the environment's SACREBLEU_SEED; the signature records it.
    """
    return _corpus_score(BLEU(tokenize="13a"), "BLEU", hypotheses, references, num_bootstrap)


def chrf(hypotheses: Sequence[str], references: Sequence[str], *, num_bootstrap: int = 1000) -> Score:
    """ChrF2 of untokenised lines, cased; its confidence as in `bleu`."""
    return _corpus_score(PlainChrf(), "chrF2", hypotheses, references, num_bootstrap)


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str,
    lowercase: bool = False,
    split_compounds: bool = False,
) -> Score:
    """The paper's metric: multi-bleu.perl on Moses-tokenised text, from untokenised lines.

    Both sides go through the Moses tokeniser of the target language with its default settings (hyphenated words stay
    whole, as without `-a`), then BLEU-4 without smoothing: 0 as soon as one n-gram precision is 0. The paper says no
    more than "we tokenized the reference". `split_compounds` adds what tensor2tensor's get_ende_bleu.sh does to both
    sides, and what published Transformer scores on English-German contain. `lowercase` knows all of Unicode, where
    multi-bleu.perl -lc knows ASCII only.
    """
    require_equal_counts({"hypotheses": hypotheses, "references": references})
    tokeniser = sacremoses.MosesTokenizer(lang=target_language)

    def tokenised(line: str) -> str:
        text: str = tokeniser.tokenize(line, aggressive_dash_splits=False, return_str=True)
        return split_hyphens(text) if split_compounds else text

    metric = BLEU(tokenize="none", smooth_method="none", lowercase=lowercase, force=True)
    result = metric.corpus_score([tokenised(line) for line in hypotheses], [[tokenised(line) for line in references]])
    signature = "|".join(
        [
            "multi-bleu",
            f"tok:moses-{target_language}-{sacremoses.__version__}",
            f"case:{'lc' if lowercase else 'mixed'}",
            f"compounds:{'split' if split_compounds else 'no'}",
            "smooth:none",
            f"capsnmt:{importlib.metadata.version('capsnmt')}",
        ]
    )
    changes = [name for name, is_made in (("lower-cased", lowercase), ("compounds split", split_compounds)) if is_made]
    return Score(f"paper BLEU ({', '.join(changes)})" if changes else "paper BLEU", float(result.score), signature)


def split_hyphens(text: str) -> str:
    """`Test-Satz` becomes `Test ##AT##-##AT## Satz`: three tokens that can match one by one."""
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)


def require_equal_counts(streams: Mapping[str, Sequence[str]]) -> None:
    """Parallel lines must be parallel: zip would silently score the shorter part only."""
    counts = {name: len(lines) for name, lines in streams.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise CapsNMTError(f"cannot score {shown}: give one line of each per sentence")
    if not any(counts.values()):
        raise CapsNMTError(f"cannot score 0 lines: {', '.join(counts)} are all empty")


def _corpus_score(
    metric: BLEU | CHRF,
    name: str,
    hypotheses: Sequence[str],
    references: Sequence[str],
    num_bootstrap: int,
) -> Score:
    require_equal_counts({"hypotheses": hypotheses, "references": references})
    resample = num_bootstrap > 1 and len(hypotheses) > 1  # resampling one line always draws that line
    result = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=num_bootstrap if resample else 1)
    confidence = (float(result._mean - result._ci), float(result._mean + result._ci)) if resample else None
    return Score(name, float(result.score), metric.get_signature().format(), confidence)
