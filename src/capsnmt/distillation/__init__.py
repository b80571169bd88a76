"""Sequence-level knowledge distillation (Kim and Rush 2016): a teacher's translations become a student's corpus."""

TEACHER_BEAM = 5  # unless asked otherwise, or for more candidates: see `beam_for`
MANIFEST = "manifest.json"  # of a whole distilled corpus; without it the corpus is not finished
VERDICTS = "verdicts.tsv"  # of every line of the source: kept or why not, and which candidate was chosen


def beam_for(candidates: int) -> int:
    """A beam gives as many candidates as its size at the most."""
    return max(TEACHER_BEAM, candidates)
