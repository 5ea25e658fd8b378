"""The one place that knows which version this is; the build reads it too."""

__version__ = "0.1.0"
