"""The commands an operator runs on the files: examine, repair, import, migrate."""
