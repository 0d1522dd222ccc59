"""The test web: hundreds of small origins on loopback addresses, with a DNS, a truth and an access log of its own.

It stands in for the open web in tests, benches, soaks and the documentation, runs as its own process
(`python -m tests.web`) and knows nothing of the crawler: what it logs is independent evidence.
"""
