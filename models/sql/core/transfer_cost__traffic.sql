-- One pair of ends and hour of the traffic that an entity's lines are split over, in the best basis of that hour (T5).
-- A node's traffic goes to the node's own lines; else to the scope line of its account (A4), where there is one.
WITH entity AS (
    SELECT DISTINCT
        entity, date, metered, node_key, cluster_key, sub_account, region, billing_period, dedicated
    FROM transfer_line
    WHERE entity IS NOT NULL AND whole_reason IS NULL
),
node_account AS (
    SELECT node_key, billing_period, min(sub_account) AS sub_account
    FROM core.bill_line
    WHERE node_key <> -1 AND billing_period IN (SELECT DISTINCT billing_period FROM transfer_line)
    GROUP BY node_key, billing_period
),
metered_node AS (
    SELECT DISTINCT pair.date, pair.node_key, pair.direction, stable_key(node.cluster) AS cluster_key, node.region
    FROM transfer_pair AS pair
    LEFT JOIN core.node_life AS node ON node.node_key = pair.node_key
),
candidate AS (
    SELECT
        metered_node.date, metered_node.node_key, metered_node.direction, entity.entity, entity.metered, entity.dedicated,
        CASE WHEN entity.node_key <> -1 THEN 0 WHEN entity.cluster_key <> -1 THEN 1 ELSE 2 END AS distance
    FROM metered_node
    JOIN entity
      ON entity.date = metered_node.date
     AND entity.metered IN (metered_node.direction, 'both')
    LEFT JOIN node_account
      ON node_account.node_key = metered_node.node_key AND node_account.billing_period = entity.billing_period
    WHERE entity.node_key = metered_node.node_key
       OR (
            entity.node_key = -1
            AND (entity.region IS NULL OR metered_node.region IS NULL OR entity.region = metered_node.region)
            AND CASE
                WHEN entity.cluster_key <> -1 THEN entity.cluster_key = metered_node.cluster_key
                ELSE node_account.sub_account IS NOT DISTINCT FROM entity.sub_account AND entity.sub_account IS NOT NULL
            END
        )
),
nearest AS (
    SELECT *
    FROM candidate
    QUALIFY row_number() OVER (
        PARTITION BY date, node_key, direction ORDER BY distance, metered = 'both', length(entity) DESC, entity
    ) = 1
),
placed AS (
    SELECT nearest.entity, nearest.metered, pair.*
    FROM transfer_pair AS pair
    JOIN nearest USING (date, node_key, direction)
    -- flow shares alone say nothing about an account's total, unless the account is the cluster's own (A4)
    WHERE nearest.distance = 0 OR nearest.dedicated OR pair.basis <> 'flow_share'
)
SELECT *
FROM placed
QUALIFY dense_rank() OVER (
    PARTITION BY entity, metered, date, hour
    ORDER BY CASE basis WHEN 'measured_bytes' THEN 0 WHEN 'counter_bytes' THEN 1 ELSE 2 END
) = 1
