-- One line without a resource id in whose scope only flow shares are known: not enough to split an account's total (A4).
SELECT DISTINCT line.line_id
FROM transfer_line AS line
JOIN transfer_pair AS pair
  ON pair.date = line.date AND pair.basis = 'flow_share' AND line.metered IN (pair.direction, 'both')
JOIN core.node_life AS node
  ON node.node_key = pair.node_key
 AND (line.cluster_key = -1 OR line.cluster_key = stable_key(node.cluster))
 AND (line.region IS NULL OR node.region IS NULL OR line.region = node.region)
WHERE line.entity LIKE 'scope:%'
