"""Models: what the numbers mean. Contracts, SQL, intervals, jobs, attribution, ledger, findings.

Belongs here: everything between staging rows and mart tables. Not here: clouds, file formats, Dagster, HTML.
"""
