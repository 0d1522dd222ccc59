"""WARC segments in a folder: one writer thread with group commit, reads by reference, recovery, and a checker."""
