-- One dropped packet with both ends resolved.
SELECT d.*, r.* EXCLUDE (pair_id) FROM drop_packet d JOIN traffic_resolved r ON r.pair_id = d.pair_id
