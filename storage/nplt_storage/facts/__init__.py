"""The facts a conversation consists of, what they must be like, and how they are written.

entries, sections, tool_calls     the values
checks, references                what can be remembered at all
entry_to_json, entry_from_json    an entry as a JSON object, and back
lines                             that object as one line, with its checksum
redaction                         what is left of one whose words were erased
"""
