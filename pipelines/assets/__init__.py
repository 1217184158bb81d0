"""Dagster assets, by layer: staging (sources to lake), models (lake to core and mart), publication (mart to readers)."""
