"""Converters: each is a function from the publisher's files, by name, to the arrays of the npz file moiety reads.

Nothing here downloads, writes, or knows where files lie. Archives are read in memory, member by member, and never
unpacked to a disk; nothing is unpickled.
"""
