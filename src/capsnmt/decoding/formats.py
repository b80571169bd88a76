"""How a translation is written: plain text, JSON lines, or Moses' n-best lists."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from capsnmt.decoding.translation import Translation


def as_text(number: int, translation: Translation) -> str:
    """The best translation alone: one line in, one line out."""
    return translation.text


def as_json(number: int, translation: Translation) -> str:
    """One JSON object a line, with every hypothesis and the line's status."""
    record = {
        "line": number + 1,
        "status": translation.status,
        "notes": list(translation.notes),
        "source": translation.source,
        "translation": translation.text,
        "score": _finite(translation.score),
        "hypotheses": [{"text": text, "score": _finite(score)} for text, score in translation.hypotheses],
    }
    # Escaped, because many a reader ends a line at these too; of the other line breaks JSON allows none.
    return re.sub("[\x85\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(record, ensure_ascii=False))


def _finite(score: float | None) -> float | None:
    """JSON has no infinity: the score of what the model finds impossible is null."""
    return score if score is not None and math.isfinite(score) else None


def as_nbest(number: int, translation: Translation) -> str:
    """Moses' and Marian's form, numbers from 0: `id ||| hypothesis ||| score`."""
    hypotheses = translation.hypotheses or ((translation.text, 0.0),)
    return "\n".join(f"{number} ||| {text} ||| {score:.6f}" for text, score in hypotheses)


FORMATS: dict[str, Callable[[int, Translation], str]] = {"text": as_text, "json": as_json, "nbest": as_nbest}
