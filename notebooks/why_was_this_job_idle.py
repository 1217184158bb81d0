# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Why was this job idle, and what did it cost?
#
# Opens what `zoneledger run` (or `zoneledger demo`) published, read-only, and follows one job from its idle GPU-hours
# to the cause, the evidence and the money. It reads the same tables as the weekly report and Power BI.
#
# Open it in Jupyter with jupytext, or run it as it is: `.venv/bin/jupytext --execute --to ipynb notebooks/why_was_this_job_idle.py`

# %% tags=["parameters"]
home = "demo/data"  # where results live: `home` of your zoneledger.toml
job = None  # "namespace/name"; None takes the job with the most idle money

# %%
import os
from pathlib import Path

import plotly.graph_objects as go
import polars as pl

from reports.publish import open_published

home = os.environ.get("ZONELEDGER_HOME", home)
published = open_published(Path(home))
print("revision", published.manifest["revision"], "generated", published.manifest["generated_at_utc"])

# %% [markdown]
# ## Which jobs held GPUs, and how much of that was idle?
# DuckDB does the adding up; unmeasured time stays its own column.

# %%
jobs = published.query(
    """
    SELECT j.namespace || '/' || j.name AS job, j.kind, g.currency,
           sum(g.gpu_hours) AS gpu_hours,
           sum(g.gpu_hours) FILTER (WHERE g.state IN ('idle', 'starting')) AS idle_gpu_hours,
           sum(g.gpu_hours) FILTER (WHERE g.state = 'unmeasured') AS unmeasured_gpu_hours,
           sum(g.effective_cost) AS gpu_cost,
           sum(g.effective_cost) FILTER (WHERE g.state IN ('idle', 'starting')) AS idle_cost
    FROM mart.fact_gpu_hours AS g JOIN mart.dim_job AS j USING (job_key)
    WHERE g.job_key <> -1
    GROUP BY ALL
    ORDER BY idle_cost DESC NULLS LAST, idle_gpu_hours DESC NULLS LAST
    """
)
jobs

# %%
job = job or jobs["job"][0]
print("looking at", job)

# %% [markdown]
# ## Where did its GPU time go?

# %%
states = published.query(
    """
    SELECT g.hour_utc, g.state, coalesce(g.cause, '') AS cause, sum(g.gpu_hours) AS gpu_hours, sum(g.effective_cost) AS cost
    FROM mart.fact_gpu_hours AS g JOIN mart.dim_job AS j USING (job_key)
    WHERE j.namespace || '/' || j.name = $job
    GROUP BY ALL ORDER BY g.hour_utc
    """,
    {"job": job},
)
by_cause = (
    states.group_by("state", "cause")
    .agg(pl.col("gpu_hours").sum(), pl.col("cost").sum())
    .sort("gpu_hours", descending=True)
)
by_cause

# %%
labels = states.with_columns(
    pl.when(pl.col("cause") == "").then("state").otherwise(pl.format("{}: {}", "state", "cause")).alias("label")
)
figure = go.Figure(
    [
        go.Bar(x=part["hour_utc"].to_list(), y=part["gpu_hours"].to_list(), name=str(label))
        for (label,), part in labels.group_by("label", maintain_order=True)
    ]
)
figure.update_layout(barmode="stack", title=f"GPU-hours of {job} by state and cause", yaxis_title="GPU-hours")
figure.show()

# %% [markdown]
# ## Why? What was found, with evidence and what helps

# %%
findings = published.query(
    """
    SELECT f.kind, f.confidence, f.opened_utc, f.closed_utc, f.idle_gpu_hours, f.idle_cost, f.transfer_cost, f.currency,
           f.summary, f.evidence, f.remedy
    FROM mart.fact_finding AS f JOIN mart.dim_job AS j USING (job_key)
    WHERE j.namespace || '/' || j.name = $job ORDER BY f.opened_utc
    """,
    {"job": job},
)
for row in findings.iter_rows(named=True):
    print(f"{row['kind']} ({row['confidence']}): {row['summary']}")
    print(f"   what helps: {row['remedy'] or 'nothing that is known to help'}")
findings

# %% [markdown]
# ## Did it talk across zones, and was it dropped?

# %%
traffic = published.query(
    """
    SELECT t.role, coalesce(t.peer_role, t.peer_name, 'unknown') AS peer, s.zone AS source_zone, d.zone AS destination_zone,
           t.locality, t.verdict, sum(t.connections) AS connections, sum(t.attempts) AS attempts, sum(t.bytes) AS bytes
    FROM mart.fact_zone_traffic AS t
    JOIN mart.dim_job AS j ON j.job_key = t.job_key
    JOIN mart.dim_zone AS s ON s.zone_key = t.source_zone_key
    JOIN mart.dim_zone AS d ON d.zone_key = t.destination_zone_key
    WHERE j.namespace || '/' || j.name = $job
    GROUP BY ALL ORDER BY attempts DESC, bytes DESC NULLS LAST
    """,
    {"job": job},
)
traffic

# %% [markdown]
# ## What did it cost, in all?
# GPU cost by state and inter-AZ transfer, each currency alone. A price that is not known is null, never 0.

# %%
cost = published.query(
    """
    SELECT 'GPU: ' || g.state AS what, g.currency, sum(g.effective_cost) AS cost
    FROM mart.fact_gpu_hours AS g JOIN mart.dim_job AS j USING (job_key)
    WHERE j.namespace || '/' || j.name = $job GROUP BY ALL
    UNION ALL
    SELECT 'inter-AZ (' || t.basis || ')', t.currency, sum(t.effective_cost)
    FROM mart.fact_transfer_cost AS t JOIN mart.dim_job AS j USING (job_key)
    WHERE j.namespace || '/' || j.name = $job GROUP BY ALL
    ORDER BY cost DESC NULLS LAST
    """,
    {"job": job},
)
cost

# %%
# The ledger says the same: what is published of this job sums to its rows there.
ledger = published.query(
    """
    SELECT l.currency, sum(l.effective_cost) AS cost
    FROM mart.fact_cost_ledger AS l JOIN mart.dim_job AS j USING (job_key)
    WHERE j.namespace || '/' || j.name = $job GROUP BY ALL ORDER BY l.currency
    """,
    {"job": job},
)
billed = published.query(
    """
    SELECT g.currency, sum(g.effective_cost) AS cost FROM (
        SELECT job_key, currency, effective_cost FROM mart.fact_gpu_hours WHERE cost_basis IN ('billed', 'pooled')
        UNION ALL SELECT job_key, currency, effective_cost FROM mart.fact_transfer_cost WHERE currency IS NOT NULL
    ) AS g JOIN mart.dim_job AS j USING (job_key)
    WHERE j.namespace || '/' || j.name = $job GROUP BY ALL ORDER BY g.currency
    """,
    {"job": job},
)
assert ledger.equals(billed), (ledger, billed)
published.close()
