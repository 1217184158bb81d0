"""The engine: warehouse connection, lake partitions, model runner. Nothing here knows what a number means."""
