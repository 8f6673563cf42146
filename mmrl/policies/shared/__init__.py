"""The tools that text and flow policies share: weights, shards, adapters, models without memory."""
