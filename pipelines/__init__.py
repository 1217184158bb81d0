"""Pipelines: when things run. Dagster definitions, settings, command line. The only package that imports Dagster."""
