"""Processes that sample with copies of a policy's weights, beside the process that trains."""
