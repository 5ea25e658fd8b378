"""The version of the project. The build reads it too."""

__version__ = "0.1.0"
