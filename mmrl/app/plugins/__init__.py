"""Names and files -> rewards, data sets, parts, configs."""
