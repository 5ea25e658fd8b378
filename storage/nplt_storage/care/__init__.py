"""Looking after what is kept: for the commands an operator runs on the files themselves.

pieces, pairing     what of a file can be read, and whether calls have results
examining           one file, read from end to end
doctor, drift       a whole data directory and its catalogue; only ever reads
repairing           what is to be cut and appended; `header_rescue` for the first line
replacing           the repaired file put in place, the original kept aside
documents           one conversation as one JSON document, and back
sources             files as something to copy from, only read
relayout            our own documents, laid out anew by another program
importing           a file taken into a store, with what is beside it (`attaching`)
migrating           all conversations, from one place to another (`redis_ids`)
"""
