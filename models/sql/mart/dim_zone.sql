-- A row is one zone in which a node was seen; -1 is the unknown zone.
SELECT zone_key, provider, region, zone, zone_id FROM core.zone
UNION ALL
SELECT -1, NULL, NULL, 'unknown', NULL
