"""Formats values as safe text, tables and HTML. Asks no server."""
