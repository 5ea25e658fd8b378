"""The full-screen chat. The only package that imports textual."""
