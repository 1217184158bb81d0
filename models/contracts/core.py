"""Contracts of core: what the numbers mean. Filled by `models`, by day (or whole, for placement), never by hand.

Keys are 52-bit integers, `stable_key(...)` of the natural key, so that they are the same in every run; -1 is
"none". Times of events and intervals are integer nanoseconds (`_ns`), intervals half open (N1).
"""

from models.contracts.table import Table, columns

ZONE = Table(
    name="core.zone",
    grain="one zone",
    key=("zone_key",),
    columns=columns("""
        zone_key! int
        provider! text
        region text
        zone! text             -- name as the cluster's nodes carry it
        zone_id text           -- az id where known
    """),
)

NODE_LIFE = Table(
    name="core.node_life",
    grain="one life of one node (cluster, node uid)",
    key=("node_key",),
    columns=columns("""
        node_key! int          -- stable_key(cluster, uid)
        cluster! text
        node_uid! text
        name! text
        instance_id text
        provider_id text
        instance_type text
        lifecycle! text
        node_pool text
        region text
        zone text
        zone_basis text        -- P4
        zone_id text
        zone_key! int          -- -1: unknown
        gpu_model text
        gpus! double           -- physical GPUs; 0 when none
        gpus_allocatable double
        valid_from_ns! ns
        valid_to_ns! ns
        from_basis! text       -- created, first_seen
        to_basis! text         -- deleted, missing_from_snapshot, last_seen, replaced
    """),
)

NODE_ADDRESS = Table(
    name="core.node_address",
    grain="one internal address of one node life",
    columns=columns("""
        cluster! text
        ip! text
        node_key! int
        valid_from_ns! ns
        valid_to_ns! ns
    """),
)

SERVICE_ADDRESS = Table(
    name="core.service_address",
    grain="one cluster address of one Service, for as long as it was seen",
    columns=columns("""
        cluster! text
        ip! text
        namespace! text
        name! text
        job_key! int           -- the run that all its ready endpoints belong to (T1), else -1
        valid_from_ns! ns
        valid_to_ns! ns
    """),
)

JOB_RUN = Table(
    name="core.job_run",
    grain="one run of one training job (N2)",
    key=("job_key",),
    columns=columns("""
        job_key! int           -- stable_key(cluster, namespace, kind, name, run)
        cluster! text
        namespace! text
        kind! text
        name! text
        run! text              -- uid of the outermost job object, else `start-<first second>`
        queue text
        pipeline text
        team_labels text       -- JSON: labels that an owner mapping may use
        resolved_by! text      -- mapping, owner, label, jobset_name, rayjob_suffix, pod, ...
        declared_size int      -- G4 size
        size_basis text        -- min_member, elastic_min, ray, replicas, most_alive
        gang! bool             -- waits for members (G4)
        state text             -- last known state of the job object, null when never captured
        first_seen_ns! ns
        last_seen_ns! ns
        finished_ns ns         -- of the job object
        gpus! double           -- most GPUs held at once
    """),
)

POD_LIFE = Table(
    name="core.pod_life",
    grain="one pod (cluster, uid)",
    key=("cluster", "pod_uid"),
    columns=columns("""
        cluster! text
        pod_uid! text
        namespace! text
        name! text
        node_key! int          -- -1: not bound, or the node was never seen
        node_name text
        zone_key! int          -- where it runs (P4); -1 unknown
        declared_zone text     -- zone that a label of the pod declares, kept apart (P4)
        host_network! bool
        daemon! bool           -- DaemonSet, static or mirror pod, or in a system namespace
        job_key! int
        role! text             -- coordinator, worker, auxiliary, none
        replica_type text      -- as the framework calls it: master, launcher, head, worker, ...
        replica_index int
        attempt int            -- 1.. per (run, role, index), in order of creation
        resolved_by! text
        gpus! double           -- held while bound (P6)
        gpu_resource text
        bypasses_kernel! bool  -- requests EFA, RDMA or a secondary network (F4)
        created_ns ns
        held_from_ns ns        -- binding; null: never bound
        held_to_ns ns          -- terminal or gone, exclusive
        ready_to_start_ns ns
        initialized_ns ns
        main_started_ns ns     -- null: no main container ever started
        finished_ns ns
        phase text             -- last known
        succeeded! bool
        waiting_reason text    -- last known
        image_pulling_from_ns ns
        image_pulling_to_ns ns
        restart_count int
        last_seen_ns! ns
        from_basis text        -- scheduled, start_time, first_seen, ...
        to_basis text          -- finished, deleted, missing_from_snapshot, last_seen
        to_uncertainty_ns ns   -- width of the interval in which it ended
        still_alive! bool      -- nothing known says that it ended: causes are provisional (G4)
        ports text             -- JSON list of declared ports
        labels text            -- JSON object
        spread_constraints text
    """),
)

POD_ADDRESS = Table(
    name="core.pod_address",
    grain="one address of one pod while the pod owned it (P1); never a host-network or terminal pod (P2)",
    columns=columns("""
        cluster! text
        ip! text
        pod_uid! text
        valid_from_ns! ns
        valid_to_ns! ns
        from_basis! text
        to_basis! text
        rival! bool            -- overlaps another owner that times can't separate: flows here are `ambiguous`
    """),
)

PLACEMENT_COVERAGE = Table(
    name="core.placement_coverage",
    grain="one interval for which placement is known (P1)",
    columns=columns("""
        cluster! text
        from_ns! ns
        to_ns! ns
        basis! text            -- list, watch
    """),
)

BILL_LINE = Table(
    name="core.bill_line",
    grain="one part of one bill line in force, with exactly one charge scope (B2)",
    key=("delivery_id", "object_id", "row_number", "part"),
    partition="billing_period",
    columns=columns("""
        delivery_id! text
        object_id! text
        row_number! int
        part! int              -- 1..n; more than one where a line is two things
        billing_period! text
        date! date             -- day of its charge period's start
        hour_utc ts            -- its hour, null when the line is longer than an hour
        charge_span! text      -- hour, day, period (N6)
        charge_period_start! ts
        charge_period_end! ts
        provider! text
        billing_account! text
        sub_account text
        cluster_key! int       -- by node id, cluster tag, then dedicated account; -1 none
        node_key! int          -- node whose instance the line names, -1 none
        region text
        availability_zone text
        service text
        resource_id text
        charge_scope! text     -- B2
        scope_certain! bool    -- false: the class rests on the description alone
        direction text         -- in, out for transfer scopes
        charge_category! text
        charge_class text
        pricing_category text
        commitment_id text
        instance_type text
        usage_type text
        operation text
        description text
        invoice_id text
        quantity money18       -- consumed, else pricing quantity; null where the row has none
        unit text
        list_cost money
        contracted_cost money
        billed_cost! money
        effective_cost money   -- null: effective_unknown
        rejected! bool         -- true: only its money could be read (B5)
        currency! text
    """),
)

NODE_BILL_HOURLY = Table(
    name="core.node_bill_hourly",
    grain="one node, hour and bill line of its compute (B6)",
    partition="date",
    columns=columns("""
        date! date
        hour_utc! ts
        node_key! int
        instance_hours! double -- billed instance-hours of the line in this hour (pooled lines: the node's share)
        delivery_id! text
        object_id! text
        row_number! int
        part! int
        share_billed! money    -- what of the line's billed cost falls on this node and hour
        share_effective money
        charge_scope! text     -- gpu_compute, other_compute
        currency! text
        cost_basis! text       -- billed, pooled
    """),
)

FLOW_COVERAGE_HOURLY = Table(
    name="core.flow_coverage_hourly",
    grain="one node and hour: what its flow log can prove (T6)",
    partition="date",
    columns=columns("""
        date! date
        hour_utc! ts
        cluster! text
        node_name! text
        forwarded_seen! bool
        drops_seen! bool       -- drop or policy verdict records were seen from this node on this day
        events! int
        events_lost! int
        gap_seconds! double    -- inside the hour without any record, beyond five minutes
        coverage! double       -- events / (events + lost), times the share of the hour without gap
        vpc_coverage double    -- share of the node's interface time not SKIPDATA; null: no flow log of this node
    """),
)

CONNECTION = Table(
    name="core.connection",
    grain="one connection (client, server, protocol) and hour, from all its sightings (T2)",
    partition="date",
    columns=columns("""
        date! date
        hour_utc! ts
        cluster! text
        connection_id! int     -- stable over hours
        protocol! text
        client_ip! text
        client_port int
        server_ip! text
        server_port int
        client_pod_uid text
        client_node_key! int
        client_zone_key! int
        client_job_key! int
        client_role text
        client_name text       -- namespace/workload, host/<node>, service, entity or address
        client_resolved_by! text -- pod, ip, service, host_inferred, node, none
        client_reason text     -- why it is not the pod that the flow names, or why unknown
        server_pod_uid text
        server_node_key! int
        server_zone_key! int
        server_job_key! int
        server_role text
        server_name text
        server_resolved_by! text
        server_reason text
        locality! text         -- T3
        verdict! text          -- connected, unanswered, dropped, audit
        first_ns! ns
        last_ns! ns
        answered_ns ns         -- latest record of the hour that proves that the two ends talk (T2); null: none
        request_events! int    -- client to server, counted at one observation point
        reply_events! int
        drop_records! int
        sightings_client_node! int
        sightings_server_node! int
        coverage! double       -- lowest flow coverage of the two nodes in the hour
    """),
)

DROP_ATTEMPT = Table(
    name="core.drop_attempt",
    grain="one attempt: source pod, destination pod, protocol, port, second (F3)",
    partition="date",
    columns=columns("""
        date! date
        cluster! text
        second_ns! ns
        source_pod_uid text
        source_job_key! int
        source_role text
        source_ip text
        destination_pod_uid text
        destination_job_key! int
        destination_role text
        destination_ip text
        destination_name text
        protocol! text
        destination_port int
        drop_reason text
        records! int           -- however many records saw it
        policies text          -- JSON list of policies that a record named
        node_names text        -- JSON list of nodes that saw it
        audit! bool            -- would have been dropped
        source_reserved text   -- entity that the flow took the end for (F3: a known member seen as init, unmanaged or world)
        destination_reserved text
    """),
)

NODE_TRAFFIC_HOURLY = Table(
    name="core.node_traffic_hourly",
    grain="one node, hour, metered direction and pair of ends: the weights of A1, each direction at its own meter",
    partition="date",
    columns=columns("""
        date! date
        hour_utc! ts
        cluster! text
        node_key! int          -- the metered node
        direction! text        -- out: the node sent; in: the node received
        pod_uid text           -- local end
        job_key! int
        role text
        resolved_by! text
        reason text            -- no_live_owner, ambiguous, host_network, ... null when the local end is a job
        peer_pod_uid text
        peer_job_key! int
        peer_role text
        peer_name text
        peer_resolved_by! text
        source_zone_key! int
        destination_zone_key! int
        locality! text
        basis! text            -- measured_bytes, counter_bytes, flow_share
        bytes double           -- null for flow_share
        weight! double         -- bytes, or events times where basis is flow_share
        connections! int
        coverage! double
        other_side! bool       -- measured at the peer's interface because the metered one has no record
    """),
)

ZONE_TRAFFIC_HOURLY = Table(
    name="core.zone_traffic_hourly",
    grain="hour, job, role, peer, zones, locality, verdict; each connection and byte once (T2)",
    partition="date",
    columns=columns("""
        date! date
        hour_utc! ts
        cluster! text
        job_key! int           -- the client's run, else the server's
        role text
        peer_job_key! int
        peer_role text
        peer_name text
        source_zone_key! int
        destination_zone_key! int
        locality! text
        verdict! text
        connections! int
        attempts! int          -- all drops (T4)
        bytes double           -- both directions, each once; null: unknown (T5)
        basis! text
        coverage! double
        reason text
    """),
)

GPU_STATE_SEGMENT = Table(
    name="core.gpu_state_segment",
    grain="one GPU (or slot without telemetry) and stretch of one state, within one day",
    partition="date",
    columns=columns("""
        date! date
        cluster! text
        node_key! int
        gpu_uuid! text         -- device uuid, else `slot-<n>`
        gpu_model text
        job_key! int
        pod_uid text
        from_ns! ns
        to_ns! ns
        state! text            -- G1
        cause text             -- G4
        activity_basis! text   -- tensor, engine, util, device_shared, none
        activity double        -- 0..1 while active
        work double            -- F4 work: tensor, else power; null when not measured
        weight! double         -- GPUs that the stretch counts for (fractions, MIG)
        provisional! bool
        early_cause text       -- the cause before findings were known; what `gpu_causes` starts from
    """),
)

GPU_STATE_HOURLY = Table(
    name="core.gpu_state_hourly",
    grain="hour, node, GPU model, job, role, state, cause, basis: GPU-hours whose sum over states is the capacity (G1)",
    partition="date",
    columns=columns("""
        date! date
        hour_utc! ts
        cluster! text
        node_key! int
        gpu_model text
        job_key! int
        role text
        state! text
        cause text
        activity_basis! text
        gpu_hours! double
    """),
)

GPU_COST_LINE = Table(
    name="core.gpu_cost_line",
    grain="bill line (or estimate), node, hour and GPU state row: what of the line paid for that state",
    partition="date",
    columns=columns("""
        date! date
        hour_utc! ts
        cluster! text
        node_key! int
        gpu_model text
        job_key! int
        role text
        state! text
        cause text
        activity_basis! text
        gpu_hours! double      -- of the state row that this line paid for (a row paid by two lines: pro rata by instance-hours)
        delivery_id text       -- null when no line: estimated, not_billed, unpriced
        object_id text
        row_number int
        part int
        billing_period text
        billing_account text
        sub_account text
        pricing_category text
        billed_cost money
        effective_cost money
        currency text
        cost_basis! text       -- billed, pooled, estimated, not_billed, unpriced
    """),
)

TRANSFER_COST = Table(
    name="core.transfer_cost",
    grain="inter-AZ bill line and pair of ends that got a part of it, or residual with a reason (A1-A6)",
    partition="date",
    columns=columns("""
        date! date
        hour_utc ts            -- null for a daily line
        delivery_id text       -- null for traffic that is not charged (`not_charged`, cost 0)
        object_id text
        row_number int
        part int
        billing_period text
        billing_account text
        sub_account text
        cluster_key! int
        node_key! int
        job_key! int
        role text
        resolved_by! text
        peer_job_key! int
        peer_role text
        peer_name text
        peer_resolved_by! text
        source_zone_key! int
        destination_zone_key! int
        direction text
        metered_bytes double
        billed_gb double
        billed_cost! money
        effective_cost money
        currency text
        basis! text
        policy! text           -- rate, scale, none
        estimate_ratio double  -- measured cost over billed, per node, direction and day
        coverage double
        reason text            -- null when a job got it
    """),
)

LEDGER_LINE = Table(
    name="core.ledger_line",
    grain="bill line part and bucket, job, reason: the trace from a line to its jobs and back (B8)",
    partition="billing_period",
    columns=columns("""
        billing_period! text
        date! date
        delivery_id! text
        object_id! text
        row_number! int
        part! int
        provider! text
        billing_account! text
        sub_account text
        cluster_key! int
        region text
        service text
        charge_scope! text
        charge_category! text
        charge_class text
        charge_span! text
        pricing_category text
        commitment_id text
        invoice_id text
        bucket! text           -- job, shared, unattributed, out_of_scope
        rule text              -- shared: the rule
        job_key! int
        owner_key! int
        reason text            -- unattributed: why
        share double           -- of the line part
        list_cost money
        contracted_cost money
        billed_cost! money
        effective_cost money
        currency! text
    """),
)

PROCESSED_DAY = Table(
    name="core.processed_day",
    grain="one day that was run (days not here are `not_run`, N6)",
    key=("date",),
    partition="date",
    columns=columns("""
        date! date
        input_digest! text     -- digest of the staged objects that touch the day: unchanged means nothing to redo
    """),
)

FINDING = Table(
    name="core.finding",
    grain="one finding about one run (F1)",
    key=("finding_id",),
    columns=columns("""
        finding_id! text       -- hex of stable_key(kind, run, client role, server role, port class)
        kind! text
        confidence! text       -- complete, partial, impact_unmeasured, insufficient
        cluster! text
        job_key! int
        role text
        peer_role text
        port text              -- port class: number/protocol or `dynamic`
        first_evidence_ns! ns
        opened_ns! ns
        closed_ns ns           -- null: open at the end of what is known
        status! text           -- open, closed
        idle_gpu_hours! double
        idle_cost money        -- effective, of the GPU-hours that count in this finding; null: unpriced
        transfer_cost money
        currency text
        counted! int           -- 1 on the one finding that carries the money (F1 order)
        summary! text
        evidence! text         -- JSON list of {what, rows, query}
        counter_evidence! text -- JSON list of {what, rows, query}
        remedy text            -- plain words; null when none is known to help
        spans text             -- JSON list of [from_ns, to_ns] in which it was open, from first evidence
        story text             -- the summary without its money
    """),
)
