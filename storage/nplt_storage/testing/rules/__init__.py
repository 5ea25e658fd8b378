"""The rules, by what they are about. Each begins with an empty place."""
