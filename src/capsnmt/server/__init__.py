"""The HTTP server: LibreTranslate's API, our own, and a page to try a model in. No torch."""
