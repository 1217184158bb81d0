"""Dagster assets, by layer: staging (sources to lake), models (lake to core and mart), publication (mart to readers)."""

import warnings

import dagster as dg

# pools and backfill policies are marked beta in dagster 1.13; they are what the engine notes recommend
warnings.filterwarnings("ignore", category=dg.BetaWarning)
