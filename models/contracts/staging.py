"""Contracts of staging: typed rows as the sources gave them, UTC, one table a source. Filled by `connectors`.

Every row names the object it came from (`object_id`, a key of `staging.load`). Text that is a mapping or a list is
JSON. Event times are integer nanoseconds since 1970 (`_ns`); a time that the source did not state is null.
"""

from models.contracts.table import Table, columns

LOAD = Table(
    name="staging.load",
    grain="one landed object and staging table that it filled",
    key=("object_id", "table_name"),
    columns=columns("""
        object_id! text        -- first 32 hex digits of sha256(source, location, digest): the object as received
        source! text           -- name of the configured source
        kind! text             -- kind of the source: aws-cur2, focus, hubble, vpc-flow-logs, kubernetes, policies, prometheus
        cluster text           -- cluster of the source, null for bills
        location! text         -- path or address below the source's location
        digest! text           -- sha256 of the bytes
        size_bytes! int        -- bytes as received
        table_name! text       -- staging table that the rows went to
        lake_file text         -- parquet file below <home>/lake, null when no row was kept
        rows_read! int         -- records in the object that this table accounts for
        rows_kept! int         -- rows in the lake file
        rows_rejected! int     -- records kept aside in staging.rejected_row
        rows_duplicate! int    -- records already held (same event)
        rows_control! int      -- records that are no data of this table (headers, lost events, bookmarks, NODATA)
        min_time_utc ts        -- earliest event time in the lake file
        max_time_utc ts        -- latest event time in the lake file
        loaded_utc! ts         -- when it was staged
        warning text           -- what a reader should know (time taken from the file's modification time, ...)
    """),
)

REJECTED_ROW = Table(
    name="staging.rejected_row",
    grain="one record that could not be read",
    columns=columns("""
        object_id! text
        table_name! text
        line_number int        -- 1-based line or record number in the object, null when unknowable
        reason! text           -- short code, colon, plain words: `bad_json: ...`, `bad_value: time is missing`
        raw text               -- the record, cut at 2,000 characters
        cost_readable bool     -- bills only: false when the row's cost, currency or period could not be read
    """),
)

CLUSTER = Table(
    name="staging.cluster",
    grain="one configured cluster",
    key=("cluster",),
    columns=columns("""
        cluster! text
        provider! text         -- aws, azure, gcp, on_prem
        region text
        accounts text          -- JSON list of sub-account ids whose untagged lines are this cluster's (dedicated accounts, A4)
    """),
)

BILL_DELIVERY = Table(
    name="staging.bill_delivery",
    grain="one delivery of one billing period of one export",
    key=("delivery_id",),
    columns=columns("""
        delivery_id! text      -- sha256 prefix of (export scope, dataset, period, manifest digest)
        source! text
        provider! text         -- aws, azure, gcp, or the FOCUS ProviderName lower-cased
        export_scope! text     -- what a newer delivery replaces: bucket/prefix/export name
        dataset! text          -- cur2, focus-1.0, focus-1.2
        billing_period! text   -- 2026-11
        covers_from! ts        -- first day that it replaces (B4)
        covers_to! ts          -- end of what it replaces, exclusive
        submitted_utc! ts      -- order of application; from the manifest, else the object's modification time
        files! int
        rows_read! int
        net_basis! bool        -- true: net columns are used on every row (B3)
        amortised! bool        -- false: effective cost of covered usage is unknown
        covers_range bool      -- true: every day of covers_from to covers_to; else only the days that it holds (B4)
    """),
)

BILL_LINE = Table(
    name="staging.bill_line",
    grain="one source row of a delivery, in FOCUS terms (B1)",
    key=("delivery_id", "object_id", "row_number"),
    columns=columns("""
        delivery_id! text
        object_id! text
        row_number! int        -- 1-based row in the object
        provider! text         -- aws, azure, gcp, ...
        billing_account_id! text
        sub_account_id text
        invoice_id text
        invoice_issuer_name text
        billing_period! text   -- 2026-11
        billing_period_start! ts
        billing_period_end! ts
        charge_period_start! ts
        charge_period_end! ts
        charge_category! text  -- Usage, Purchase, Tax, Credit, Adjustment
        charge_class text      -- null or Correction
        charge_description text
        service_name text
        region_id text
        availability_zone text
        resource_id text
        sku_id text
        pricing_category text  -- Standard (on demand), Dynamic (spot), Committed, Other
        pricing_quantity money18
        pricing_unit text
        consumed_quantity money18
        consumed_unit text
        commitment_discount_id text
        commitment_discount_status text -- Used, Unused
        capacity_reservation_id text
        capacity_reservation_status text -- Used, Unused
        list_cost money18
        contracted_cost money18
        billed_cost! money18   -- what is invoiced for the row
        effective_cost money18 -- amortised cost (B3), null when the source can't say (effective_unknown)
        billing_currency! text
        tags text              -- JSON object
        x_usage_type text
        x_operation text
        x_line_item_type text
        x_instance_type text
        x_service_code text
        x_source_changes text  -- what had to be changed or invented, `; ` separated, null when nothing
    """),
)

HUBBLE_FLOW = Table(
    name="staging.hubble_flow",
    grain="one Hubble flow event as one node saw it",
    columns=columns("""
        object_id! text
        cluster! text
        node_name text         -- observing node, cluster prefix removed
        time_ns! ns
        event_key! text        -- uuid, else md5 of (node, record): duplicates are told by it
        flow_type text         -- L3_L4, L7, SOCK
        verdict text           -- FORWARDED, DROPPED, ERROR, AUDIT, REDIRECTED, TRACED, TRANSLATED, or the unknown value as text
        drop_reason text       -- drop_reason_desc, else the number as text
        event_type int         -- 1 drop, 4 trace, 5 policy verdict, 129 access log, ...
        observation_point text -- TO_ENDPOINT, TO_STACK, TO_OVERLAY, ...
        trace_reason text      -- NEW, ESTABLISHED, REPLY, ...
        traffic_direction text -- as written; never used to tell who observed
        is_reply bool          -- null when the record does not say
        protocol text          -- TCP, UDP, SCTP, ICMPv4, ICMPv6, null
        source_ip text         -- canonical text form
        source_port int
        destination_ip text
        destination_port int
        source_xlated_ip text
        tcp_syn bool
        tcp_ack bool
        tcp_fin bool
        tcp_rst bool
        source_namespace text
        source_pod text
        source_identity int
        source_local bool      -- the endpoint carries an ID: local to the observing node
        source_reserved text   -- host, world, remote-node, kube-apiserver, init, unmanaged, health, ... null for pods
        destination_namespace text
        destination_pod text
        destination_identity int
        destination_local bool
        destination_reserved text
        destination_service text -- namespace/name
        destination_names text -- JSON list of DNS names
        node_zone text         -- topology.kubernetes.io/zone of the observing node's labels
        dns_query text
        dns_rcode int
        events! int            -- weight: 1, or the sum of the aggregate counts
        bytes int              -- null but for Retina extensions (T5)
        policies text          -- JSON list of `kind/namespace/name` named as allowing or denying
        source_cluster text    -- cluster name of the endpoint where it is not the observing node's (cluster mesh)
        destination_cluster text
    """),
)

HUBBLE_CONTROL = Table(
    name="staging.hubble_control",
    grain="one non-flow record: lost events, node status, agent or debug event",
    columns=columns("""
        object_id! text
        cluster! text
        node_name text
        time_ns ns
        control_kind! text     -- lost_events, node_status, agent_event, debug_event
        events_lost int        -- lost_events only
        first_ns ns            -- start of the loss window where stated
        last_ns ns
        detail text            -- loss source, node state and names, event type
    """),
)

VPC_FLOW = Table(
    name="staging.vpc_flow",
    grain="one VPC flow log record with data (ACCEPT or REJECT) of one interface and aggregation interval",
    columns=columns("""
        object_id! text
        cluster! text
        line_number! int
        account_id text
        interface_id text
        instance_id text
        region text
        az_id text             -- zone id of the capturing interface, never of the peer
        flow_direction text    -- ingress, egress, null when the format lacks it
        source_ip! text        -- pkt-srcaddr, else srcaddr; canonical
        destination_ip! text   -- pkt-dstaddr, else dstaddr; canonical
        outer_source_ip text   -- srcaddr
        outer_destination_ip text -- dstaddr
        source_port int
        destination_port int
        protocol int           -- IANA number
        packets int
        bytes int
        start_ns! ns
        end_ns! ns
        action text            -- ACCEPT, REJECT
        traffic_path int
        record_type text       -- IPv4, IPv6, EFA
    """),
)

VPC_GAP = Table(
    name="staging.vpc_gap",
    grain="one NODATA or SKIPDATA record: an interval of an interface without data, or whose data was lost",
    columns=columns("""
        object_id! text
        cluster! text
        interface_id text
        start_ns ns
        end_ns ns
        log_status! text       -- NODATA (nothing to record) or SKIPDATA (records were lost)
    """),
)

SNAPSHOT = Table(
    name="staging.snapshot",
    grain="one list of one kind of object, or one stretch of watch events",
    key=("snapshot_id",),
    columns=columns("""
        snapshot_id! text      -- object_id and document number
        object_id! text
        cluster! text
        resource_kind! text    -- Pod, Node, PyTorchJob, ..., `*` for a mixed stream
        observed_ns! ns        -- when the list was taken (envelope, file name, else modification time)
        observed_basis! text   -- envelope, file_name, modified
        mode! text             -- list, watch
        complete! bool         -- true: the whole cluster, all pages; absence from it means gone (P1)
        scope text             -- namespace or selector of a partial list
        items! int
        watch_to_ns ns         -- watch: end of the stretch without a gap
    """),
)

POD_OBSERVATION = Table(
    name="staging.pod_observation",
    grain="one sighting of one pod",
    columns=columns("""
        object_id! text
        snapshot_id! text
        cluster! text
        observed_ns! ns
        mode! text             -- list, added, modified, deleted
        uid! text
        namespace! text
        name! text
        node_name text         -- null: not bound
        host_network! bool
        host_ip text
        pod_ips text           -- JSON list, canonical
        phase text             -- Pending, Running, Succeeded, Failed, Unknown
        reason text            -- Evicted, NodeLost, ...
        created_ns ns
        delete_requested_ns ns -- deletionTimestamp less deletionGracePeriodSeconds
        scheduled_ns ns        -- PodScheduled=True
        unscheduled_reason text -- PodScheduled=False: Unschedulable, SchedulingGated
        ready_to_start_ns ns   -- PodReadyToStartContainers=True
        initialized_ns ns      -- Initialized=True
        ready_ns ns            -- Ready=True
        start_ns ns            -- status.startTime
        main_started_ns ns     -- first start of a main container, from state or lastState
        main_running bool      -- a main container is running
        finished_ns ns         -- latest finishedAt when phase is terminal
        waiting_reason text    -- of the main containers: ImagePullBackOff, CrashLoopBackOff, ContainerCreating, PodInitializing
        restart_count int      -- highest of the main containers
        last_finished_ns ns    -- last termination of a main container that was restarted
        disruption_reason text -- DisruptionTarget condition
        gpu_resource text      -- nvidia.com/gpu, nvidia.com/mig-1g.10gb, ... null: none
        gpus double            -- effective request (P6), fractions and MIG slices weighted
        cpu_request_cores double
        memory_request_bytes double
        resource_requests text -- JSON: effective extended resources, as written (EFA, RDMA, ...)
        owner_kind text        -- controller ownerReference
        owner_api_version text
        owner_name text
        owner_uid text
        labels text            -- JSON object
        annotations text       -- JSON object
        ports text             -- JSON list of {name, port, protocol} over main containers and sidecars
        spread_constraints text -- JSON list of topologySpreadConstraints
        node_selector text     -- JSON: nodeSelector and required node affinity
    """),
)

NODE_OBSERVATION = Table(
    name="staging.node_observation",
    grain="one sighting of one node",
    columns=columns("""
        object_id! text
        snapshot_id! text
        cluster! text
        observed_ns! ns
        mode! text             -- list, added, modified, deleted
        uid! text              -- metadata.uid, else sha of (name, providerID)
        name! text
        created_ns ns
        provider_id text
        instance_id text       -- join key to the bill: i-..., .../virtualMachines/0, instance name
        instance_type text
        lifecycle! text        -- on_demand, spot, capacity_block, unknown
        node_pool text
        region text
        zone text              -- null: unknown (P4)
        zone_basis text        -- label, legacy_label, csi_label, gke_label, provider_id
        zone_id text           -- az id: use1-az1
        gpu_model text
        gpus double            -- physical GPUs (capacity over replicas), 0 when none
        gpus_allocatable double
        gpu_replicas double    -- time-slicing factor, 1 when not shared
        internal_ips text      -- JSON list, canonical
        pod_cidrs text         -- JSON list
        ready bool
        unschedulable bool
        labels text            -- JSON object
    """),
)

WORKLOAD_OBSERVATION = Table(
    name="staging.workload_observation",
    grain="one sighting of one workload object (training jobs, batch Jobs, PodGroups, Kueue Workloads)",
    columns=columns("""
        object_id! text
        snapshot_id! text
        cluster! text
        observed_ns! ns
        mode! text
        api_version! text
        kind! text
        namespace! text
        name! text
        uid! text
        owner_kind text
        owner_name text
        owner_uid text
        created_ns ns
        finished_ns ns         -- completion time where the status states one
        state text             -- Created, Running, Succeeded, Failed, Suspended, null
        replicas text          -- JSON object: replica type -> declared count
        min_members int        -- minAvailable, minMember, elastic minReplicas, Ray head + minReplicas
        completion_mode text   -- batch Job: Indexed or NonIndexed
        subdomain text
        labels text
        annotations text
        ports text             -- JSON list of {name, port, protocol} declared in pod templates
    """),
)

SERVICE_OBSERVATION = Table(
    name="staging.service_observation",
    grain="one sighting of one Service",
    columns=columns("""
        object_id! text
        snapshot_id! text
        cluster! text
        observed_ns! ns
        mode! text
        namespace! text
        name! text
        uid text
        cluster_ips text       -- JSON list, canonical; empty for headless
        selector text          -- JSON object
        ports text             -- JSON list of {name, port, protocol, target_port}
    """),
)

POLICY_OBSERVATION = Table(
    name="staging.policy_observation",
    grain="one sighting of one network policy",
    columns=columns("""
        object_id! text
        snapshot_id! text
        cluster! text
        observed_ns! ns
        mode text              -- list, added, modified, deleted (the last state of a policy that is gone)
        api_version! text
        kind! text             -- CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy, NetworkPolicy
        namespace text
        name! text
        uid text
        resource_version text
        created_ns ns
        selector_keys text     -- JSON list of label keys (no source prefix) that its selectors use, subject and peers
        subject_selectors text -- JSON list of the subject selectors
        document! text         -- the whole object as JSON
    """),
)

GPU_SAMPLE = Table(
    name="staging.gpu_sample",
    grain="one sample of one metric of one GPU series",
    columns=columns("""
        object_id! text
        cluster! text
        time_ns! ns
        metric! text           -- gpu_util (0..100), engine_active, tensor_active, dram_active, sm_active (0..1), power_watts, memory_used_mib
        value! double          -- never a sentinel; NaN and blanks are not rows
        gpu_uuid! text
        gpu_instance text      -- MIG GPU_I_ID, null for a whole device
        gpu_index text
        gpu_model text
        node_name text         -- null when the exporter's host name can't be trusted to be a node
        instance text          -- scrape target
        namespace text         -- of the pod that holds the GPU, after the exported_* rule
        pod text
        pod_uid text
    """),
)
