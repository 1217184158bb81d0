"""Contracts of mart: what readers rely on (version 1). Columns may be added; a change of name, type or meaning is a v2.

Money is DECIMAL(18,6), rounded from the ledger's 12 places so that published sums agree with each other (N4).
"""

from models.contracts.table import Table, columns

DIM_JOB = Table(
    name="mart.dim_job",
    grain="job run",
    key=("job_key",),
    columns=columns("""
        job_key! int
        cluster text
        namespace text
        kind text -- PyTorchJob, MPIJob, JobSet, TrainJob, RayJob, RayCluster, Job, ...
        name text
        run text
        owner_key! int
        queue text
        pipeline text
        resolved_by text
        first_seen_utc ts
        last_seen_utc ts
    """),
)

DIM_NODE = Table(
    name="mart.dim_node",
    grain="node life",
    key=("node_key",),
    columns=columns("""
        node_key! int
        cluster text
        name text
        instance_id text
        instance_type text
        lifecycle text -- on_demand, spot, capacity_block, unknown
        node_pool text
        owner_key! int
        zone_key! int
        gpu_model text
        gpus int
        first_seen_utc ts
        last_seen_utc ts
    """),
)

DIM_OWNER = Table(
    name="mart.dim_owner",
    grain="owner",
    key=("owner_key",),
    columns=columns("""
        owner_key! int
        team text
        cost_center text
    """),
)

DIM_ZONE = Table(
    name="mart.dim_zone",
    grain="zone",
    key=("zone_key",),
    columns=columns("""
        zone_key! int
        provider text
        region text
        zone text
        zone_id text
    """),
)

DIM_CLUSTER = Table(
    name="mart.dim_cluster",
    grain="cluster",
    key=("cluster_key",),
    columns=columns("""
        cluster_key! int
        cluster text
        provider text
        region text
    """),
)

DIM_DATE = Table(
    name="mart.dim_date",
    grain="day",
    key=("date",),
    columns=columns("""
        date! date
        iso_year int
        iso_week int
        week text -- `2026-W47`
        month text
        is_provisional int
    """),
)

FACT_GPU_HOURS = Table(
    name="mart.fact_gpu_hours",
    grain="hour, node, GPU model, job, state, cause",
    partition="date",
    columns=columns("""
        hour_utc ts
        date! date
        cluster_key! int
        node_key! int
        zone_key! int
        job_key! int
        gpu_model text
        state text -- busy, underused, comm_stall, idle, starting, unmeasured, unallocated, reserved_unused
        cause text -- null, or: creating, image_pull, blocked_by_policy, init, restarting, finished_not_released, waiting_for_members, pause, no_work, unexplained; cross_zone_sync; not_in_cluster, free, unschedulable, unhealthy; no_placement
        activity_basis text -- tensor, engine, util, device_shared, none
        gpu_hours double
        billing_period text
        billing_account text
        sub_account text
        pricing_category text
        billed_cost published
        effective_cost published
        currency text
        cost_basis text -- billed, pooled, estimated, not_billed, unpriced
    """),
)

FACT_TRANSFER_COST = Table(
    name="mart.fact_transfer_cost",
    grain="hour or day, billed line scope, job, role, peer, zones, direction",
    partition="date",
    columns=columns("""
        hour_utc ts
        date! date
        cluster_key! int
        node_key! int
        job_key! int
        role text
        peer_job_key! int
        peer_role text
        peer_name text
        resolved_by text
        peer_resolved_by text -- pod, ip, service, host_inferred, node, none
        source_zone_key! int
        destination_zone_key! int
        direction text -- in, out
        billing_period text
        billing_account text
        sub_account text
        metered_bytes double -- seen on this direction; never summed over directions
        billed_gb double
        billed_cost published
        effective_cost published
        currency text
        basis text -- measured_bytes, counter_bytes, flow_share, none
        policy text -- rate, scale, none
        estimate_ratio double
        coverage double
        reason text -- null when attributed; else unexplained, no_evidence, no_resource_id, not_a_node, not_charged, unknown_zone, no_live_owner, ambiguous, host_network, ...
    """),
)

FACT_ZONE_TRAFFIC = Table(
    name="mart.fact_zone_traffic",
    grain="hour, job, role, peer, zones, locality, verdict",
    partition="date",
    columns=columns("""
        hour_utc ts
        date! date
        cluster_key! int
        job_key! int
        role text
        peer_job_key! int
        peer_role text
        peer_name text
        source_zone_key! int
        destination_zone_key! int
        locality text -- same_zone, cross_zone, cross_region, external, unknown
        verdict text -- connected, unanswered, dropped, audit
        connections int
        attempts int
        bytes double
        basis text
        coverage double
        reason text
    """),
)

FACT_COST_LEDGER = Table(
    name="mart.fact_cost_ledger",
    grain="billing period, day, account, scope, bucket, job, reason",
    partition="billing_period",
    columns=columns("""
        billing_period text -- `2026-11`
        date! date
        provider text
        billing_account text
        sub_account text
        cluster_key! int
        region text
        service text
        charge_scope text
        charge_category text
        charge_class text
        charge_span text -- hour, day, period
        pricing_category text
        commitment_id text
        bucket text -- job, shared, unattributed, out_of_scope
        rule text
        job_key! int
        owner_key! int
        reason text
        invoice_id text
        list_cost published
        contracted_cost published
        billed_cost published
        effective_cost published
        currency text
    """),
)

FACT_FINDING = Table(
    name="mart.fact_finding",
    grain="finding",
    key=("finding_key",),
    columns=columns("""
        finding_key! int
        finding_id text
        kind text -- blocked, stalled, slow, billed, split, waiting, unreleased, doors, label_mismatch, spread_constraint
        confidence text
        job_key! int
        role text
        peer_role text
        port text
        first_evidence_utc ts
        opened_utc ts
        closed_utc ts
        detected_after_seconds double
        idle_gpu_hours double
        idle_cost published
        transfer_cost published
        currency text
        counted int -- 1 on the one finding that carries the money
        status text
        summary text
        evidence text
        counter_evidence text
        remedy text
    """),
)

FACT_RECONCILIATION = Table(
    name="mart.fact_reconciliation",
    grain="billing period, account, currency, measure",
    columns=columns("""
        billing_period text
        provider text
        billing_account text
        currency text
        measure text -- billed, effective
        bill_total money
        ledger_total money
        difference money
        rounding money
        unknown_lines int -- lines whose amount is unknown: above 0, the totals are incomplete (B3)
    """),
)

FACT_COST_BRIDGE = Table(
    name="mart.fact_cost_bridge",
    grain="billing period, account, currency",
    columns=columns("""
        billing_period text
        billing_account text
        currency text
        billed_cost published
        purchases published
        used_amortisation published
        unused_amortisation published
        effective_cost published
    """),
)

FACT_BILL_STATUS = Table(
    name="mart.fact_bill_status",
    grain="day, account",
    columns=columns("""
        date! date
        provider text
        billing_account text
        sub_account text
        status text -- open, settled, invoiced
        bill_horizon_utc ts
        delivery_id text
        delivered_utc ts
    """),
)

FACT_RESTATEMENT = Table(
    name="mart.fact_restatement",
    grain="week, revision, table, job, scope, measure",
    columns=columns("""
        week text
        revision int
        published_utc ts
        table text
        job_key! int
        charge_scope text
        measure text
        before published
        after published
        delta published
        cause text
        delivery_id text
        currency text -- of before, after and delta; null where the measure is gpu_hours
    """),
)

FACT_COVERAGE = Table(
    name="mart.fact_coverage",
    grain="day, cluster, source",
    columns=columns("""
        date! date
        cluster_key! int
        source text
        rows_read int
        rows_kept int
        rows_rejected int
        rows_duplicate int
        rows_control int
        coverage double
        note text
    """),
)
