"""From ids to translations: search, sampling, scoring and the line translator, in NumPy and blind to the model."""
