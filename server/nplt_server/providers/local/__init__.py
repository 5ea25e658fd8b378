"""`local/smollm2`: a small language model on this machine, in a process of its own.

    installed   whether the extra is there, and where the model's file is
    provider    the port: it speaks as OpenAI's chat does, to the process
    plain       the conversation as it can follow it: without tools, of which it knows nothing
    keeper      one process, started when it is first needed and again when it died
    engine      a process that runs, and how it is asked to go
    child       what runs in it: llama.cpp's own server, for nobody but its parent

llama.cpp ends the whole process when a model's file is broken, or memory is not to be
had: in a process of its own that costs one answer, and the conversations go on.
"""
