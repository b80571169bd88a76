"""Scores with signatures: BLEU and chrF, the paper's own metric, significance, and scores by sentence length."""
