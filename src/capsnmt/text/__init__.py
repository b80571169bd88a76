"""From a string to ids and back: normalising, subwords, and the pipeline that joins them. No torch."""
