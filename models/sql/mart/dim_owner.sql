-- A row is one owner; without a configured mapping every cost is `unowned`.
SELECT -1 AS owner_key, 'unowned' AS team, CAST(NULL AS VARCHAR) AS cost_center
