"""Engines that run a model behind the search: torch here, others beside it."""
