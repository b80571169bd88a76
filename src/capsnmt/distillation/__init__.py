"""Sequence-level knowledge distillation (Kim and Rush 2016): a teacher's translations become a student's corpus."""

TEACHER_BEAM = 5  # unless asked otherwise; `capsnmt plan` costs distilling with it
MANIFEST = "manifest.json"  # of a whole distilled corpus; without it the corpus is not finished
VERDICTS = "verdicts.tsv"  # of every line of the source: kept or why not, and which candidate was chosen
