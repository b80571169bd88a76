"""Sequence-level knowledge distillation (Kim and Rush 2016): a teacher's translations become a student's corpus."""
